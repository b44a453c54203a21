//! The object store of the simulated disk: puts are whole and durable or not there, removed objects may come back.

use std::{
    fmt, io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, stream::BoxStream};
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, memory::InMemory, path::Path,
};

use super::{World, lock, step};

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

#[derive(Debug)]
pub(super) struct SimObjects {
    world: Arc<Mutex<World>>,
    store: Mutex<Arc<InMemory>>,
    removed: Arc<Mutex<Vec<(Path, Bytes)>>>,
}

impl fmt::Display for SimObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated objects")
    }
}

impl SimObjects {
    pub(super) fn new(world: Arc<Mutex<World>>) -> Self {
        Self { world, store: Mutex::default(), removed: Arc::default() }
    }

    fn store(&self) -> Arc<InMemory> {
        Arc::clone(&self.store.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn copy_from(&self, other: &Self) {
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(other.store().fork());
    }

    pub(super) fn names(&self) -> Vec<String> {
        let all: Vec<Result<ObjectMeta>> = now(self.store().list(None).collect());
        all.into_iter().map(|meta| meta.unwrap().location.to_string()).collect()
    }

    pub(super) fn bytes_of(&self, name: &str) -> Vec<u8> {
        let store = self.store();
        now(async { store.get(&Path::from(name)).await.unwrap().bytes().await.unwrap().to_vec() })
    }

    pub(super) fn set(&self, name: &str, bytes: Vec<u8>) {
        now(self.store().put(&Path::from(name), bytes.into())).unwrap();
    }

    pub(super) fn take_out(&self, name: &str) {
        now(self.store().delete(&Path::from(name))).unwrap();
    }

    pub(super) fn power_cut(&self) {
        let removed = std::mem::take(&mut *self.removed.lock().unwrap_or_else(PoisonError::into_inner));
        for (path, bytes) in removed {
            if lock(&self.world).coin(path.as_ref()) {
                now(self.store().put(&path, bytes.into())).unwrap();
            }
        }
    }
}

/// Operations in memory are done at once.
fn now<T>(work: impl Future<Output = T>) -> T {
    work.now_or_never().expect("nothing waits in memory")
}

fn off(error: io::Error) -> Error {
    Error::Generic { store: "sim", source: Box::new(error) }
}

impl ObjectStore for SimObjects {
    fn put_opts<'life0, 'life1, 'async_trait>(
        &'life0 self,
        location: &'life1 Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Answer<'async_trait, PutResult>
    where
        'life0: 'async_trait,
        'life1: 'async_trait,
    {
        step(&self.world, "put", location.as_ref());
        let change = || {
            let mut world = lock(&self.world);
            let goes_on = world.change().map_err(off)? && !world.object_fails();
            // The power goes, or the store fails, before or after the object is there.
            let done = goes_on || world.coin(("put", location.as_ref()));
            let full = world.bytes_max.is_some_and(|max| world.bytes() + payload.content_length() as u64 > max);
            drop(world);
            if full {
                return Err(off(io::ErrorKind::StorageFull.into()));
            }
            let put = if done { Some(now(self.store().put_opts(location, payload, opts))?) } else { None };
            put.filter(|_| goes_on).ok_or_else(|| off(io::Error::other("the store gave no answer")))
        };
        let answer = change();
        Box::pin(async { answer })
    }

    fn get_opts<'life0, 'life1, 'async_trait>(
        &'life0 self,
        location: &'life1 Path,
        options: GetOptions,
    ) -> Answer<'async_trait, GetResult>
    where
        'life0: 'async_trait,
        'life1: 'async_trait,
    {
        step(&self.world, "get", location.as_ref());
        let alive = lock(&self.world).alive_store().map_err(off);
        let answer = alive.and_then(|()| now(self.store().get_opts(location, options)));
        Box::pin(async { answer })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (world, store, removed) = (Arc::clone(&self.world), self.store(), Arc::clone(&self.removed));
        let delete = move |location: Result<Path>| {
            let location = location?;
            step(&world, "delete", location.as_ref());
            let goes_on = lock(&world).change().map_err(off)?;
            let bytes = now(async { store.get(&location).await?.bytes().await })?;
            now(store.delete(&location))?;
            removed.lock().unwrap_or_else(PoisonError::into_inner).push((location.clone(), bytes));
            if goes_on { Ok(location) } else { Err(off(io::Error::other("the power is off"))) }
        };
        locations.map(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match lock(&self.world).alive() {
            Ok(()) => self.store().list(prefix),
            Err(error) => futures::stream::iter([Err(off(error))]).boxed(),
        }
    }

    fn put_multipart_opts<'life0, 'life1, 'async_trait>(
        &'life0 self,
        _location: &'life1 Path,
        _opts: PutMultipartOptions,
    ) -> Answer<'async_trait, Box<dyn MultipartUpload>>
    where
        'life0: 'async_trait,
        'life1: 'async_trait,
    {
        Box::pin(async { Err(off(io::ErrorKind::Unsupported.into())) })
    }

    fn list_with_delimiter<'life0, 'life1, 'async_trait>(
        &'life0 self,
        _prefix: Option<&'life1 Path>,
    ) -> Answer<'async_trait, ListResult>
    where
        'life0: 'async_trait,
        'life1: 'async_trait,
    {
        Box::pin(async { Err(off(io::ErrorKind::Unsupported.into())) })
    }

    fn copy_opts<'life0, 'life1, 'life2, 'async_trait>(
        &'life0 self,
        _from: &'life1 Path,
        _to: &'life2 Path,
        _options: CopyOptions,
    ) -> Answer<'async_trait, ()>
    where
        'life0: 'async_trait,
        'life1: 'async_trait,
        'life2: 'async_trait,
    {
        Box::pin(async { Err(off(io::ErrorKind::Unsupported.into())) })
    }
}

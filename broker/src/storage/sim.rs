//! A disk for tests that forgets what was not synced, fails where a test says, and lies if told to.
//!
//! Written bytes are in a page cache until `sync_data`; names until `sync_dir`. A power cut keeps of every unsynced sector
//! and name one or the other, by seed. A killed process keeps the page cache. Puts to the object store are whole or not
//! there; an object removed may come back. Every decision is a hash of the seed and of what it is about, so that the order
//! in which threads come by does not matter.

mod before;
mod objects;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{Hash, Hasher},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use object_store::ObjectStore;

use self::{before::Before, objects::SimObjects};
use super::disk::{Disk, DiskFile, Lock};

/// What a disk loses together.
const SECTOR_BYTES: usize = 512;

/// How a disk misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mutant {
    /// It does not.
    #[default]
    None,
    /// `sync_data` says yes and does nothing: what an ack before `fdatasync` comes to.
    SyncLies,
    /// `sync_dir` says yes and does nothing.
    SyncDirLies,
}

/// See the module. Clones are the same disk.
#[derive(Debug, Clone)]
pub(crate) struct SimDisk {
    world: Arc<Mutex<World>>,
    objects: Arc<SimObjects>,
}

/// See [`SimDisk::before`].
pub(super) fn step(world: &Mutex<World>, operation: &'static str, about: &str) {
    let before = lock(world).before.clone();
    before.call(operation, about);
}

#[derive(Debug, Default)]
pub(super) struct World {
    /// Told before every operation, outside all locks.
    before: Before,
    /// Operations of the object store that fail next.
    objects_fail: u32,
    seed: u64,
    mutant: Mutant,
    nodes: HashMap<u64, Node>,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    next_node: u64,
    locks: BTreeSet<PathBuf>,
    /// Handles of an earlier life are dead.
    life: u64,
    /// Changes so far.
    changes: u64,
    /// The power goes at this change.
    power_cut_at: Option<u64>,
    dead: bool,
    /// Syncs of file data fail with EIO.
    syncs_fail: bool,
    /// Syncs of file data do not come back.
    syncs_held: bool,
    /// Bytes of all files that may exist; more is ENOSPC.
    bytes_max: Option<u64>,
}

#[derive(Debug, Default, Clone)]
struct Node {
    cache: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
}

impl SimDisk {
    pub(crate) fn new(seed: u64, mutant: Mutant) -> Self {
        let world = Arc::new(Mutex::new(World { seed, mutant, ..World::default() }));
        let objects = Arc::new(SimObjects::new(Arc::clone(&world)));
        Self { world, objects }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    fn step(&self, operation: &'static str, path: &Path) {
        step(&self.world, operation, &path.to_string_lossy());
    }

    /// Calls something before every operation.
    pub(crate) fn before(&self, call: impl Fn(&'static str, &str) + Send + Sync + 'static) {
        self.lock().before = Before::new(call);
    }

    /// The power goes now, or the process ends: nothing that is not there yet comes to be.
    pub(crate) fn stop(&self) {
        self.lock().dead = true;
    }

    /// Lets so many operations of the object store fail; a put may be there all the same.
    pub(crate) fn fail_objects(&self, count: u32) {
        self.lock().objects_fail = count;
    }

    /// The power goes after so many changes from now.
    pub(crate) fn cut_power_after(&self, changes: u64) {
        let mut world = self.lock();
        world.power_cut_at = Some(world.changes + changes);
    }

    /// The power has gone.
    pub(crate) fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// Loses what was not synced; then the disk works again.
    pub(crate) fn power_cut(&self) {
        let mut world = self.lock();
        world.lose();
        world.restart();
        drop(world);
        self.objects.power_cut();
    }

    /// Ends the process that used the disk: its handles die, the page cache stays.
    pub(crate) fn kill_process(&self) {
        self.lock().restart();
    }

    pub(crate) fn fail_syncs(&self, fail: bool) {
        self.lock().syncs_fail = fail;
    }

    /// Lets no sync of file data come back until the guard is dropped.
    pub(crate) fn hold_syncs(&self) -> HeldSyncs {
        self.lock().syncs_held = true;
        HeldSyncs(self.clone())
    }

    /// Lets the files have so many bytes more than now.
    pub(crate) fn limit_free_bytes(&self, free: Option<u64>) {
        let mut world = self.lock();
        world.bytes_max = free.map(|free| world.bytes() + free);
    }

    /// Changes bytes of a file behind everybody's back, durably.
    pub(crate) fn edit(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut world = self.lock();
        let id = world.names[path];
        let node = world.nodes.get_mut(&id).unwrap();
        change(&mut node.cache);
        node.durable = node.cache.clone();
        node.dirty.clear();
    }

    pub(crate) fn bytes_of(&self, path: &Path) -> Vec<u8> {
        let world = self.lock();
        world.nodes[&world.names[path]].cache.clone()
    }

    /// Files below a directory, by name.
    pub(crate) fn files(&self, dir: &Path) -> Vec<PathBuf> {
        self.lock().names.keys().filter(|path| path.parent() == Some(dir)).cloned().collect()
    }

    pub(crate) fn object_names(&self) -> Vec<String> {
        self.objects.names()
    }

    pub(crate) fn bytes_of_object(&self, name: &str) -> Vec<u8> {
        self.objects.bytes_of(name)
    }

    pub(crate) fn put_object(&self, name: &str, bytes: &[u8]) {
        self.objects.set(name, bytes.to_vec());
    }

    pub(crate) fn remove_object(&self, name: &str) {
        self.objects.take_out(name);
    }

    pub(crate) fn edit_object(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.objects.bytes_of(name);
        change(&mut bytes);
        self.objects.set(name, bytes);
    }

    /// A disk of its own with the same content, durable.
    pub(crate) fn fork(&self) -> Self {
        let fork = Self::new(self.lock().seed, Mutant::None);
        let world = self.lock();
        let mut other = fork.lock();
        other.names = world.names.clone();
        other.durable_names = world.names.clone();
        other.next_node = world.next_node;
        let synced =
            |node: &Node| Node { cache: node.cache.clone(), durable: node.cache.clone(), dirty: BTreeSet::new() };
        other.nodes = world.nodes.iter().map(|(&id, node)| (id, synced(node))).collect();
        drop(other);
        fork.objects.copy_from(&self.objects);
        fork
    }
}

/// See [`SimDisk::hold_syncs`].
#[derive(Debug)]
pub(crate) struct HeldSyncs(SimDisk);

impl Drop for HeldSyncs {
    fn drop(&mut self) {
        self.0.lock().syncs_held = false;
    }
}

pub(super) fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    fn bytes(&self) -> u64 {
        self.names.values().map(|id| self.nodes[id].cache.len() as u64).sum()
    }

    /// A change is about to happen. `Err` if the power is off; `Ok(false)` if it goes in this very change.
    pub(super) fn change(&mut self) -> io::Result<bool> {
        self.alive()?;
        self.changes += 1;
        if self.power_cut_at.is_some_and(|at| self.changes >= at) {
            self.dead = true;
            return Ok(false);
        }
        Ok(true)
    }

    pub(super) fn alive_store(&mut self) -> io::Result<()> {
        self.alive()?;
        if self.object_fails() { Err(io::Error::other("the store gave no answer")) } else { Ok(()) }
    }

    pub(super) fn alive(&self) -> io::Result<()> {
        if self.dead { Err(power_off()) } else { Ok(()) }
    }

    fn alive_in(&self, life: u64) -> io::Result<()> {
        if self.life == life { self.alive() } else { Err(power_off()) }
    }

    /// An operation of the object store fails here.
    pub(super) fn object_fails(&mut self) -> bool {
        let fails = self.objects_fail > 0;
        self.objects_fail = self.objects_fail.saturating_sub(1);
        fails
    }

    /// One or the other, by seed and subject.
    pub(super) fn coin(&self, subject: impl Hash) -> bool {
        let mut hasher = std::hash::DefaultHasher::new();
        (self.seed, self.life, self.changes, subject).hash(&mut hasher);
        hasher.finish().is_multiple_of(2)
    }

    fn lose(&mut self) {
        let mut nodes = std::mem::take(&mut self.nodes);
        for (id, node) in &mut nodes {
            for &sector in &node.dirty {
                if self.coin((*id, sector)) {
                    let start = sector * SECTOR_BYTES;
                    let end = (start + SECTOR_BYTES).min(node.cache.len());
                    if node.durable.len() < end {
                        node.durable.resize(end, 0);
                    }
                    node.durable[start..end].copy_from_slice(&node.cache[start..end]);
                }
            }
            node.cache.clone_from(&node.durable);
            node.dirty.clear();
        }
        self.nodes = nodes;
        let changed: BTreeSet<PathBuf> = self.names.keys().chain(self.durable_names.keys()).cloned().collect();
        for path in changed {
            let (now, durable) = (self.names.get(&path).copied(), self.durable_names.get(&path).copied());
            let kept = if self.coin(&path) { now } else { durable };
            match kept {
                Some(id) => drop(self.durable_names.insert(path, id)),
                None => drop(self.durable_names.remove(&path)),
            }
        }
        self.names = self.durable_names.clone();
    }

    fn restart(&mut self) {
        self.life += 1;
        self.dead = false;
        self.power_cut_at = None;
        self.syncs_fail = false;
        self.bytes_max = None;
        self.objects_fail = 0;
        self.locks.clear();
    }
}

fn power_off() -> io::Error {
    io::Error::other("the power is off")
}

impl Disk for SimDisk {
    fn create_dir(&self, _path: &Path) -> io::Result<()> {
        self.lock().alive()
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.step("open", path);
        let world = self.lock();
        world.alive()?;
        let id = *world.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimFile { world: Arc::clone(&self.world), id, life: world.life }))
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.step("create", path);
        let mut world = self.lock();
        if world.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let goes_on = world.change()?;
        let id = world.next_node;
        world.next_node += 1;
        world.nodes.insert(id, Node::default());
        world.names.insert(path.to_path_buf(), id);
        let file = SimFile { world: Arc::clone(&self.world), id, life: world.life };
        if goes_on { Ok(Arc::new(file)) } else { Err(power_off()) }
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step("rename", to);
        let mut world = self.lock();
        let goes_on = world.change()?;
        let id = world.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        world.names.insert(to.to_path_buf(), id);
        if goes_on { Ok(()) } else { Err(power_off()) }
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step("remove", path);
        let mut world = self.lock();
        world.alive()?;
        if !world.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let goes_on = world.change()?;
        world.names.remove(path);
        if goes_on { Ok(()) } else { Err(power_off()) }
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let world = self.lock();
        world.alive()?;
        let names = world.names.keys().filter(|name| name.parent() == Some(path));
        Ok(names.filter_map(|name| Some(name.file_name()?.to_str()?.to_owned())).collect())
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step("sync names of", path);
        let mut world = self.lock();
        if !world.change()? {
            return Err(power_off());
        }
        if world.mutant == Mutant::SyncDirLies {
            return Ok(());
        }
        world.durable_names.retain(|name, _| name.parent() != Some(path));
        let here: Vec<_> = world.names.iter().filter(|(name, _)| name.parent() == Some(path)).collect();
        let here: Vec<_> = here.into_iter().map(|(name, &id)| (name.clone(), id)).collect();
        world.durable_names.extend(here);
        Ok(())
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let mut world = self.lock();
        world.alive()?;
        if !world.locks.insert(path.to_path_buf()) {
            return Ok(None);
        }
        let (world, life) = (Arc::clone(&self.world), world.life);
        Ok(Some(Box::new(SimLock { world, path: path.to_path_buf(), life })))
    }
    fn objects(&self, _root: &Path) -> io::Result<Arc<dyn ObjectStore>> {
        Ok(Arc::clone(&self.objects) as Arc<dyn ObjectStore>)
    }
}

#[derive(Debug)]
struct SimLock {
    world: Arc<Mutex<World>>,
    path: PathBuf,
    life: u64,
}

impl Lock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut world = lock(&self.world);
        if world.life == self.life {
            world.locks.remove(&self.path);
        }
    }
}

#[derive(Debug)]
struct SimFile {
    world: Arc<Mutex<World>>,
    id: u64,
    life: u64,
}

impl SimFile {
    fn step(&self, operation: &'static str) {
        step(&self.world, operation, &format!("file {}", self.id));
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.step("read");
        let world = lock(&self.world);
        world.alive_in(self.life)?;
        let start = usize::try_from(position).unwrap();
        let bytes = world.nodes[&self.id].cache.get(start..start + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.step("write");
        let mut world = lock(&self.world);
        world.alive_in(self.life)?;
        let start = usize::try_from(position).unwrap();
        let end = start + bytes.len();
        let grows = end.saturating_sub(world.nodes[&self.id].cache.len()) as u64;
        if world.bytes_max.is_some_and(|max| world.bytes() + grows > max) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let goes_on = world.change()?;
        let node = world.nodes.get_mut(&self.id).unwrap();
        if node.cache.len() < end {
            node.cache.resize(end, 0);
        }
        node.cache[start..end].copy_from_slice(bytes);
        node.dirty.extend(start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
        if goes_on { Ok(()) } else { Err(power_off()) }
    }
    fn sync_data(&self) -> io::Result<()> {
        self.step("sync");
        while lock(&self.world).syncs_held {
            std::thread::yield_now();
        }
        let mut world = lock(&self.world);
        world.alive_in(self.life)?;
        if world.syncs_fail {
            // What Linux does: the error is told once, and the pages count as clean from then on.
            world.nodes.get_mut(&self.id).unwrap().dirty.clear();
            return Err(io::Error::from_raw_os_error(5));
        }
        if !world.change()? {
            return Err(power_off());
        }
        if world.mutant == Mutant::SyncLies {
            return Ok(());
        }
        let node = world.nodes.get_mut(&self.id).unwrap();
        let Node { cache, durable, dirty } = node;
        if durable.len() < cache.len() {
            durable.resize(cache.len(), 0);
        }
        for sector in std::mem::take(dirty) {
            let start = sector * SECTOR_BYTES;
            let end = (start + SECTOR_BYTES).min(cache.len());
            durable[start..end].copy_from_slice(&cache[start..end]);
        }
        Ok(())
    }
    fn length(&self) -> io::Result<u64> {
        let world = lock(&self.world);
        world.alive_in(self.life)?;
        Ok(world.nodes[&self.id].cache.len() as u64)
    }
}

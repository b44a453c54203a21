//! The forgetful disk: builds the preload library, hands out its environment, and plays the power cut.
//!
//! Owns: the state directory beside the watched root (undo log, graveyard, control page). Must not know any format of the
//! broker. Called by `broker` and by the tests of the layer itself. The record layout is drawn in `forgetful/forgetful.c`.
//!
//! The model: a change of a file's bytes or size is durable after a later fsync of that file; a name is durable after a later
//! fsync of its directory. Nothing else is. [`Forgetful::power_cut`] brings back the state that may be left at worst
//! ([`Loss::All`]) or one of the many between ([`Loss::Some`]).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{BufReader, Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use anyhow::{Context, Result, bail, ensure};

/// What a power cut takes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Everything that was not synced.
    All,
    /// By the seed: some pages of unsynced writes stay, and the older part of unsynced names.
    Some(u64),
}

/// How the layer lies about syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fsync {
    /// Not at all.
    #[default]
    Honest,
    /// Success, and nothing is done: "ack before fdatasync", for ever.
    Skip,
    /// Success, but only what the sync before covered counts: "ack before fdatasync", by one group.
    Late,
}

/// A fault that the layer answers with on demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Writes, truncations and allocations fail with ENOSPC.
    Full,
    /// They fail with EIO.
    WriteFails,
    /// fsync and fdatasync fail with EIO.
    SyncFails,
}

/// One watched directory.
#[derive(Debug)]
pub struct Forgetful {
    root: PathBuf,
    state: PathBuf,
    fsync: Fsync,
    under: String,
}

/// What a power cut undid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Undone {
    /// Undo records of file content that were not covered by a sync.
    pub writes: usize,
    /// Names set back.
    pub names: usize,
}

const MAGIC: u32 = 0x4647_4631;
const HEADER_BYTES: usize = 40;
const PAGE: u64 = 4096;
const CONTROL_BYTES: usize = 4096;

impl Forgetful {
    /// Watches `root`, which must exist. The state lies in `state` (made anew), on the same file system.
    ///
    /// # Errors
    /// If the directories cannot be made or are on different file systems.
    pub fn new(root: &Path, state: &Path) -> Result<Self> {
        fs::create_dir_all(state.join("graveyard"))?;
        fs::write(state.join("control"), [0; CONTROL_BYTES])?;
        let (root, state) = (root.canonicalize()?, state.canonicalize()?);
        ensure!(root.metadata()?.dev() == state.metadata()?.dev(), "root and state must share a file system");
        ensure!(!state.starts_with(&root), "the state must lie outside the root");
        Ok(Self { root, state, fsync: Fsync::Honest, under: String::new() })
    }

    /// Lies about syncs of paths that contain `under` from the next start of a process on.
    pub fn lie(&mut self, fsync: Fsync, under: &str) {
        self.fsync = fsync;
        self.under = under.to_owned();
    }

    /// Variables for a process that shall run over this layer.
    ///
    /// # Errors
    /// If the library cannot be compiled.
    pub fn environment(&self) -> Result<Vec<(&'static str, OsString)>> {
        let mut variables = vec![
            ("LD_PRELOAD", library()?.into_os_string()),
            ("FORGETFUL_ROOT", self.root.clone().into_os_string()),
            ("FORGETFUL_STATE", self.state.clone().into_os_string()),
            ("FORGETFUL_CONTROL", self.state.join("control").into_os_string()),
        ];
        match self.fsync {
            Fsync::Honest => {}
            Fsync::Skip => variables.push(("FORGETFUL_FSYNC", "skip".into())),
            Fsync::Late => variables.push(("FORGETFUL_FSYNC", "late".into())),
        }
        if !self.under.is_empty() {
            variables.push(("FORGETFUL_UNDER", self.under.clone().into()));
        }
        Ok(variables)
    }

    /// Makes the running process meet a fault on paths that contain `under`, at once; `None` ends it.
    ///
    /// # Errors
    /// If the control page cannot be written.
    pub fn fault(&self, fault: Option<Fault>, under: &str) -> Result<()> {
        const EIO: u8 = 5;
        const ENOSPC: u8 = 28;
        let (write, sync) = match fault {
            None => (0, 0),
            Some(Fault::Full) => (ENOSPC, 0),
            Some(Fault::WriteFails) => (EIO, 0),
            Some(Fault::SyncFails) => (0, EIO),
        };
        ensure!(under.len() < 255, "text too long");
        let control = OpenOptions::new().write(true).open(self.state.join("control"))?;
        let mut text = under.as_bytes().to_vec();
        text.push(0);
        control.write_all_at(&text, 16)?;
        control.write_all_at(&[write, sync], 0)?;
        Ok(())
    }

    /// The power cut. Every process over this layer must be dead.
    ///
    /// # Errors
    /// If the log cannot be replayed, or the process did what the layer cannot undo.
    pub fn power_cut(&self, loss: Loss) -> Result<Undone> {
        let path = self.state.join("undo.log");
        if !path.exists() {
            return Ok(Undone::default());
        }
        let records = live(&path)?;
        let undone = Undone {
            writes: records.iter().filter(|record| record.kind == Kind::Data).count(),
            names: records.iter().filter(|record| record.kind == Kind::Entry).count(),
        };
        let files = self.inodes()?;
        undo_data(&path, &records, &files, loss)?;
        self.undo_names(&records, loss)?;
        fs::remove_file(&path)?;
        fs::remove_dir_all(self.state.join("graveyard"))?;
        fs::create_dir(self.state.join("graveyard"))?;
        Ok(undone)
    }

    /// Every file and directory under the root and every file in the graveyard, by inode.
    fn inodes(&self) -> Result<HashMap<u64, PathBuf>> {
        let mut found = HashMap::new();
        let mut left = vec![self.state.join("graveyard"), self.root.clone()];
        while let Some(path) = left.pop() {
            let metadata = path.symlink_metadata()?;
            if metadata.is_dir() {
                for entry in fs::read_dir(&path)? {
                    left.push(entry?.path());
                }
            }
            found.insert(metadata.ino(), path);
        }
        Ok(found)
    }

    fn undo_names(&self, records: &[Record], loss: Loss) -> Result<()> {
        let entries: Vec<&Record> = records.iter().filter(|record| record.kind == Kind::Entry).collect();
        let kept = match loss {
            Loss::All => 0,
            Loss::Some(seed) => usize::try_from(mix(seed, 0, 1) % (entries.len() as u64 + 1)).unwrap_or(0),
        };
        let directories = self.inodes()?;
        // The oldest record of a name is the one that tells what stood there when the directory was last synced.
        let mut targets: BTreeMap<(PathBuf, OsString), u64> = BTreeMap::new();
        for entry in entries.iter().skip(kept).rev() {
            let Some(directory) = directories.get(&entry.inode).filter(|path| path.starts_with(&self.root)) else {
                continue;
            };
            targets.insert((directory.clone(), entry.name.clone()), entry.a);
        }
        self.put_names(&targets)
    }

    /// Makes each name stand for its inode again. First everything goes to the graveyard, so that no order can lose a file.
    fn put_names(&self, targets: &BTreeMap<(PathBuf, OsString), u64>) -> Result<()> {
        let graveyard = self.state.join("graveyard");
        let mut lost_directories = Vec::new();
        for ((directory, name), before) in targets {
            let path = directory.join(name);
            let Ok(metadata) = path.symlink_metadata() else { continue };
            if metadata.is_dir() {
                if *before == 0 {
                    lost_directories.push(path);
                }
                continue;
            }
            let grave = graveyard.join(metadata.ino().to_string());
            if grave.exists() {
                fs::remove_file(&path)?;
            } else {
                fs::rename(&path, &grave)?;
            }
        }
        for ((directory, name), before) in targets {
            let (path, grave) = (directory.join(name), graveyard.join(before.to_string()));
            if grave.exists() {
                fs::hard_link(&grave, &path).with_context(|| format!("bring back {}", path.display()))?;
            }
        }
        for path in lost_directories.iter().filter(|path| path.exists()) {
            fs::remove_dir_all(path)?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Data,
    Entry,
}

#[derive(Debug)]
struct Record {
    kind: Kind,
    inode: u64,
    a: u64,
    b: u64,
    name: OsString,
    /// Where in the log the old bytes lie.
    data_at: u64,
    data_bytes: u64,
}

/// Reads the log and leaves what no sync made durable, in the order written.
fn live(path: &Path) -> Result<Vec<Record>> {
    let mut log = BufReader::with_capacity(1 << 20, File::open(path)?);
    let end = path.metadata()?.len();
    let mut records: Vec<(u64, Record, bool)> = Vec::new();
    let mut at = 0;
    // A process killed inside a write may leave a cut record; what it was to undo was not done.
    while at + HEADER_BYTES as u64 <= end {
        let mut head = [0; HEADER_BYTES];
        log.read_exact(&mut head)?;
        let word = |from: usize| u32::from_ne_bytes(head[from..from + 4].try_into().expect("four bytes"));
        let long = |from: usize| u64::from_ne_bytes(head[from..from + 8].try_into().expect("eight bytes"));
        ensure!(word(0) == MAGIC, "undo log is damaged at {at}");
        let (name_bytes, data_bytes) = (u64::from(word(32)), u64::from(word(36)));
        let next = at + HEADER_BYTES as u64 + name_bytes + data_bytes;
        if next > end {
            break;
        }
        let mut name = vec![0; usize::try_from(name_bytes)?];
        log.read_exact(&mut name)?;
        log.seek_relative(i64::try_from(data_bytes)?)?;
        let name: OsString = std::os::unix::ffi::OsStringExt::from_vec(name);
        let (inode, a) = (long(8), long(16));
        let mut push = |kind| {
            let data_at = at + HEADER_BYTES as u64 + name_bytes;
            records.push((at, Record { kind, inode, a, b: long(24), name: name.clone(), data_at, data_bytes }, false));
        };
        match word(4) {
            1 => push(Kind::Data),
            2 => push(Kind::Entry),
            3 => records.retain(|(seq, record, poisoned)| record.inode != inode || *seq >= a || *poisoned),
            4 => records
                .iter_mut()
                .filter(|(seq, record, _)| record.inode == inode && *seq < a)
                .for_each(|(_, _, poisoned)| *poisoned = true),
            _ => bail!("the process did what this layer cannot undo: {}", name.display()),
        }
        at = next;
    }
    Ok(records.into_iter().map(|(_, record, _)| record).collect())
}

fn undo_data(log: &Path, records: &[Record], files: &HashMap<u64, PathBuf>, loss: Loss) -> Result<()> {
    let mut log = File::open(log)?;
    let mut by_file: BTreeMap<u64, Vec<&Record>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.kind == Kind::Data) {
        by_file.entry(record.inode).or_default().push(record);
    }
    for (inode, records) in by_file {
        let Some(path) = files.get(&inode) else { continue };
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let kept = match loss {
            Loss::All => Vec::new(),
            Loss::Some(seed) => survivors(&file, seed, inode, &records)?,
        };
        for record in records.iter().rev() {
            let mut bytes = vec![0; usize::try_from(record.data_bytes)?];
            log.seek(SeekFrom::Start(record.data_at))?;
            log.read_exact(&mut bytes)?;
            file.write_all_at(&bytes, record.a)?;
            file.set_len(record.b)?;
        }
        for (at, bytes) in kept {
            file.write_all_at(&bytes, at)?;
        }
    }
    Ok(())
}

/// Pages of a file that were overwritten, and stay by the seed. Only pages of the size before: whether a file grew is
/// for the newest size to say, and that is lost.
fn survivors(file: &File, seed: u64, inode: u64, records: &[&Record]) -> Result<Vec<(u64, Vec<u8>)>> {
    let size = records.first().map_or(0, |record| record.b).min(file.metadata()?.len());
    let mut pages = BTreeSet::new();
    for record in records {
        pages.extend(record.a / PAGE..(record.a + record.data_bytes).div_ceil(PAGE));
    }
    let mut kept = Vec::new();
    for page in pages.into_iter().filter(|page| mix(seed, inode, *page) & 1 == 0) {
        let at = page * PAGE;
        let bytes = PAGE.min(size.saturating_sub(at));
        let mut content = vec![0; usize::try_from(bytes)?];
        file.read_exact_at(&mut content, at)?;
        kept.push((at, content));
    }
    Ok(kept)
}

/// A number that depends on all three (splitmix64).
fn mix(seed: u64, a: u64, b: u64) -> u64 {
    let mut z = seed ^ a.rotate_left(21) ^ b.rotate_left(42).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The preload library, compiled once per test process.
fn library() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(|| compile().map_err(|error| format!("{error:#}"))).clone().map_err(anyhow::Error::msg)
}

fn compile() -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("forgetful/forgetful.c");
    let directory = crate::target_dir().join("tests");
    fs::create_dir_all(&directory)?;
    // Test binaries may run side by side: each compiles under its own name and renames.
    let built = directory.join(format!("forgetful-{}.so", std::process::id()));
    let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(&built)
        .arg(&source)
        .arg("-lpthread")
        .output()
        .context("run the C compiler `cc`; the forgetful disk needs one")?;
    if !output.status.success() {
        std::io::stderr().write_all(&output.stderr)?;
        bail!("{} does not compile", source.display());
    }
    let library = directory.join("forgetful.so");
    fs::rename(&built, &library)?;
    Ok(library)
}

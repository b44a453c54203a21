//! The lives of one seed: a broker that works until it dies or is done, on a disk that fails, and the auditor after each.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    Fault, audit,
    client::Memory,
    journal::{Counts, Followed, Journal, Seen},
    life::{Life, SimClock, TIMERS},
    reader,
    schedule::Schedule,
    tasks::{Role, Tasks},
    truth::Truth,
};
use crate::{
    clock::SharedClock,
    shard::{self, Shard},
    storage::{
        self,
        sim::{Mutant, SimDisk},
    },
    threads::{Running, Threads as _},
};

/// Lives of a broker.
const LIVES: u64 = 3;
/// Clients that produce.
const CLIENTS: u64 = 3;
/// Bytes that a flipped bit in the last group may take away, beside that group: what else its frames hold.
const SLACK_BYTES: usize = 8 << 10;

/// Operations near which a process dies, and how many of them a life has, about.
const OPERATIONS: [(&str, u64); 5] = [("put", 12), ("put", 12), ("delete", 8), ("create", 4), ("sync names of", 6)];
/// It dies within so many steps of one.
const TRIGGERED_WITHIN: u64 = 24;

/// How a world ended.
pub(super) struct Ended {
    pub(super) result: Result<Counts, Fault>,
    pub(super) log: String,
}

struct World {
    schedule: Schedule,
    disk: SimDisk,
    clock: Arc<SimClock>,
    journal: Arc<Mutex<Journal>>,
    memories: Vec<Arc<Mutex<Memory>>>,
    storage: storage::Config,
    /// Something was made to fail in this life.
    faulted: Arc<AtomicBool>,
    /// What happens near an operation.
    trigger: Arc<Mutex<Option<Trigger>>>,
    /// The log as the last audit found it.
    rows: Vec<(u64, Seen)>,
}

/// Something that happens a few steps behind an operation.
struct Trigger {
    operation: &'static str,
    /// Operations of that kind before it.
    left: u64,
    event: Box<dyn FnOnce() + Send>,
}

/// A broker and what runs in it.
struct Alive {
    life: Life,
    workers: Vec<Box<dyn Running>>,
}

/// Runs a seed.
pub(super) fn run(seed: u64) -> Ended {
    let schedule = Schedule::new(seed);
    let log = schedule.clone();
    let result = catch_unwind(AssertUnwindSafe(|| World::new(seed, schedule).run()));
    let result = result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default())
    });
    Ended { result, log: log.log() }
}

impl World {
    fn new(seed: u64, schedule: Schedule) -> Self {
        let disk = SimDisk::new(seed, Mutant::None);
        let trigger = Arc::<Mutex<Option<Trigger>>>::default();
        let (stops, triggered) = (schedule.clone(), Arc::clone(&trigger));
        disk.before(move |operation, about| {
            stops.note(format_args!("{operation} {about}"));
            let mut waiting = triggered.lock().unwrap();
            if let Some(trigger) = waiting.as_mut().filter(|trigger| trigger.operation == operation) {
                trigger.left = trigger.left.saturating_sub(1);
                if trigger.left == 0
                    && let Some(Trigger { event, .. }) = waiting.take()
                {
                    stops.after(stops.below(TRIGGERED_WITHIN), event);
                }
            }
            drop(waiting);
            stops.pause(operation);
        });
        let clock = Arc::new(SimClock { schedule: schedule.clone(), skew: Mutex::new(0) });
        let of = |choices: &[usize]| choices[usize::try_from(schedule.below(choices.len() as u64)).unwrap()];
        let storage = storage::Config {
            wal_file_bytes: 64 << 10,
            wal_files_full_max: of(&[0, 1, 1, 2]),
            tail_bytes: of(&[1 << 10, 8 << 10, 40 << 10]),
            group_bytes_max: of(&[2 << 10, 8 << 10, 32 << 10]),
            ..storage::Config::new("/data")
        };
        let memories = (0..CLIENTS).map(|number| Arc::new(Mutex::new(Memory::new(number)))).collect();
        let (journal, faulted, rows) = Default::default();
        Self { schedule, disk, clock, journal, memories, storage, faulted, trigger, rows }
    }

    fn run(mut self) -> Result<Counts, Fault> {
        for number in 0..LIVES {
            self.schedule.note(format_args!("life {number}"));
            self.live()?;
            self.audit()?;
        }
        if self.schedule.below(3) == 0 {
            self.flip()?;
        }
        Ok(self.journal.lock().unwrap().counts)
    }

    fn below(&self, bound: u64) -> u64 {
        self.schedule.below(bound)
    }

    fn open(&self) -> Result<Shard, Fault> {
        let retention_every = Duration::from_millis(100);
        let config = shard::Config { samples_max: 64, retention_every, ..shard::Config::default() };
        let clock: SharedClock = Arc::<SimClock>::clone(&self.clock);
        let opened = Shard::open(config, self.storage.clone(), Arc::new(self.disk.clone()), clock);
        opened.map_err(|error| error.to_string())
    }

    fn begin(&self, killed: &Arc<AtomicBool>, tasks: &Tasks) -> Result<Alive, Fault> {
        let shard = self.open()?;
        let clock: SharedClock = Arc::<SimClock>::clone(&self.clock);
        let life = Life::new(
            &self.schedule,
            &clock,
            tasks.clone(),
            shard,
            &self.journal,
            [Arc::clone(killed), Arc::clone(&self.faulted)],
        )?;
        Ok(Alive { life, workers: tasks.start(|| TIMERS.enter()) })
    }

    /// One life, with what happens to it.
    fn live(&mut self) -> Result<(), Fault> {
        let (killed, tasks) = (Arc::new(AtomicBool::new(false)), Tasks::new(self.schedule.clone()));
        self.faulted.store(false, Ordering::Release);
        self.plan(&killed, &tasks);
        let began = self.begin(&killed, &tasks);
        let ended = match began {
            Ok(alive) => self.work(alive, &killed),
            Err(_) if killed.load(Ordering::Acquire) => {
                self.journal.lock().unwrap().counts.kills_while_opening += 1;
                Ok(())
            }
            Err(_) if self.faulted.load(Ordering::Acquire) => Ok(()),
            Err(fault) => Err(format!("cannot start: {fault}")),
        };
        ended?;
        self.schedule.calm();
        *self.trigger.lock().unwrap() = None;
        self.quiet()?;
        self.journal.lock().unwrap().counts.kills += u64::from(killed.load(Ordering::Acquire));
        if self.below(3) == 0 {
            self.schedule.note(format_args!("the page cache stays"));
            self.disk.kill_process();
        } else {
            self.schedule.note(format_args!("the power goes"));
            self.disk.power_cut();
        }
        Ok(())
    }

    /// What the seed has in store.
    fn plan(&self, killed: &Arc<AtomicBool>, tasks: &Tasks) {
        let schedule = &self.schedule;
        if self.below(4) > 0 {
            let (killed, tasks, disk, notes) = (Arc::clone(killed), tasks.clone(), self.disk.clone(), schedule.clone());
            let event = move || {
                notes.note(format_args!("the process dies"));
                killed.store(true, Ordering::Release);
                disk.stop();
                tasks.stop();
            };
            match self.below(5) {
                0 => schedule.after(self.below(150), event),
                1 | 2 => {
                    let (operation, bound) = OPERATIONS[usize::try_from(self.below(5)).unwrap()];
                    let trigger = Trigger { operation, left: 1 + self.below(bound), event: Box::new(event) };
                    *self.trigger.lock().unwrap() = Some(trigger);
                }
                _ => schedule.after(self.below(6_000), event),
            }
        }
        let fault = |steps: u64, name: &'static str, what: Box<dyn FnOnce(&SimDisk) + Send>| {
            let (disk, notes, faulted) = (self.disk.clone(), schedule.clone(), Arc::clone(&self.faulted));
            schedule.after(self.below(steps), move || {
                notes.note(format_args!("{name}"));
                faulted.store(true, Ordering::Release);
                what(&disk);
            });
        };
        if self.below(8) == 0 {
            fault(4_000, "syncs fail from now on", Box::new(|disk| disk.fail_syncs(true)));
        }
        if self.below(4) == 0 {
            let count = 1 + u32::try_from(self.below(2)).unwrap();
            fault(5_000, "the object store fails", Box::new(move |disk| disk.fail_objects(count)));
        }
        if self.below(8) == 0 {
            let free = self.below(120_000);
            fault(3_000, "the disk fills up", Box::new(move |disk| disk.limit_free_bytes(Some(free))));
            let (disk, after) = (self.disk.clone(), 3_000 + self.below(2_000));
            schedule.after(after, move || disk.limit_free_bytes(None));
        }
        for _ in 0..self.below(4) {
            let (clock, to) = (Arc::clone(&self.clock), i64::try_from(self.below(1_200_000)).unwrap() - 600_000);
            schedule.after(self.below(4_000), move || *clock.skew.lock().unwrap() = to);
        }
    }

    /// Clients, readers and a swapper at work, until all is done or the process dies.
    fn work(&self, alive: Alive, killed: &AtomicBool) -> Result<(), Fault> {
        let life = &alive.life;
        for memory in &self.memories {
            let (keep, began, batches) = (Arc::clone(memory), memory.lock().unwrap().clone(), 8 + self.below(30));
            life.act("client".to_owned(), began.run(life.clone(), batches, keep));
        }
        let swaps = self.below(4);
        life.act("swapper".to_owned(), life.clone().swap(swaps));
        self.subscribe(life);
        let worked = self.schedule.idle().and_then(|()| self.settled(life, killed));
        let graceful = worked.is_ok() && !killed.load(Ordering::Acquire) && self.below(2) == 0;
        self.end(alive, graceful);
        worked
    }

    /// All subscriptions of the journal go on, and sometimes there is a new one.
    fn subscribe(&self, life: &Life) {
        let patterns = [(">", None), ("in/*", None), ("raw/0", None), ("in/0", Some("k2")), ("raw/0", Some("k0"))];
        let count = {
            let mut journal = life.journal();
            for _ in 0..1 + self.below(2) {
                let (pattern, key) = patterns[usize::try_from(self.below(5)).unwrap()];
                let from_lsn = self.below(life.shard.reader().end() + 1);
                let (pattern, key) = (pattern.to_owned(), key.map(str::to_owned));
                journal.followed.push(Followed { pattern, key, from_lsn, next_lsn: from_lsn, seen: Vec::new() });
            }
            journal.followed.len()
        };
        for number in 0..count {
            life.tasks.spawn(format!("reader {number}"), Role::Server, reader::follow(life.clone(), number));
        }
    }

    /// What must be so when nobody has anything left to do.
    fn settled(&self, life: &Life, killed: &AtomicBool) -> Result<(), Fault> {
        if let Some(fault) = life.journal().fault.clone() {
            return Err(fault);
        }
        if killed.load(Ordering::Acquire) {
            return Ok(());
        }
        if let Some(failed) = life.shard.failed() {
            life.journal().counts.failed_logs += 1;
            let faulted = self.faulted.load(Ordering::Acquire);
            return if faulted { Ok(()) } else { Err(format!("the log failed for no reason: {failed}")) };
        }
        let unfinished = life.tasks.unfinished();
        if !unfinished.is_empty() {
            return Err(format!("all is quiet, and these wait: {}", unfinished.join(", ")));
        }
        let end = life.shard.reader().end();
        for (number, followed) in life.journal().followed.iter().enumerate() {
            if followed.next_lsn != end {
                return Err(format!("subscription {number} stands at {}, the log ends at {end}", followed.next_lsn));
            }
        }
        Ok(())
    }

    fn end(&self, Alive { life, workers }: Alive, graceful: bool) {
        if graceful {
            let shard = life.shard.clone();
            life.act("close".to_owned(), async move { shard.close().await });
            // What is wrong then shows in the audit.
            drop(self.schedule.idle());
        } else {
            self.disk.stop();
        }
        life.tasks.stop();
        workers.into_iter().for_each(|worker| drop(worker.join()));
        life.tasks.clear();
        drop(life);
    }

    /// All threads of a life have ended.
    fn quiet(&self) -> Result<(), Fault> {
        self.schedule.idle()?;
        let alive = self.schedule.alive();
        if alive.is_empty() { Ok(()) } else { Err(format!("the broker has ended, its threads have not: {alive:?}")) }
    }

    /// A start without faults, and the auditor's questions.
    fn audit(&mut self) -> Result<(), Fault> {
        self.schedule.note(format_args!("audit"));
        self.faulted.store(false, Ordering::Release);
        let (killed, tasks) = (Arc::new(AtomicBool::new(false)), Tasks::new(self.schedule.clone()));
        let alive = self.begin(&killed, &tasks).map_err(|fault| format!("cannot start: {fault}"))?;
        let life = alive.life.clone();
        let asked = self.ask(&alive.life, async move { audit::audit(&life).await });
        let asked = asked.and_then(|rows| {
            self.at_rest(&alive.life)?;
            Ok(rows)
        });
        let graceful = asked.is_ok();
        self.end(alive, graceful);
        self.rows = asked?;
        self.quiet()?;
        self.disk.power_cut();
        Ok(())
    }

    /// Runs a question as a task, until all is quiet.
    fn ask<T: Send + 'static>(
        &self,
        life: &Life,
        question: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<T, Fault> {
        let answer = Arc::new(Mutex::new(None));
        let told = Arc::clone(&answer);
        life.act("question".to_owned(), async move {
            let answer = question.await;
            *told.lock().unwrap() = Some(answer);
        });
        self.schedule.idle()?;
        let answer = answer.lock().unwrap().take();
        answer.unwrap_or_else(|| Err("a question was never answered".to_owned()))
    }

    /// One bit of what lies on the disk is another: what is told is the truth all the same, or nothing is told. Of the WAL's
    /// last group a flipped bit cannot be told from a torn write, so that it may be gone.
    fn flip(&mut self) -> Result<(), Fault> {
        let files = self.disk.files(Path::new("/data/wal"));
        let objects = self.disk.object_names();
        let at = usize::try_from(self.below((files.len() + objects.len()) as u64)).unwrap();
        let (place, bit) = (self.schedule.below(u64::MAX), self.below(8));
        let flip = move |bytes: &mut Vec<u8>| {
            if !bytes.is_empty() {
                let at = usize::try_from(place % bytes.len() as u64).unwrap();
                bytes[at] ^= 1 << bit;
            }
        };
        let in_wal = at < files.len();
        if in_wal {
            self.disk.edit(&files[at], flip);
        } else {
            self.disk.edit_object(&objects[at - files.len()], flip);
        }
        self.schedule.note(format_args!("a bit flips"));
        self.faulted.store(true, Ordering::Release);
        let (killed, tasks) = (Arc::new(AtomicBool::new(false)), Tasks::new(self.schedule.clone()));
        let Ok(alive) = self.begin(&killed, &tasks) else {
            self.journal.lock().unwrap().counts.refused_flips += 1;
            return self.quiet();
        };
        let life = alive.life.clone();
        let read = self.ask(&alive.life, async move {
            let Ok(truth) = Truth::read(&life).await else { return Ok(None) };
            let scan = reader::read(&life, ">", None, reader::at(0)).await;
            if scan.is_ok_and(|(seen, _)| seen != truth.shown(">", None, 0, truth.end)) {
                return Err("behind a flipped bit a scan is not the log".to_owned());
            }
            Ok(Some(truth.rows))
        });
        self.end(alive, true);
        self.quiet()?;
        let Some(rows) = read? else {
            self.journal.lock().unwrap().counts.refused_flips += 1;
            return Ok(());
        };
        let lost = self.rows.get(rows.len()..).unwrap_or_default();
        let lost_bytes: usize = lost.iter().map(|(_, seen)| seen.value.len()).sum();
        let bearable = if in_wal { self.storage.group_bytes_max + SLACK_BYTES } else { 0 };
        if self.rows.starts_with(&rows) && lost_bytes <= bearable {
            return Ok(());
        }
        Err(format!("a flipped bit left {} of {} records, {lost_bytes} bytes are gone", rows.len(), self.rows.len()))
    }

    fn at_rest(&self, life: &Life) -> Result<(), Fault> {
        let objects = self.disk.object_names();
        let manifests: Vec<&String> = objects.iter().filter(|name| name.starts_with("manifest/")).collect();
        let Some(manifest) = manifests.last() else { return Ok(()) };
        let manifest = self.disk.bytes_of_object(manifest);
        let files = self.disk.files(Path::new("/data/wal")).len();
        let segments = audit::at_rest(life, &objects, &manifest, files, self.storage.wal_files_full_max)?;
        life.journal().counts.segments += segments;
        Ok(())
    }
}

//! Power cuts: a random workload on a disk that forgets, and a checker that replays what is left against a plain model.
//!
//! Checked after every restart: no acked frame is lost or changed (promise 1), offsets and key versions are dense
//! (promise 2), every stored batch's conditions hold at its place in the log and a producer's sequence is stored once
//! (promise 3), every batch is there whole or not at all (promise 4). Meanwhile topics are truncated, cut to a size, and segments
//! dropped: only records below a low offset may be gone, a low offset that was told never goes back, versions go on, what the
//! manifest names is there and nothing else is. The same checker must catch a disk that lies.

mod model;

use std::collections::HashMap;

use self::model::{Model, head_version, may_be_gone};
use super::*;
use crate::{
    shard::retention::Keeper,
    storage::sim::{Mutant, SimDisk},
};

/// What a batch was, by the number that its records carry.
#[derive(Debug, Clone)]
struct Sent {
    records: usize,
    conditions: Vec<Condition>,
    producer: Option<ProducerStamp>,
    acked: Option<Arc<Appended>>,
}

struct Crasher {
    random: u64,
    disk: SimDisk,
    clock: Arc<TestClock>,
    sent: Vec<Sent>,
    sequence: u64,
    epoch: u32,
    /// Highest acked generation.
    generation: u64,
    /// Highest version told in a conflict, by topic and key.
    told: HashMap<(String, Bytes), u64>,
    /// Highest low offset told, by topic.
    lows: HashMap<String, u64>,
    /// Batches have producers: their results hold segments for longer than a run.
    producers: bool,
    runtime: tokio::runtime::Runtime,
    seen: Seen,
}

/// What the runs came across: a checker that meets nothing finds nothing.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    acked: usize,
    unacked_but_stored: usize,
    conflicts: usize,
    retries: usize,
    segments: usize,
    checkpoints: usize,
    cuts_while_opening: usize,
    truncations: usize,
    segments_dropped: usize,
    batches_gone: usize,
}

type Fault = String;

impl Crasher {
    fn new(seed: u64, mutant: Mutant) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let clock = Arc::new(TestClock::default());
        clock.set_ms(1_000_000);
        Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            disk: SimDisk::new(seed, mutant),
            clock,
            sent: Vec::new(),
            sequence: 0,
            epoch: 0,
            generation: 0,
            told: HashMap::new(),
            lows: HashMap::new(),
            producers: seed.is_multiple_of(2),
            runtime,
            seen: Seen::default(),
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    /// Opens the shard; the power may go meanwhile.
    fn open(&mut self) -> Result<Shard, Fault> {
        loop {
            let storage = storage::Config {
                wal_file_bytes: 64 << 10,
                wal_files_full_max: 1,
                tail_bytes: 8 << 10,
                group_bytes_max: 16 << 10,
                ..storage::Config::new("/data")
            };
            let config = Config { samples_max: 64, ..Config::default() };
            let clock: SharedClock = Arc::<TestClock>::clone(&self.clock);
            match Shard::open(config, storage, Arc::new(self.disk.clone()), clock) {
                Ok(shard) => return Ok(shard),
                Err(_) if self.disk.is_dead() => {
                    self.seen.cuts_while_opening += 1;
                    self.disk.power_cut();
                }
                Err(error) => return Err(format!("cannot start: {error}")),
            }
        }
    }

    /// One life of a broker: works until the power goes, then everything is checked.
    fn life(&mut self) -> Result<(), Fault> {
        if self.below(4) == 0 {
            let cut = 1 + self.below(40);
            self.disk.cut_power_after(cut);
        }
        let shard = self.open()?;
        let tenant = shard.tenant("default").map_err(|error| error.to_string());
        let cut = 1 + self.below(120);
        self.disk.cut_power_after(cut);
        if let Ok(tenant) = tenant {
            self.work(&shard, tenant)?;
        }
        drop(shard);
        // A process that dies for itself leaves the page cache; then the power goes all the same, a start later.
        if self.below(4) == 0 {
            self.disk.kill_process();
            drop(self.open()?);
        }
        self.disk.power_cut();
        let shard = self.open()?;
        let checked = self.check(&shard);
        self.runtime.block_on(shard.close());
        checked?;
        // With all threads at rest.
        let (named, there) = (shard.core.log.segments().0, self.segments());
        if named == there { Ok(()) } else { Err(format!("the manifest names {named} segments, {there} are there")) }
    }

    fn segments(&self) -> usize {
        self.disk.object_names().iter().filter(|name| name.starts_with("seg/")).count()
    }

    fn work(&mut self, shard: &Shard, tenant: u32) -> Result<(), Fault> {
        let mut tickets = Vec::new();
        let sized = RetentionRule {
            topics: vec![TopicPattern::parse("t/*").unwrap()],
            except: vec![TopicPattern::parse("t/0").unwrap()],
            age: None,
            bytes: Some(20_000 + self.below(100_000)),
        };
        shard.set_retention(tenant, if self.below(2) == 0 { vec![sized] } else { Vec::new() });
        let mut keeper = Keeper::new(Arc::clone(&shard.core));
        for _ in 0..300 {
            let now_ms = 1_000_000 + self.below(1_000_000);
            self.clock.set_ms(now_ms);
            let done = match self.below(20) {
                0 => self.activate(shard, tenant),
                1 => self.retry(shard, tenant)?,
                2 => self.truncate(shard, tenant)?,
                // It fails with the disk only: what follows finds that out.
                3 => self.runtime.block_on(keeper.look()).is_ok() || !self.disk.is_dead(),
                _ => self.produce(shard, tenant, &mut tickets),
            };
            let wait = self.below(3) == 0;
            if wait || !done {
                for (at, ticket) in tickets.drain(..) {
                    if let Ok(acked) = self.runtime.block_on(Ticket::durable(ticket)) {
                        self.sent[at].acked = Some(acked);
                    }
                }
            }
            if !done {
                break;
            }
        }
        self.seen.segments_dropped += shard.retention_stats().segments_dropped as usize;
        Ok(())
    }

    /// `false` if the log takes nothing more.
    fn truncate(&mut self, shard: &Shard, tenant: u32) -> Result<bool, Fault> {
        let name = TopicName::parse(&format!("t/{}", self.below(6))).unwrap();
        let Some(topic) = shard.topic(tenant, name.as_str()) else { return Ok(true) };
        // Mostly a good part of it, so that whole segments go.
        let before = topic.next_offset - self.below(topic.next_offset / 3 + 1);
        match self.runtime.block_on(shard.truncate(tenant, &name, before)) {
            Ok(done) if done.topic.low_offset < before => Err(format!("{name} was not cut to {before}: {done:?}")),
            Ok(done) => {
                let low = self.lows.entry(name.as_str().to_owned()).or_default();
                *low = done.topic.low_offset.max(*low);
                self.seen.truncations += 1;
                Ok(true)
            }
            Err(TruncateError::Failed(_) | TruncateError::Refused(Refusal::Failed(_))) => Ok(false),
            Err(other) => Err(format!("{name} cannot be cut to {before}: {other}")),
        }
    }

    /// `false` if the log takes nothing more.
    fn activate(&mut self, shard: &Shard, tenant: u32) -> bool {
        let Ok(ticket) = shard.activate(tenant, 0, Bytes::from_static(b"{}")) else { return false };
        if self.below(2) == 0
            && let Ok(activated) = self.runtime.block_on(ticket.durable())
        {
            self.generation = self.generation.max(activated.generation);
        }
        true
    }

    fn produce(&mut self, shard: &Shard, tenant: u32, tickets: &mut Vec<(usize, Ticket)>) -> bool {
        let number = self.sent.len();
        let mut request = self.batch(tenant, number);
        request.outcome.generation = shard.live_generation(tenant);
        let sent = Sent {
            records: request.batch.body.len() as usize,
            conditions: request.conditions.clone(),
            producer: request.producer,
            acked: None,
        };
        match shard.append(request) {
            Ok(ticket) => {
                self.sent.push(sent);
                tickets.push((number, ticket));
                true
            }
            Err(Refusal::Conflict { topic, key, version, wait, .. }) => {
                if self.runtime.block_on(wait.durable()).is_ok() {
                    let told = self.told.entry((topic.as_str().to_owned(), key)).or_default();
                    *told = version.max(*told);
                    self.seen.conflicts += 1;
                }
                true
            }
            Err(Refusal::Failed(_)) => false,
            Err(other) => panic!("{other}"),
        }
    }

    fn batch(&mut self, tenant: u32, number: usize) -> Append {
        let records = 1 + self.below(5);
        let mut content = Vec::new();
        for index in 0..records {
            let topic = format!("t/{}", self.below(6));
            let key = format!("k{}", self.below(4));
            let padding = self.below(1500) as usize;
            content.push((topic, key, format!("{number}/{index}/{records}/{}", "x".repeat(padding))));
        }
        let borrowed: Vec<_> =
            content.iter().map(|(topic, key, value)| (topic.as_str(), key.as_str(), value.as_str())).collect();
        let mut request = batch(tenant, &borrowed);
        if self.below(3) == 0 {
            let expect = match self.below(4) {
                0 => Expect::Absent,
                _ => Expect::Version(self.below(12)),
            };
            request.conditions = vec![condition(&content[0].0, &content[0].1, expect)];
        }
        if self.producers && self.below(3) == 0 {
            if self.below(30) == 0 {
                (self.epoch, self.sequence) = (self.epoch + 1, 0);
            }
            request.producer = stamp(self.epoch, self.sequence);
            self.sequence += 1;
        }
        request
    }

    /// Sends an acked batch of the producer's epoch again: the same answer must come.
    fn retry(&mut self, shard: &Shard, tenant: u32) -> Result<bool, Fault> {
        let known = self.sent.iter().rev().find_map(|sent| Some((sent.producer?, sent.acked.clone()?)));
        let Some((stamp, acked)) = known.filter(|(stamp, _)| stamp.epoch == self.epoch) else { return Ok(true) };
        match shard.known(tenant, stamp) {
            Ok(Some(ticket)) => match self.runtime.block_on(ticket.durable()) {
                Ok(again) if *again == (Appended { duplicate: true, ..Appended::clone(&acked) }) => {
                    self.seen.retries += 1;
                    Ok(true)
                }
                Ok(again) => Err(format!("a retry got {again:?}, the first try {acked:?}")),
                Err(_) => Ok(true),
            },
            Ok(None) => Err(format!("an acked sequence {} is not known", stamp.sequence)),
            Err(refusal) => Err(format!("an acked sequence is refused: {refusal}")),
        }
    }

    fn check(&mut self, shard: &Shard) -> Result<(), Fault> {
        let model = self.model(shard)?;
        for (number, sent) in self.sent.iter().enumerate() {
            if let Some(acked) = &sent.acked {
                let Some(stored) = model.batches.get(&number) else {
                    may_be_gone(shard, acked).map_err(|what| format!("acked batch {number} is lost: {what}"))?;
                    self.seen.batches_gone += 1;
                    continue;
                };
                if *stored != **acked {
                    return Err(format!("batch {number} was acked as {acked:?} and is {stored:?}"));
                }
            }
        }
        for ((topic, key), told) in &self.told {
            let stands = head_version(shard, topic, key);
            if stands < *told {
                return Err(format!("a conflict told of version {told}, {stands} is left"));
            }
        }
        for ((topic, key), version) in model.versions.iter().filter(|((topic, _), _)| !topic.starts_with('$')) {
            let stands = head_version(shard, topic, key);
            if stands != *version && !(stands > *version && model.skipped.contains(topic)) {
                return Err(format!("the head of a key of {topic} is at {stands}, its last record at {version}"));
            }
        }
        for (topic, told) in &self.lows {
            let stands = shard.topic(1, topic).map_or(0, |topic| topic.low_offset);
            if stands < *told {
                return Err(format!("{topic} was cut to {told} and begins at {stands}"));
            }
        }
        let objects = self.disk.object_names();
        let of = |dir: &str| objects.iter().filter(|name| name.starts_with(dir)).count();
        self.seen.segments += of("seg/");
        self.seen.checkpoints += of("checkpoint/");
        self.seen.acked += self.sent.iter().filter(|sent| sent.acked.is_some()).count();
        self.seen.unacked_but_stored += model.batches.keys().filter(|&&at| self.sent[at].acked.is_none()).count();
        let live = shard.live_generation(1);
        if live < self.generation {
            return Err(format!("generation {} was acked, {live} is live", self.generation));
        }
        self.generation = live;
        for topic in shard.topics(1, None, false, 100) {
            let next = model.offsets.get(&topic.id).copied().unwrap_or_default();
            if next != topic.next_offset && topic.low_offset < topic.next_offset {
                return Err(format!("{} goes on at {}, {next} records are there", topic.name, topic.next_offset));
            }
        }
        Ok(())
    }

    /// Reads the whole log and checks each frame against what came before it.
    fn model(&self, shard: &Shard) -> Result<Model, Fault> {
        let mut model = Model::default();
        let mut lsn = 0;
        while lsn < shard.reader().end() {
            let run = self.runtime.block_on(async {
                let read = shard.core.log.read(lsn, 10_000, &|_| true);
                read.map_err(|error| error.to_string())
            })?;
            for frame in &run.frames {
                model.take(&self.sent, shard, frame)?;
            }
            lsn = run.next_lsn;
        }
        Ok(model)
    }
}

fn run(seed: u64, mutant: Mutant) -> Result<Seen, Fault> {
    let mut crasher = Crasher::new(seed, mutant);
    for _ in 0..4 {
        crasher.life()?;
    }
    Ok(crasher.seen)
}

#[test]
fn power_cuts_at_any_change_break_no_promise() {
    let mut all = Vec::new();
    for seed in 0..400 {
        match run(seed, Mutant::None) {
            Ok(seen) => all.push(seen),
            Err(fault) => panic!("seed {seed}: {fault}"),
        }
    }
    let least = |what: &str, of: fn(&Seen) -> usize, least: usize| {
        let sum: usize = all.iter().map(of).sum();
        assert!(sum >= least, "the runs came across {sum} {what}, too few to prove anything");
    };
    least("acked batches", |seen| seen.acked, 10_000);
    least("batches stored and never acked", |seen| seen.unacked_but_stored, 100);
    least("conflicts", |seen| seen.conflicts, 2_000);
    least("retries", |seen| seen.retries, 300);
    least("segments", |seen| seen.segments, 200);
    least("checkpoints", |seen| seen.checkpoints, 80);
    least("cuts while a broker starts", |seen| seen.cuts_while_opening, 50);
    least("truncations", |seen| seen.truncations, 500);
    least("segments dropped", |seen| seen.segments_dropped, 50);
    least("acked batches that are gone", |seen| seen.batches_gone, 500);
}

#[test]
fn an_ack_before_fdatasync_is_caught() {
    let caught = (0..40).filter(|&seed| run(seed, Mutant::SyncLies).is_err()).count();
    assert!(caught >= 30, "only {caught} of 40 runs noticed that nothing was synced");
}

#[test]
fn a_file_whose_name_was_never_synced_is_caught() {
    let caught = (0..40).filter(|&seed| run(seed, Mutant::SyncDirLies).is_err()).count();
    assert!(caught >= 10, "only {caught} of 40 runs noticed that no name was synced");
}

//! The thread that looks at what the rules say: by age, by size, and at what storage can drop.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use tidegate_protocol::topic::TopicName;
use tokio::sync::Notify;

use super::{
    Cause, RetentionRule,
    walk::{Cuts, Standing, Until},
};
use crate::{
    catalog::{self, Low},
    shard::{Core, Refusal, ShardError},
    storage::{Reclaim, StorageError},
    threads::{self, Running},
};

/// An age is looked at after this part of it.
const AGE_PARTS: i64 = 64;
/// And after this time at the latest.
const AGE_EVERY_MAX_MS: i64 = 3_600_000;
/// A topic is cut to its size when it is over by this part of it.
const SIZE_PARTS: u64 = 16;

/// What is kept of one topic.
#[derive(Debug, Clone, Copy)]
struct Kept {
    age_ms: Option<i64>,
    bytes: Option<u64>,
}

/// How far the log was walked for an age.
#[derive(Debug, Clone, Copy, Default)]
struct Age {
    walked_lsn: u64,
    /// Broker time of the next look.
    due_ms: i64,
}

/// One look after the other.
#[derive(Debug)]
pub(in crate::shard) struct Keeper {
    core: Arc<Core>,
    /// Of the rules that `topics` was made of.
    changes: u64,
    /// Topics of which not everything is kept.
    topics: HashMap<u64, Kept>,
    /// Topics before this counter were matched.
    next_counter: u64,
    /// By age in milliseconds.
    ages: BTreeMap<i64, Age>,
    /// Whether the store may still be asked to drop: after a failure only a start knows what it holds.
    drops: bool,
}

/// Why a look ended early.
#[derive(Debug, thiserror::Error)]
pub(in crate::shard) enum Fault {
    #[error(transparent)]
    Shard(#[from] ShardError),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<StorageError> for Fault {
    fn from(error: StorageError) -> Self {
        Self::Shard(error.into())
    }
}

impl Keeper {
    pub(in crate::shard) fn new(core: Arc<Core>) -> Self {
        let (topics, ages) = Default::default();
        Self { core, changes: 0, topics, next_counter: catalog::FIRST_COUNTER, ages, drops: true }
    }

    /// Looks once. Waits on the disk: for a thread of its own.
    ///
    /// # Errors
    /// If the log takes nothing, or the disk fails. The next look begins anew.
    pub(in crate::shard) async fn look(&mut self) -> Result<(), Fault> {
        let looked = self.look_once().await;
        if looked.is_err() {
            // What was walked may not have been moved.
            self.ages.clear();
        }
        looked
    }

    async fn look_once(&mut self) -> Result<(), Fault> {
        self.match_topics();
        let now_ms = self.core.broker_now_ms();
        let old = self.old(now_ms)?;
        self.core.move_lows(&old, Cause::Age)?.durable().await?;
        let beyond = self.beyond_size()?;
        self.core.move_lows(&beyond, Cause::Size)?.durable().await?;
        // Readers are held to what is durable before anything is dropped.
        drop(self.core.settled());
        self.reclaim(now_ms)
    }

    /// Finds the rule of each topic that is new, or of all if the rules are.
    fn match_topics(&mut self) {
        let (changes, rules) = {
            let rules = self.core.rules();
            (rules.changes, rules.by_tenant.clone())
        };
        if changes != self.changes {
            self.topics.clear();
            self.ages.clear();
            (self.changes, self.next_counter) = (changes, catalog::FIRST_COUNTER);
        }
        let (shard, end) = {
            let state = self.core.lock();
            (state.shard, catalog::counter_of(state.catalog.next_id(0)))
        };
        let new = if rules.is_empty() { end..end } else { self.next_counter..end };
        for counter in new {
            let id = catalog::topic_id(shard, counter);
            let named = self.core.names.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned();
            let kept = named.and_then(|(tenant, name)| kept(rules.get(&tenant)?, &name));
            self.topics.extend(kept.map(|kept| (id, kept)));
        }
        self.next_counter = end;
        for age_ms in self.topics.values().filter_map(|kept| kept.age_ms) {
            self.ages.entry(age_ms).or_default();
        }
    }

    /// Where topics begin without what is too old.
    fn old(&mut self, now_ms: i64) -> Result<Vec<(u64, Low)>, Fault> {
        let mut cuts = Cuts::default();
        for (&age_ms, age) in &mut self.ages {
            if now_ms < age.due_ms {
                continue;
            }
            age.due_ms = now_ms.saturating_add((age_ms / AGE_PARTS).clamp(0, AGE_EVERY_MAX_MS));
            let end = self.core.log.lsn_at_time(now_ms.saturating_sub(age_ms))?;
            let wanted = |id: u64| self.topics.get(&id).is_some_and(|kept| kept.age_ms == Some(age_ms));
            if age.walked_lsn == 0 {
                // At a start, and with new rules: what is gone already need not be walked again.
                let of_age = self.topics.iter().filter(|(_, kept)| kept.age_ms == Some(age_ms));
                let standing = of_age.filter_map(|(&id, _)| self.core.standing(id));
                age.walked_lsn = standing.map(|standing| standing.first_lsn).min().unwrap_or(end);
            }
            let mut lsn = age.walked_lsn.max(self.core.log.first_lsn());
            while lsn < end {
                if self.core.retention.is_stopped() {
                    return Err(ShardError::ShuttingDown.into());
                }
                let found = self.core.log.stamps(lsn, &wanted)?;
                for stamp in found.stamps.iter().filter(|stamp| stamp.next_lsn > lsn && stamp.first_lsn < end) {
                    cuts.take(&self.core, stamp, wanted);
                }
                lsn = found.next_lsn.max(lsn + 1);
            }
            age.walked_lsn = end.max(age.walked_lsn);
        }
        Ok(cuts.lows.into_iter().collect())
    }

    /// Where topics begin without what is beyond their size.
    fn beyond_size(&self) -> Result<Vec<(u64, Low)>, Fault> {
        let mut moves = Vec::new();
        for (&id, kept) in &self.topics {
            let Some((max, Standing { low, bytes, .. })) = kept.bytes.zip(self.core.standing(id)) else { continue };
            if bytes.saturating_sub(low.bytes) <= max.saturating_add(max / SIZE_PARTS) {
                continue;
            }
            let next = self.core.low_at(id, Until::Bytes(bytes.saturating_sub(max)))?;
            if next.offset > low.offset {
                moves.push((id, next));
            }
        }
        Ok(moves)
    }

    /// Drops segments that nobody can read any more.
    fn reclaim(&mut self, now_ms: i64) -> Result<(), Fault> {
        // While all topics are whole, no segment is opened to find that out.
        if !self.drops || self.core.low_changes() == 0 {
            return Ok(());
        }
        let core = &self.core;
        let low_offset = |id: u64| if catalog::is_system(id) { u64::MAX } else { core.lows.low_offset(id) };
        let held = |windows: &[Range<u64>]| {
            let dedup = core.lock().dedup.copy();
            dedup.held(windows, now_ms)
        };
        let stopped = || core.retention.is_stopped();
        let reclaimed = match core.log.reclaim(&Reclaim { low_offset: &low_offset, held: &held, stopped: &stopped }) {
            Ok(reclaimed) => reclaimed,
            Err(error) => {
                self.drops = error.is_full();
                return Err(error.into());
            }
        };
        core.retention.reclaimed(&reclaimed);
        if reclaimed.checkpoint_helps {
            core.log.checkpoint_wanted().notify_one();
        }
        Ok(())
    }
}

/// What the first rule that matches says.
fn kept(rules: &[RetentionRule], name: &TopicName) -> Option<Kept> {
    let rule = rules.iter().find(|rule| rule.matches(name.as_str()))?;
    let age_ms = rule.age.map(|age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
    Some(Kept { age_ms, bytes: rule.bytes })
}

/// The thread. Ends when dropped.
#[derive(Debug)]
pub(in crate::shard) struct Retention {
    core: Arc<Core>,
    stop: Arc<Notify>,
    thread: Mutex<Option<Box<dyn Running>>>,
}

impl Retention {
    /// # Errors
    /// If the system gives no thread.
    pub(in crate::shard) fn start(core: Arc<Core>) -> Result<Self, ShardError> {
        let stop = Arc::new(Notify::new());
        let (stopped, kept) = (Arc::clone(&stop), Arc::clone(&core));
        let threads = Arc::clone(core.log.threads());
        let work = {
            let threads = Arc::clone(&threads);
            move || threads::block_on(&*threads, run(core, &stopped))
        };
        let thread = threads.spawn("shard-retention", Box::new(work));
        let thread = thread.map_err(StorageError::io("start a thread for", "retention"))?;
        Ok(Self { core: kept, stop, thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread; a look under way is given up. Blocking.
    pub(in crate::shard) fn close(&self) {
        self.core.retention.stopped.store(true, Ordering::Relaxed);
        self.stop.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the retention thread has panicked");
        }
    }
}

impl Drop for Retention {
    fn drop(&mut self) {
        self.close();
    }
}

async fn run(core: Arc<Core>, stopped: &Notify) {
    let every: Duration = core.config.retention_every;
    let mut keeper = Keeper::new(Arc::clone(&core));
    loop {
        tokio::select! {
            biased;
            () = stopped.notified() => return,
            () = core.retention_wanted.notified() => {}
            () = core.log.threads().sleep(every) => {}
        }
        let looked = tokio::select! {
            biased;
            () = stopped.notified() => return,
            looked = keeper.look() => looked,
        };
        match looked {
            Ok(()) => {}
            // The shard ends, or the log has said why it takes nothing until a restart.
            Err(_) if core.retention.is_stopped() || core.log.is_over() => return,
            Err(error) => {
                core.retention.failures.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, "retention could not look at everything; it begins anew");
            }
        }
    }
}

//! Bytes of batches between socket and disk: taken as they arrive, given back once they are durable. Waiting for them is what
//! slows a client down: its stream is not read meanwhile.
//!
//! Three levels. A connection's *own* bytes, so that one client waits for itself before it makes others wait. The broker's
//! bytes, *all* of them. And of those the bytes of batches that are still *arriving*, at most three quarters: how long these
//! stay is for clients to say, and the last quarter is for batches that are whole, which leave at the pace of the disk.
//!
//! Batches that are half there must not wait for each other for ever. So each of the two levels that hold such batches has one
//! *seat* beside its bytes: whoever waits takes what comes first, bytes or seat, and who has the seat waits no more at that
//! level. The seat of the broker's level counts at every level. Hence somebody always gets on: the one in the broker's seat
//! waits for its client only; the one in a connection's seat for the broker's level; and a batch that is whole for the disk.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};

/// The broker's bytes.
#[derive(Debug, Clone)]
pub struct Budget {
    all: Arc<Semaphore>,
    bytes_max: u32,
    arriving: Level,
}

/// The bytes of one connection, and the broker's behind them.
#[derive(Debug, Clone)]
pub struct ConnectionBudget {
    own: Level,
    broker: Budget,
    wait_max: Duration,
}

/// Bytes taken for one batch; given back when this is dropped.
#[derive(Debug)]
pub struct Permit {
    own: Held,
    arriving: Held,
    all: Option<OwnedSemaphorePermit>,
    /// How long it may still wait, all its waits together.
    patience: Duration,
}

/// No bytes became free in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a batch of {bytes} bytes waited {waited_ms} ms for room between socket and disk")]
pub struct Overloaded {
    /// Bytes of the batch.
    pub bytes: usize,
    /// How long.
    pub waited_ms: u64,
}

/// A level that holds batches which are still arriving.
#[derive(Debug, Clone)]
struct Level {
    bytes: Arc<Semaphore>,
    bytes_max: u32,
    seat: Arc<Semaphore>,
    /// Batches that wait here.
    waiting: watch::Sender<usize>,
}

/// What one batch has of a level.
#[derive(Debug, Default)]
struct Held {
    bytes: Option<OwnedSemaphorePermit>,
    seat: Option<OwnedSemaphorePermit>,
}

impl Budget {
    /// All bytes free.
    pub fn new(bytes_max: usize) -> Self {
        let bytes_max = capacity(bytes_max);
        let arriving = Level::new(bytes_max / 4 * 3);
        Self { all: Arc::new(Semaphore::new(bytes_max as usize)), bytes_max, arriving }
    }

    /// The budget of a new connection.
    pub fn connection(&self, bytes_max: usize, wait_max: Duration) -> ConnectionBudget {
        ConnectionBudget { own: Level::new(capacity(bytes_max)), broker: self.clone(), wait_max }
    }

    /// Bytes taken now.
    pub fn taken(&self) -> usize {
        (self.bytes_max as usize).saturating_sub(self.all.available_permits())
    }

    /// Waits until every byte was given back: nothing is in flight.
    pub async fn idle(&self) {
        // The semaphore is never closed, so this ends with all permits in hand, which go back at once.
        drop(self.all.acquire_many(self.bytes_max).await);
    }

    async fn take(&self, held: &mut Option<OwnedSemaphorePermit>, bytes: usize) {
        // One batch larger than the whole budget takes all of it, or it could never be read.
        let had = held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let left = self.bytes_max.saturating_sub(u32::try_from(had).unwrap_or(u32::MAX));
        let bytes = capacity_of(bytes, left);
        keep(held, Arc::clone(&self.all).acquire_many_owned(bytes).await.ok());
    }
}

impl ConnectionBudget {
    /// For a batch of which nothing is there yet.
    pub fn permit(&self) -> Permit {
        Permit { own: Held::default(), arriving: Held::default(), all: None, patience: self.wait_max }
    }

    /// Takes bytes of a batch that go on arriving. After an error the permit is of no use any more.
    ///
    /// # Errors
    /// If none became free in time.
    pub async fn take(&self, permit: &mut Permit, bytes: usize) -> Result<(), Overloaded> {
        let patience = permit.patience;
        let begun = Instant::now();
        let taking = async {
            if permit.arriving.seat.is_some() {
                return;
            }
            self.own.take(&mut permit.own, bytes).await;
            self.broker.arriving.take(&mut permit.arriving, bytes).await;
            if permit.arriving.seat.is_none() {
                self.broker.take(&mut permit.all, bytes).await;
            }
        };
        let taken = tokio::time::timeout(patience, taking).await;
        permit.patience = patience.saturating_sub(begun.elapsed());
        taken.map_err(|_| self.overloaded(bytes))
    }

    /// Takes the last bytes of a batch: from now on it leaves at the broker's own pace. After an error the permit is of no use
    /// any more.
    ///
    /// # Errors
    /// If none became free in time.
    pub async fn take_last(&self, permit: &mut Permit, bytes: usize) -> Result<(), Overloaded> {
        let patience = permit.patience;
        let taking = async {
            if permit.arriving.seat.is_none() {
                self.own.take(&mut permit.own, bytes).await;
                self.broker.take(&mut permit.all, bytes).await;
            }
            permit.arriving.bytes = None;
        };
        tokio::time::timeout(patience, taking).await.map_err(|_| self.overloaded(bytes))
    }

    /// Resolves when a batch waits for others that are still arriving, and not before `after`: then one that does not get on
    /// must make way. Cancel-safe.
    pub async fn pressed(&self, after: Duration) {
        tokio::time::sleep(after).await;
        let waiting = &self.broker.arriving.waiting;
        // The sender lives as long as the budget, which is borrowed here.
        drop(waiting.subscribe().wait_for(|waiting| *waiting > 0).await);
    }

    fn overloaded(&self, bytes: usize) -> Overloaded {
        Overloaded { bytes, waited_ms: u64::try_from(self.wait_max.as_millis()).unwrap_or(u64::MAX) }
    }
}

impl Level {
    fn new(bytes_max: u32) -> Self {
        let bytes_max = bytes_max.max(1);
        let (bytes, seat) = (Arc::new(Semaphore::new(bytes_max as usize)), Arc::new(Semaphore::new(1)));
        Self { bytes, bytes_max, seat, waiting: watch::Sender::new(0) }
    }

    /// Takes bytes, or the seat. Does nothing for who has it.
    async fn take(&self, held: &mut Held, bytes: usize) {
        if held.seat.is_some() {
            return;
        }
        let bytes = capacity_of(bytes, self.bytes_max);
        if let Ok(taken) = Arc::clone(&self.bytes).try_acquire_many_owned(bytes) {
            return keep(&mut held.bytes, Some(taken));
        }
        let _waiting = Waiting::new(&self.waiting);
        // Neither semaphore is ever closed.
        tokio::select! {
            biased;
            taken = Arc::clone(&self.bytes).acquire_many_owned(bytes) => keep(&mut held.bytes, taken.ok()),
            seat = Arc::clone(&self.seat).acquire_owned() => held.seat = seat.ok(),
        }
    }
}

/// One of those that wait, until it is dropped.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn new(waiting: &'a watch::Sender<usize>) -> Self {
        waiting.send_modify(|waiting| *waiting += 1);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

fn keep(held: &mut Option<OwnedSemaphorePermit>, more: Option<OwnedSemaphorePermit>) {
    match (held.as_mut(), more) {
        (Some(held), Some(more)) => held.merge(more),
        (None, more) => *held = more,
        (Some(_), None) => {}
    }
}

fn capacity(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX).max(1)
}

fn capacity_of(bytes: usize, max: u32) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(60);

    async fn whole(budget: &ConnectionBudget, bytes: usize) -> Result<Permit, Overloaded> {
        let mut permit = budget.permit();
        budget.take_last(&mut permit, bytes).await.map(|()| permit)
    }

    async fn half(budget: &ConnectionBudget, bytes: usize) -> Result<Permit, Overloaded> {
        let mut permit = budget.permit();
        budget.take(&mut permit, bytes).await.map(|()| permit)
    }

    #[tokio::test]
    async fn a_connection_waits_for_itself_first() {
        let all = Budget::new(100);
        let one = all.connection(40, SOON);
        let other = all.connection(40, LONG);
        let held = whole(&one, 40).await.expect("free");
        let seated = whole(&one, 1).await.expect("the seat");
        let error = whole(&one, 1).await.expect_err("its own is used up");
        assert_eq!((error.bytes, error.waited_ms), (1, 5));
        let also = whole(&other, 40).await.expect("the broker's is not");
        assert_eq!(all.taken(), 81);
        drop((held, seated, also));
        all.idle().await;
        assert_eq!(all.taken(), 0);
    }

    #[tokio::test]
    async fn a_batch_larger_than_the_budget_takes_all_of_it() {
        let all = Budget::new(100);
        let one = all.connection(1_000, LONG);
        let held = whole(&one, 500).await.expect("all of it");
        assert_eq!(all.taken(), 100);
        drop(held);
        let mut held = half(&one, 90).await.expect("as much as there is");
        one.take(&mut held, 400).await.expect("the seat");
        one.take_last(&mut held, 400).await.expect("the seat");
        assert_eq!(all.taken(), 90);
        drop(held);
        assert_eq!(all.taken(), 0);
    }

    #[tokio::test]
    async fn batches_that_arrive_leave_room_for_those_that_are_whole() {
        let all = Budget::new(100);
        let (slow, quick) = (all.connection(100, SOON), all.connection(100, SOON));
        let mut held = vec![half(&slow, 75).await.expect("three quarters")];
        held.push(half(&slow, 20).await.expect("the seat"));
        assert!(half(&quick, 1).await.is_err(), "no more of those");
        drop(whole(&quick, 25).await.expect("the rest is for whole ones"));
        // A batch that has come whole makes room for others that arrive.
        slow.take_last(held.first_mut().expect("the first"), 0).await.expect("whole");
        drop(half(&quick, 25).await.expect("room"));
    }

    #[tokio::test]
    async fn half_batches_do_not_wait_for_each_other_for_ever() {
        let all = Budget::new(100);
        let (one, other) = (all.connection(40, LONG), all.connection(40, LONG));
        // Both connections and the broker are full of halves: each needs as much again.
        let mut tasks = tokio::task::JoinSet::new();
        let begun = Arc::new(tokio::sync::Barrier::new(4));
        for budget in [&one, &one, &other, &other] {
            let (budget, begun) = (budget.clone(), Arc::clone(&begun));
            tasks.spawn(async move {
                let mut permit = half(&budget, 18).await.expect("room");
                begun.wait().await;
                for _ in 0..4 {
                    budget.take(&mut permit, 18).await.expect("somebody gets on");
                    tokio::task::yield_now().await;
                }
                budget.take_last(&mut permit, 18).await.expect("somebody gets on");
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic");
        }
        all.idle().await;
    }

    #[tokio::test]
    async fn waiting_for_what_arrives_is_pressure() {
        let all = Budget::new(100);
        let one = all.connection(300, LONG);
        let _held = [half(&one, 75).await.expect("free"), half(&one, 75).await.expect("the seat")];
        let waiter = tokio::spawn({
            let one = one.clone();
            async move { half(&one, 75).await }
        });
        one.pressed(Duration::ZERO).await;
        waiter.abort();
        assert!(waiter.await.is_err());
        assert_eq!(*all.arriving.waiting.borrow(), 0);
    }
}

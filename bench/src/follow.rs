//! Reading as `tidegate consume --follow` does.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tidegate_client::{Connection, Consumer, ConsumerOptions, Event, Start};

use crate::{
    load::{RECORDS, VALUE_BYTES},
    wall,
};

/// A follower that has nothing before it, and where it stands.
///
/// # Errors
/// If the broker refuses it.
pub async fn at_the_end(connection: &Connection, topic: &str) -> Result<(Consumer, String)> {
    let mut consumer = connection.consumer(ConsumerOptions::new(topic).start(Start::Latest).follow())?;
    while !consumer.at_end() {
        let event = consumer.next_event().await?.context("a follower's read ended")?;
        ensure!(matches!(event, Event::Progress), "records came although nobody wrote");
    }
    let cursor = consumer.cursor().context("a follower without a cursor")?.to_owned();
    Ok((consumer, cursor))
}

/// A follower from some place on.
///
/// # Errors
/// If the connection is closed.
pub fn from(connection: &Connection, topic: &str, start: Start) -> Result<Consumer> {
    Ok(connection.consumer(ConsumerOptions::new(topic).start(start).follow())?)
}

/// Takes so many batches, looking at every value; gives the time from now to the last of them.
///
/// # Errors
/// If the read ends, or something else comes than was sent.
pub async fn take(consumer: &mut Consumer, batches: u64) -> Result<Duration> {
    let start = wall();
    let mut left = batches * u64::from(RECORDS);
    while left > 0 {
        let batch = consumer.next().await?.context("a follower's read ended")?;
        let whole = batch.records().all(|record| record.value.is_some_and(|value| value.len() == VALUE_BYTES));
        ensure!(whole, "a value has another length than was sent");
        left = left.saturating_sub(u64::from(batch.len()));
    }
    Ok(wall() - start)
}

//! Deadlines: no test runs for ever, and none sleeps to wait.

use std::{
    fmt::Display,
    future::Future,
    time::{Duration, Instant},
};

/// Between two looks at something that is about to happen.
pub const LOOK: Duration = Duration::from_millis(10);

/// Runs a test on a runtime of its own and fails it when the time is up. The long tier has ten times the time.
///
/// # Panics
/// If the test panics or does not end in time.
pub fn test(limit: Duration, body: impl Future<Output = ()>) {
    let limit = limit * if count(1, 10) == 10 { 10 } else { 1 };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let ended = runtime.block_on(async { tokio::time::timeout(limit, body).await });
    // Blocking tasks that still wait for a child's output must not hold the process.
    runtime.shutdown_background();
    assert!(ended.is_ok(), "the test did not end within {limit:?}");
}

/// The result of a future, or a failure that says what was waited for.
///
/// # Panics
/// If the time is up.
pub async fn within<T>(limit: Duration, what: impl Display, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {limit:?} for: {what}"),
    }
}

/// Looks again and again until `check` gives a value.
///
/// # Panics
/// If the time is up.
pub async fn until<T>(limit: Duration, what: impl Display, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = check().await {
            return value;
        }
        assert!(Instant::now() < end, "waited {limit:?} for: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// As [`until`], for code that blocks.
///
/// # Panics
/// If the time is up.
pub fn until_blocking<T>(limit: Duration, what: impl Display, mut check: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < end, "waited {limit:?} for: {what}");
        std::thread::sleep(LOOK);
    }
}

/// The count for `cargo verify`, or the larger one where `TIDEGATE_FULL=1` asks for the long tier.
pub fn count(verify: usize, full: usize) -> usize {
    if std::env::var("TIDEGATE_FULL").is_ok_and(|value| value == "1") { full } else { verify }
}

//! What is told before every operation of the simulated disk.

use std::{fmt, sync::Arc};

/// Hears of an operation: its name, and what it is about.
trait Hears: Fn(&'static str, &str) + Send + Sync {}
impl<F: Fn(&'static str, &str) + Send + Sync> Hears for F {}

/// Nobody, or somebody.
#[derive(Clone, Default)]
pub(super) struct Before(Option<Arc<dyn Hears>>);

impl Before {
    pub(super) fn new(hears: impl Fn(&'static str, &str) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hears)))
    }

    pub(super) fn call(&self, operation: &'static str, about: &str) {
        if let Some(hears) = &self.0 {
            hears(operation, about);
        }
    }
}

impl fmt::Debug for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Before")
    }
}

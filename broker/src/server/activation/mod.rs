//! Activation.

mod desired;

pub use desired::{Desired, DesiredError, DesiredSource};

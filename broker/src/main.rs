//! The `tidegate` program: one binary for broker, clients and tools.

use std::process::ExitCode;

/// Freed memory stays at hand: the broker allocates and frees a few large buffers for every batch.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tidegate::cli::main()
}

//! The conformance suite on tokio, with the same scenarios as on every other runtime.
// D4

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lock_conformance::{Runtime, Task};
use lock_tokio::{Client, ConnectError, Settings, Tokio};
use tokio::runtime::{self, Builder};

/// A multi-threaded runtime with this many workers, or a single-threaded one if zero.
struct OnTokio<const WORKERS: usize>(runtime::Runtime);

impl<const WORKERS: usize> Runtime for OnTokio<WORKERS> {
    type Host = Tokio;

    fn new() -> Self {
        let mut builder = match WORKERS {
            0 => Builder::new_current_thread(),
            _ => Builder::new_multi_thread(),
        };
        Self(builder.worker_threads(WORKERS.max(1)).enable_all().build().unwrap())
    }

    fn host(&self) -> Tokio {
        Tokio::new()
    }

    fn connect(&self, settings: Settings) -> Result<Client, ConnectError> {
        lock_tokio::connect_with(settings)
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(future)
    }

    fn spawn(&self, task: Task<Self::Host>) {
        drop(self.0.spawn(task));
    }
}

mod current_thread {
    use super::OnTokio;
    lock_conformance::suite!(OnTokio<0>);
}

mod multi_thread {
    use super::OnTokio;
    lock_conformance::suite!(OnTokio<2>);
}

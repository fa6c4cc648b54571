//! The conformance suite on the executor of `src/host`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lock_conformance::{Runtime, Task};
use lock_examples::host::{Executor, OwnHost};

struct Own(Executor);

impl Runtime for Own {
    type Host = OwnHost;

    fn new() -> Self {
        Self(Executor::new().unwrap())
    }

    fn host(&self) -> OwnHost {
        self.0.host()
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(future)
    }

    fn spawn(&self, task: Task<Self::Host>) {
        self.0.spawn(task);
    }
}

mod own_executor {
    use super::Own;
    lock_conformance::suite!(Own);
}

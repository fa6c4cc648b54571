//! The conformance suite on embassy's executor.

use lock_conformance::Task;
use ports::embassy::{Embassy, Runtime};

struct OnEmbassy(Runtime);

impl lock_conformance::Runtime for OnEmbassy {
    type Host = Embassy;

    fn new() -> Self {
        Self(Runtime::new().expect("a runtime"))
    }

    fn host(&self) -> Embassy {
        self.0.host()
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(future)
    }

    fn spawn(&self, task: Task<Embassy>) {
        self.0.spawn(task);
    }
}

lock_conformance::suite!(OnEmbassy);

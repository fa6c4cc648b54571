//! The conformance suite on compio.

use compio::runtime::Runtime;
use lock_conformance::Task;
use lock_driver::{Client, ConnectError, Settings};
use ports::compio::{Compio, connect};

struct OnCompio(Runtime);

impl lock_conformance::Runtime for OnCompio {
    type Host = Compio;

    fn new() -> Self {
        Self(Runtime::new().expect("a runtime"))
    }

    fn host(&self) -> Compio {
        Compio::default()
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(future)
    }

    fn spawn(&self, task: Task<Compio>) {
        self.0.spawn(task).detach();
    }

    fn connect(&self, settings: Settings) -> Result<Client, ConnectError> {
        connect(settings)
    }
}

lock_conformance::suite!(OnCompio);

//! The conformance suite on the executor of `src/host`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lock_conformance::Runtime;
use lock_examples::host::{Executor, OwnHost};
use lock_proto::driver::{Client, ConnectError, Settings, connect};

struct Own(Executor);

impl Runtime for Own {
    type Host = OwnHost;

    fn new() -> Self {
        Self(Executor::new().unwrap())
    }

    fn host(&self) -> OwnHost {
        self.0.host()
    }

    fn connect(&self, settings: Settings) -> Result<Client, ConnectError> {
        let (client, driver) = connect(self.host(), settings)?;
        self.0.spawn(driver);
        Ok(client)
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(future)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }
}

mod own_executor {
    use super::Own;
    lock_conformance::suite!(Own);
}

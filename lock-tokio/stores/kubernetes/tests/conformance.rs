//! The scenarios that every store passes, on a small API server.

#![allow(clippy::unwrap_used, reason = "tests")]

mod api;

use core::time::Duration;

use api::ApiServer;
use lock_conformance::stores::TestStore;
use lock_kubernetes::LeaseRegister;
use lock_tokio::register::{Config, RegisterError};
use lock_tokio::{Client, ConnectError};

impl TestStore for ApiServer {
    type Register = LeaseRegister;

    const TTL: Duration = Duration::from_secs(3);

    fn new() -> Self {
        Self::default()
    }

    fn make(&self) -> impl FnOnce() -> Result<LeaseRegister, RegisterError> + Send + 'static {
        let server = self.clone();
        // The client lives in the runtime in which it is made.
        move || Ok(LeaseRegister::new(server.client(), "default"))
    }

    fn connect(&self, config: Config) -> Result<Client, ConnectError> {
        lock_tokio::connect_register_with(config, self.make())
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }
}

lock_conformance::store_suite!(ApiServer);

//! The scenarios that every store passes, on a real server. Not in `make test`, which does without NATS.

#![allow(clippy::unwrap_used, reason = "tests")]

mod kit;

use core::time::Duration;

use lock_conformance::stores::TestStore;
use lock_nats::NatsRegister;
use lock_tokio::register::{Config, RegisterError};
use lock_tokio::{Client, ConnectError};
use store_testkit::NatsServer;

struct Bucket(NatsServer);

impl Bucket {
    fn url(&self) -> String {
        format!("{}/locks", self.0.url())
    }
}

impl TestStore for Bucket {
    type Register = NatsRegister;

    fn new() -> Self {
        let server = NatsServer::start();
        Self::block_on(kit::bucket(&server, "locks", Duration::ZERO));
        Self(server)
    }

    fn make(&self) -> impl FnOnce() -> Result<NatsRegister, RegisterError> + Send + 'static {
        let url = self.url();
        move || NatsRegister::from_url(&url)
    }

    fn connect(&self, config: Config) -> Result<Client, ConnectError> {
        lock_nats::connect_with(config, &self.url())
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }
}

lock_conformance::store_suite!(
    #[ignore = "make test-stores"]
    Bucket
);

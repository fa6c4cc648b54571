//! The scenarios that every store passes.

use lock_conformance::stores::TestStore;
use lock_tokio::register::{Config, RegisterError};
use lock_tokio::{Client, ConnectError};
use store_template::{MyStore, Service};

struct Memory(Service);

impl TestStore for Memory {
    type Register = MyStore;

    fn new() -> Self {
        Self(Service::default())
    }

    fn make(&self) -> impl FnOnce() -> Result<Self::Register, RegisterError> + Send + 'static {
        let service = self.0.clone();
        || MyStore::new(service)
    }

    fn connect(&self, config: Config) -> Result<Client, ConnectError> {
        lock_tokio::register::connect_register_with(config, self.make())
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
    }
}

lock_conformance::store_suite!(Memory);

//! The scenarios that every store passes, in memory.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use lock_conformance::stores::TestStore;
use lock_object_store::ObjectRegister;
use lock_tokio::register::{Config, RegisterError};
use lock_tokio::{Client, ConnectError};
use object_store::memory::InMemory;

struct Memory(Arc<InMemory>);

impl TestStore for Memory {
    type Register = ObjectRegister;

    fn new() -> Self {
        Self(Arc::default())
    }

    fn make(&self) -> impl FnOnce() -> Result<ObjectRegister, RegisterError> + Send + 'static {
        let store = self.0.clone();
        || Ok(ObjectRegister::new(store, "locks"))
    }

    fn connect(&self, config: Config) -> Result<Client, ConnectError> {
        lock_tokio::connect_register_with(config, self.make())
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }
}

lock_conformance::store_suite!(Memory);

//! Locks in a folder, on smol and async-std.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lock_conformance::stores::TestStore;
use lock_smol::register::{Config, FileConfig, FileRegister, RegisterError, connect_register_with};
use lock_smol::{Client, ConnectError};

/// Through `connect`, or as a store of one's own.
struct Folder<const OWN: bool>(tempfile::TempDir);

impl<const OWN: bool> TestStore for Folder<OWN> {
    type Register = FileRegister;

    fn new() -> Self {
        Self(lock_testkit::in_memory())
    }

    fn make(&self) -> impl FnOnce() -> Result<Self::Register, RegisterError> + Send + 'static {
        let path = self.0.path().to_owned();
        || FileRegister::open(path).map_err(RegisterError::refused)
    }

    fn connect(&self, config: Config) -> Result<Client, ConnectError> {
        if OWN {
            return connect_register_with(config, self.make());
        }
        let mut settings = FileConfig::new(self.0.path());
        settings.config = config;
        lock_smol::connect_with(settings)
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        smol::block_on(future)
    }
}

mod by_settings {
    lock_conformance::store_suite!(super::Folder<false>);
}

mod by_store {
    lock_conformance::store_suite!(super::Folder<true>);
}

//! The scenarios that every store passes.

use lock_conformance::stores::TestStore;
use lock_driver::register::{Config, RegisterError};
use lock_sqlite::SqliteRegister;
use lock_tokio::{Client, ConnectError};
use tempfile::TempDir;

struct OnFile(TempDir);

impl TestStore for OnFile {
    type Register = SqliteRegister;

    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn make(&self) -> impl FnOnce() -> Result<Self::Register, RegisterError> + Send + 'static {
        let path = self.0.path().join("locks.db");
        move || SqliteRegister::open(path)
    }

    fn connect(&self, config: Config) -> Result<Client, ConnectError> {
        lock_sqlite::connect_with(config, &format!("sqlite://{}/locks.db", self.0.path().display()))
    }

    fn set_clock_back(&self) {
        let connection = rusqlite::Connection::open(self.0.path().join("locks.db")).expect("a file");
        connection.execute("UPDATE lock_register SET written_ms = written_ms + 3600000", []).expect("rows");
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
    }
}

lock_conformance::store_suite!(OnFile);

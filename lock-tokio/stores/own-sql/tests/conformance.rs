//! The scenarios that every store passes, on the recipe.

#![cfg(feature = "mariadb")]

use std::time::Duration;

use lock_conformance::stores::TestStore;
use lock_driver::register::RegisterError;
use lock_proto::register::Config;
use lock_tokio::{Client, ConnectError};
use own_sql::{CREATE_TABLE, MariaDbRegister};
use sqlx::Executor as _;
use sqlx::mysql::MySqlPoolOptions;
use store_testkit::MariaDb;

struct OnMariaDb(MariaDb);

impl TestStore for OnMariaDb {
    type Register = MariaDbRegister;

    fn new() -> Self {
        let store = Self(MariaDb::start());
        Self::block_on(async {
            let MariaDbRegister(pool) = store.make()().expect("a pool");
            pool.execute(CREATE_TABLE).await.expect("a table");
        });
        store
    }

    fn make(&self) -> impl FnOnce() -> Result<MariaDbRegister, RegisterError> + Send + 'static {
        let url = self.0.url();
        move || {
            let pool = MySqlPoolOptions::new().max_connections(4).acquire_timeout(Duration::from_secs(3));
            pool.connect_lazy(&url).map(MariaDbRegister).map_err(RegisterError::refused)
        }
    }

    fn connect(&self, config: Config) -> Result<Client, ConnectError> {
        lock_tokio::connect_register_with(config, self.make())
    }

    fn set_clock_back(&self) {
        Self::block_on(async {
            let MariaDbRegister(pool) = self.make()().expect("a pool");
            pool.execute("UPDATE lock_register SET written = written + INTERVAL 1 HOUR").await.expect("rows");
        });
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
    }
}

lock_conformance::store_suite!(
    #[ignore = "make test-stores"]
    OnMariaDb
);

//! The scenarios that every store passes.

use lock_conformance::stores::TestStore;
use lock_driver::register::{Config, RegisterError};
use lock_postgres::{CREATE_TABLE, PostgresRegister};
use lock_tokio::{Client, ConnectError};
use store_testkit::Postgres;

struct OnPostgres(Postgres);

impl TestStore for OnPostgres {
    type Register = PostgresRegister;

    fn new() -> Self {
        let postgres = Postgres::start();
        postgres.sql(CREATE_TABLE);
        Self(postgres)
    }

    fn make(&self) -> impl FnOnce() -> Result<Self::Register, RegisterError> + Send + 'static {
        let url = self.0.url();
        move || PostgresRegister::from_url(&url)
    }

    fn connect(&self, config: Config) -> Result<Client, ConnectError> {
        lock_postgres::connect_with(config, &self.0.url())
    }

    fn set_clock_back(&self) {
        self.0.sql("UPDATE lock_register SET written = written + interval '1 hour'");
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
    }
}

lock_conformance::store_suite!(OnPostgres);

//! Real database servers for tests, on free loopback ports and in temporary folders, stopped on
//! drop.
//!
//! ```no_run
//! use store_testkit::Postgres;
//!
//! let mut postgres = Postgres::start();
//! postgres.sql("CREATE TABLE sale (stock bigint)");
//! postgres.kill();
//! postgres.restart();
//! assert_eq!(postgres.sql("SELECT count(*) FROM sale"), "0");
//! ```
//!
//! Like those of `lock_testkit`, these servers panic with a clear message when they do not start:
//! the test fails, it is never skipped.
//!
//! [`check_register`] checks what every store with compare-and-set does.
//!
//! Programs are found in the path, and those of Postgres also where Debian puts them. The
//! environment variables `POSTGRES_BIN`, `MARIADB_BIN` and `NATS_BIN` name the folder of another version.
//! Started by root, a server runs as an unprivileged user: as its own if that exists, else as
//! `nobody`.

mod account;
mod check;
mod database;
mod mariadb;
mod nats;
mod pgbouncer;
mod postgres;
mod program;

pub use check::{Traits, both, check_register, read, record, write};
pub use database::Database;
pub use mariadb::MariaDb;
pub use nats::NatsServer;
pub use pgbouncer::PgBouncer;
pub use postgres::{Postgres, PostgresBuilder};

//! A database on a Postgres server that tests share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::postgres::{Postgres, psql};

/// The server of the tests that run at present. Started by the first, stopped after the last.
static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// An empty database. A server takes a second to start, so the tests of a program share one: a test
/// that kills or pauses it starts its own.
#[derive(Debug)]
pub struct Database {
    server: Arc<Postgres>,
    name: String,
}

impl Database {
    /// Creates a database.
    ///
    /// # Panics
    ///
    /// If Postgres is not installed or does not start.
    #[must_use]
    pub fn new() -> Self {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let server = shared.upgrade().unwrap_or_else(|| Arc::new(Postgres::start()));
        *shared = Arc::downgrade(&server);
        let name = format!("test{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        server.sql(&format!("CREATE DATABASE {name}"));
        Self { server, name }
    }

    /// The URL of the superuser, who needs no password.
    #[must_use]
    pub fn url(&self) -> String {
        self.server.url_of("postgres", &self.name)
    }

    /// Runs SQL in this database on a new connection, as [`Postgres::sql`] does.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    pub fn sql(&self, sql: &str) -> String {
        psql(&self.url(), sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }
}

impl Default for Database {
    fn default() -> Self {
        Self::new()
    }
}

//! Locks and elections on a table of Postgres.
//!
//! ```no_run
//! # async fn pay_invoice() {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = lock_postgres::connect("postgres://app@db.example/app")?;
//! let guard = client.lock("invoice:42").acquire().await?;
//! // Cancels the work if the lock is lost, and releases the lock at the end.
//! guard.protect(pay_invoice()).await.output?;
//! # Ok(())
//! # }
//! ```
//!
//! # Servers
//!
//! The URL is libpq's: `postgres://[user[:password]@]host[:port][,host[:port]…]/database[?parameters]`.
//! With several hosts, the first that answers and takes writes is used. Certificates are verified as
//! by libpq: with `sslmode=verify-full` (or `verify-ca`, which is the same here), by the platform's
//! trust store or the authorities in the file `sslrootcert`; with that file in every mode; else not.
//!
//! Every statement is a transaction of its own, unnamed, and independent of settings of the session:
//! so it works behind PgBouncer in transaction mode. A client has one connection, and a second one
//! while it waits for a lock or meets a row that another transaction has locked.
//!
//! # The table
//!
//! [`CREATE_TABLE`] creates it, in the first schema of the `search_path`. Users of locks need
//! `SELECT`, `INSERT` and `UPDATE`. Rows may be deleted only if nobody holds their lock, as
//! [`DELETE_FREE`] does.
//!
//! # Waiting
//!
//! A waiter marks the row that it waits for, and listens on the channel `lock_register`. Who
//! releases a marked row notifies. Behind a pooler that swallows notifications nobody marks rows,
//! and waiters poll.

mod error;
mod lane;
mod tls;
mod url;

use std::fmt::Write as _;
use std::future::pending;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lock_driver::random_identity;
use lock_driver::register::{Register, RegisterError};
use lock_proto::register::{Config, Entry, Record, Revision};
use lock_tokio::register::connect_register_with;
use lock_tokio::{Client, ConnectError};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{sleep, timeout};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use error::{classify, is_created, is_locked};
use lane::{Backend, Heard, Lane, Parameter};
use url::Server;

/// Creates the table, if it is missing.
///
/// Half of each page stays free, so that a renewal needs no entry in the index.
pub const CREATE_TABLE: &str = "\
CREATE TABLE IF NOT EXISTS lock_register (
    name bytea PRIMARY KEY,
    version bigint NOT NULL,
    writer text NOT NULL,
    record bytea NOT NULL,
    written timestamptz NOT NULL,
    awaited timestamptz
) WITH (fillfactor = 50)";

/// Deletes the free records that nobody has written for a day. Its user needs `DELETE`.
///
/// Locks stay exclusive while it runs, and fencing tokens grow, if no host's clock is a day behind.
/// A row that is taken meanwhile is looked at again, and stays.
pub const DELETE_FREE: &str = r"DELETE FROM lock_register WHERE written < clock_timestamp() - interval '1 day'
    AND encode(record, 'escape') ~ '^[^\n]+\nversion [^\n]+\nwriter [^\n]+\nheld no\n'";

// `clock_timestamp()`, not `now()`: the time at which it runs, not that of the transaction's start.
const READ: &str = "SELECT record, (extract(epoch FROM clock_timestamp() - written) * 1000)::float8 \
    FROM lock_register WHERE name = $1";

// `set_config` lasts until the end of the transaction, which is that of the statement: a setting of
// the session would be another client's behind a pooler. As a condition it is evaluated before the
// row is locked; as a common table expression it would take half as much time again.
const CREATE: &str = "INSERT INTO lock_register (name, version, writer, record, written) \
    SELECT $1, $2, $3, $4, clock_timestamp() WHERE set_config('lock_timeout', $5, true) <> '' \
    ON CONFLICT (name) DO NOTHING RETURNING false";

// RG0
const UPDATE: &str = "UPDATE lock_register SET version = $2, writer = $3, record = $4, written = clock_timestamp() \
    WHERE name = $1 AND version = $6 AND writer = $7 AND set_config('lock_timeout', $5, true) <> '' \
    RETURNING awaited > clock_timestamp()";

/// Marks a row as awaited for a minute, unless somebody has done so within half of that.
const MARK: &str = "UPDATE lock_register SET awaited = clock_timestamp() + interval '60 s' \
    WHERE name = $1 AND version = $2 AND writer = $3 AND set_config('lock_timeout', $4, true) <> '' \
    AND coalesce(awaited < clock_timestamp() + interval '30 s', true)";
const MARK_INTERVAL: Duration = Duration::from_secs(30);

const NOTIFY: &str = "SELECT pg_notify('lock_register', $1)";

/// How long a statement waits for a row, at the cost of those behind it on the same connection.
const SHORT_WAIT: Duration = Duration::from_millis(10);
/// The same on the connection that is kept for that.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// How long a notification may take: without one, the connection leads to a pooler.
const HEARING: Duration = Duration::from_secs(2);
const HEARING_INTERVAL: Duration = Duration::from_secs(60);

/// Returns a client on the table of a URL: see [`PostgresRegister::from_url`].
///
/// Nothing is sent before the first request; [`Client::ping`] sends one.
///
/// # Errors
///
/// The URL is invalid; or the system has no random numbers, or no thread or sockets for the driver.
pub fn connect(url: &str) -> Result<Client, ConnectError> {
    connect_with(Config::new(), url)
}

/// As [`connect`], with settings.
///
/// # Errors
///
/// As [`connect`]; also if a setting is out of range.
pub fn connect_with(config: Config, url: &str) -> Result<Client, ConnectError> {
    let register = PostgresRegister::from_url(url);
    connect_register_with(config, || register)
}

/// A table of Postgres as a store for locks.
///
/// It connects when it is first used, on the runtime of that task, and again whenever the
/// connection ends.
#[derive(Debug)]
pub struct PostgresRegister {
    servers: Arc<[Server]>,
    timeout: Duration,
    main: OnceLock<Lane>,
    /// For what waits: rows that are locked, and notifications.
    side: OnceLock<Lane>,
}

impl PostgresRegister {
    /// Creates a store from a URL.
    ///
    /// # Errors
    ///
    /// [`RegisterError::Refused`] if the URL is invalid.
    pub fn from_url(url: &str) -> Result<Self, RegisterError> {
        let timeout = Duration::from_secs(3);
        let servers = url::parse(url, timeout)?.into();
        Ok(Self { servers, timeout, main: OnceLock::new(), side: OnceLock::new() })
    }

    /// Sets how long a server may take to answer before another connection is tried, and the next
    /// server of the URL. The default is 3 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Creates the table, if it is missing and the user may.
    ///
    /// # Errors
    ///
    /// What the server answered.
    ///
    /// # Cancel safety
    ///
    /// The table may or may not be created if the future is dropped.
    pub async fn create_table(&self) -> Result<(), RegisterError> {
        let mut reply = self.main().run(CREATE_TABLE, Vec::new()).await?;
        if reply.as_ref().is_err_and(is_created) {
            reply = self.main().run(CREATE_TABLE, Vec::new()).await?;
        }
        reply.map(drop).map_err(|error| classify(&error))
    }

    fn main(&self) -> &Lane {
        self.main.get_or_init(|| Lane::start(Arc::clone(&self.servers), self.timeout))
    }

    fn side(&self) -> &Lane {
        self.side.get_or_init(|| Lane::start(Arc::clone(&self.servers), self.timeout + LONG_WAIT))
    }

    /// A row that another transaction has locked is waited for where nobody else waits.
    async fn write_row(
        &self,
        sql: &'static str,
        parameters: impl Fn(Duration) -> Vec<Parameter>,
    ) -> Result<Vec<Row>, RegisterError> {
        let mut reply = self.main().run(sql, parameters(SHORT_WAIT)).await?;
        if reply.as_ref().is_err_and(is_locked) {
            reply = self.side().run(sql, parameters(LONG_WAIT)).await?;
        }
        reply.map_err(|error| classify(&error))
    }

    /// Listens, if the connection is no pooler's. The notification that shows it comes from the
    /// other connection: a pooler may return one's own.
    async fn hears(&self, backend: &Backend) -> Result<bool, RegisterError> {
        let listen = async {
            let probe = random_identity().map_err(RegisterError::not_sent)?.0.to_string();
            let mut heard = self.side().heard();
            backend.client.batch_execute("LISTEN lock_register").await.map_err(|error| classify(&error))?;
            self.notify(&probe).await?;
            Ok(timeout(HEARING, hear(&mut heard, &probe)).await == Ok(true))
        };
        backend.hears.get_or_try_init(|| listen).await.copied()
    }

    async fn notify(&self, payload: &str) -> Result<(), RegisterError> {
        let reply = self.main().run(NOTIFY, vec![(Box::new(payload.to_owned()), Type::TEXT)]).await?;
        reply.map(drop).map_err(|error| classify(&error))
    }

    /// Marks the row, and returns whether it has another record than the one that was seen.
    async fn await_change(&self, key: &[u8], version: i64, writer: &str) -> Result<bool, RegisterError> {
        let parameters: Vec<Parameter> = vec![
            (Box::new(key.to_vec()), Type::BYTEA),
            (Box::new(version), Type::INT8),
            (Box::new(writer.to_owned()), Type::TEXT),
            (Box::new(milliseconds(LONG_WAIT)), Type::TEXT),
        ];
        self.side().run(MARK, parameters).await?.map_err(|error| classify(&error))?;
        // After the mark: who writes later sees it.
        let entry = self.read(key).await?;
        Ok(entry.is_none_or(|entry| entry.revision != revision(version, writer)))
    }
}

impl Register for PostgresRegister {
    async fn read(&self, key: &[u8]) -> Result<Option<Entry>, RegisterError> {
        let reply = self.main().run(READ, vec![(Box::new(key.to_vec()), Type::BYTEA)]).await?;
        let rows = reply.map_err(|error| classify(&error))?;
        let Some(row) = rows.first() else { return Ok(None) };
        let record: &[u8] = row.try_get(0).map_err(RegisterError::refused)?;
        let age: f64 = row.try_get(1).map_err(RegisterError::refused)?;
        let record = Record::decode(record).map_err(RegisterError::refused)?;
        let revision = revision_of(&record)?;
        // A clock that was set back makes a negative one, which becomes zero.
        let age = Duration::from_millis(age as u64);
        Ok(Some(Entry::new(record, revision).age(age)))
    }

    async fn write(&self, key: &[u8], record: &Record, expected: Option<&Entry>) -> Result<Revision, RegisterError> {
        let revision = revision_of(record)?;
        let version = version_of(record)?;
        let expected_row = match expected {
            Some(entry) => Some((version_of(&entry.record)?, entry.record.writer.to_string())),
            None => None,
        };
        let parameters = |patience: Duration| {
            let mut parameters: Vec<Parameter> = vec![
                (Box::new(key.to_vec()), Type::BYTEA),
                (Box::new(version), Type::INT8),
                (Box::new(record.writer.to_string()), Type::TEXT),
                (Box::new(record.encode()), Type::BYTEA),
                (Box::new(milliseconds(patience)), Type::TEXT),
            ];
            if let Some((version, writer)) = &expected_row {
                parameters.push((Box::new(*version), Type::INT8));
                parameters.push((Box::new(writer.clone()), Type::TEXT));
            }
            parameters
        };
        let sql = if expected.is_some() { UPDATE } else { CREATE };
        let rows = self.write_row(sql, parameters).await?;
        let row = rows.first().ok_or(RegisterError::Conflict)?;
        let is_awaited = matches!(row.try_get(0), Ok(Some(true)));
        let is_news = !record.held || expected.is_some_and(|entry| entry.record.value != record.value);
        if is_awaited && is_news {
            // A statement of its own, so that the lock of notifications is not part of the write. One
            // that is lost costs the waiters a poll.
            let _ = self.notify(&hex(key)).await;
        }
        Ok(revision)
    }

    fn name(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|server| &*server.name).collect();
        format!("postgres://{}", hosts.join(","))
    }

    async fn changed(&self, key: &[u8], seen: Option<&Revision>) {
        let seen = seen.and_then(Revision::as_str).and_then(|seen| seen.split_once(' '));
        let Some((version, writer)) = seen.and_then(|(version, writer)| Some((version.parse().ok()?, writer))) else {
            return pending().await;
        };
        let payload = hex(key);
        loop {
            let mut heard = self.side().heard();
            let hears = match self.side().backend().await {
                Ok(backend) => self.hears(&backend).await,
                Err(error) => Err(error),
            };
            while hears == Ok(true) {
                if self.await_change(key, version, writer).await == Ok(true) {
                    return;
                }
                match timeout(MARK_INTERVAL, hear(&mut heard, &payload)).await {
                    Ok(true) => return,
                    Ok(false) => break,
                    Err(_) => {}
                }
            }
            let pause = match hears {
                Ok(true) => Duration::ZERO,
                Ok(false) => HEARING_INTERVAL,
                Err(_) => HEARING,
            };
            sleep(pause).await;
        }
    }
}

/// Returns whether the payload, or too much, was heard before the connection ended.
async fn hear(heard: &mut Receiver<Heard>, payload: &str) -> bool {
    loop {
        match heard.recv().await {
            Ok(Heard::Notified(heard)) if *heard == *payload => return true,
            Ok(Heard::Notified(_)) => {}
            Err(RecvError::Lagged(_)) => return true,
            Ok(Heard::Ended) | Err(RecvError::Closed) => return false,
        }
    }
}

fn version_of(record: &Record) -> Result<i64, RegisterError> {
    i64::try_from(record.version).map_err(|_| RegisterError::refused("the version of the record is too large"))
}

fn revision_of(record: &Record) -> Result<Revision, RegisterError> {
    Ok(revision(version_of(record)?, &record.writer.to_string()))
}

fn revision(version: i64, writer: &str) -> Revision {
    Revision::new(format!("{version} {writer}"))
}

/// As a value of `lock_timeout`.
fn milliseconds(patience: Duration) -> String {
    patience.as_millis().to_string()
}

fn hex(key: &[u8]) -> String {
    key.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

//! Locks and elections between the processes of one machine, on a file of SQLite.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = lock_sqlite::connect("sqlite:///var/lib/app/locks.db")?;
//! let guard = client.lock("import").acquire().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Without the feature `tokio`, which is on by default, a [`SqliteRegister`] runs on other runtimes: give
//! it to `lock_smol::connect_register`, for example.
//!
//! The file must be on a file system of this machine: over a network, the locks of SQLite do not
//! work. It may be one that the program uses for other tables.
//!
//! A missing file is created, in WAL mode with `synchronous = NORMAL`: what a power failure may
//! undo are locks of processes that it ended, too. The mode of a file that exists is left as it is:
//! both work. So is a table `lock_register` created. A file that was removed or replaced is noticed
//! at the next request, but locks that were held in it are gone: keep it out of folders that are
//! swept.
//!
//! Requests run on a thread, because SQLite blocks. It ends when the store is dropped.

mod database;

use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread;

use futures_channel::oneshot;
use lock_driver::register::{Register, RegisterError};
use lock_proto::register::{Entry, Record, Revision};
use lock_proto::url::decoded;

use database::Database;

/// Requests that wait for the thread.
const MAX_REQUESTS: usize = 256;

type Job = Box<dyn FnOnce(&mut Database) + Send>;

/// Returns a client on the file of a URL: see [`SqliteRegister::from_url`].
///
/// Nothing is sent before the first request; [`Client::ping`](lock_tokio::Client::ping) sends one.
///
/// # Errors
///
/// The URL is invalid; or the system has no random numbers, or no thread or sockets for the driver.
#[cfg(feature = "tokio")]
pub fn connect(url: &str) -> Result<lock_tokio::Client, lock_tokio::ConnectError> {
    connect_with(lock_tokio::register::Config::new(), url)
}

/// As [`connect`], with settings.
///
/// # Errors
///
/// As [`connect`]; also if a setting is out of range.
#[cfg(feature = "tokio")]
pub fn connect_with(
    config: lock_tokio::register::Config,
    url: &str,
) -> Result<lock_tokio::Client, lock_tokio::ConnectError> {
    let register = SqliteRegister::from_url(url);
    lock_tokio::connect_register_with(config, || register)
}

/// A file of SQLite as a store for locks.
#[derive(Debug)]
pub struct SqliteRegister {
    path: PathBuf,
    jobs: SyncSender<Job>,
}

impl SqliteRegister {
    /// Creates a store from a URL: `sqlite:///absolute/path` or `sqlite://relative/path`, with `%25`
    /// for a percent sign. The file is opened at the first request.
    ///
    /// # Errors
    ///
    /// [`RegisterError::Refused`] if the URL is invalid.
    pub fn from_url(url: &str) -> Result<Self, RegisterError> {
        let invalid =
            |why: &str| RegisterError::refused(format!("invalid URL of SQLite: {why}; expected sqlite:///path"));
        let path = url.strip_prefix("sqlite://").ok_or_else(|| invalid("it does not start with sqlite://"))?;
        if path.contains('?') {
            return Err(invalid("it has parameters, and there are none (%3F is a question mark in a path)"));
        }
        let path = decoded(path, "path").map_err(|error| invalid(&error.to_string()))?;
        if path.is_empty() {
            return Err(invalid("it names no file"));
        }
        Self::open(&*path)
    }

    /// Creates a store from the path of a file.
    ///
    /// # Errors
    ///
    /// [`RegisterError::Refused`] if the database would be in memory, and [`RegisterError::NotSent`]
    /// if there is no thread to be had.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, RegisterError> {
        let path = path.into();
        if path.as_os_str().is_empty() || path.as_os_str() == ":memory:" {
            return Err(RegisterError::refused("a database in memory locks nothing: name a file"));
        }
        let (sender, jobs) = sync_channel::<Job>(MAX_REQUESTS);
        let mut database = Database::new(path.clone());
        let work = move || jobs.iter().for_each(|job| job(&mut database));
        let thread = thread::Builder::new().name("lock-sqlite".into()).spawn(work);
        thread.map_err(RegisterError::not_sent)?;
        Ok(Self { path, jobs: sender })
    }

    async fn call<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut Database) -> Result<T, RegisterError> + Send + 'static,
    ) -> Result<T, RegisterError> {
        let (sender, reply) = oneshot::channel();
        let job = Box::new(move |database: &mut Database| drop(sender.send(request(database))));
        self.jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => RegisterError::not_sent("the file is too slow: 256 requests wait"),
            TrySendError::Disconnected(_) => RegisterError::not_sent("the thread of the file has ended"),
        })?;
        reply.await.map_err(|_| RegisterError::unknown("the thread of the file has ended"))?
    }
}

impl Register for SqliteRegister {
    async fn read(&self, key: &[u8]) -> Result<Option<Entry>, RegisterError> {
        let key = key.to_vec();
        self.call(move |database| database.read(&key)).await
    }

    async fn write(&self, key: &[u8], record: &Record, expected: Option<&Entry>) -> Result<Revision, RegisterError> {
        let (key, record, expected) = (key.to_vec(), record.clone(), expected.map(|entry| entry.record.clone()));
        self.call(move |database| database.write(&key, &record, expected.as_ref())).await
    }

    fn name(&self) -> String {
        format!("sqlite://{}", self.path.display())
    }
}

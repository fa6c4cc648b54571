//! The file, on its thread.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_driver::register::RegisterError;
use lock_proto::register::{Entry, Record, Revision};
use rusqlite::{Connection, Error, ErrorCode, OpenFlags, OptionalExtension as _};

/// How long a request waits for other writers. There is one lock for the whole file: so all requests wait.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

const TABLE: &str = "CREATE TABLE IF NOT EXISTS lock_register (
    name BLOB PRIMARY KEY,
    version INTEGER NOT NULL,
    writer TEXT NOT NULL,
    record BLOB NOT NULL,
    written_ms INTEGER NOT NULL
) WITHOUT ROWID";
const READ: &str = "SELECT record, written_ms FROM lock_register WHERE name = ?1";
// Outside of a transaction, a statement that writes starts with the lock for writers, as BEGIN
// IMMEDIATE does.
const CREATE: &str = "INSERT INTO lock_register (name, version, writer, record, written_ms)
    VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (name) DO NOTHING";
// RG0
const UPDATE: &str = "UPDATE lock_register SET version = ?2, writer = ?3, record = ?4, written_ms = ?5
    WHERE name = ?1 AND version = ?6 AND writer = ?7";

/// A file that is open from the first request on.
#[derive(Debug)]
pub(crate) struct Database {
    path: PathBuf,
    open: Option<(Connection, FileId)>,
}

/// What tells a file from its successor of the same name.
type FileId = (u64, u64);

impl Database {
    pub(crate) const fn new(path: PathBuf) -> Self {
        Self { path, open: None }
    }

    pub(crate) fn read(&mut self, key: &[u8]) -> Result<Option<Entry>, RegisterError> {
        let row = self.run(|connection| {
            let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, i64>(1)?));
            connection.query_row(READ, [key], row).optional()
        })?;
        let Some((record, written)) = row else { return Ok(None) };
        let record = Record::decode(&record).map_err(RegisterError::refused)?;
        let revision = revision_of(&record)?;
        // A clock that was set back makes a negative one, which becomes zero.
        let age = u64::try_from(now_ms().saturating_sub(written)).unwrap_or(0);
        Ok(Some(Entry::new(record, revision).age(Duration::from_millis(age))))
    }

    pub(crate) fn write(
        &mut self,
        key: &[u8],
        record: &Record,
        expected: Option<&Record>,
    ) -> Result<Revision, RegisterError> {
        let (version, writer, bytes) = (version_of(record)?, record.writer.to_string(), record.encode());
        let rows = match expected {
            None => self.run(|connection| connection.execute(CREATE, (key, version, &writer, &bytes, now_ms()))),
            Some(expected) => {
                let (old, by) = (version_of(expected)?, expected.writer.to_string());
                self.run(|connection| connection.execute(UPDATE, (key, version, &writer, &bytes, now_ms(), old, &by)))
            }
        }?;
        if rows == 0 { Err(RegisterError::Conflict) } else { revision_of(record) }
    }

    /// Runs a statement, and opens the file again after an error, or if it is another one.
    fn run<T>(&mut self, statement: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, RegisterError> {
        if self.open.as_ref().is_some_and(|(_, id)| file_id(&self.path) != Some(*id)) {
            self.open = None;
        }
        let result = self.connection().and_then(statement);
        if result.is_err() {
            self.open = None;
        }
        result.map_err(|error| classify(&error))
    }

    fn connection(&mut self) -> Result<&Connection, Error> {
        if self.open.is_none() {
            // Without URIs: `file:` in a path would be one.
            let flags =
                OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let is_new = !self.path.exists();
            let connection = Connection::open_with_flags(&self.path, flags)?;
            connection.busy_timeout(BUSY_TIMEOUT)?;
            if is_new {
                connection.pragma_update(None, "journal_mode", "wal")?;
            }
            let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
            if mode.eq_ignore_ascii_case("wal") {
                connection.pragma_update(None, "synchronous", "normal")?;
            }
            connection.execute_batch(TABLE)?;
            self.open = Some((connection, file_id(&self.path).unwrap_or_default()));
        }
        // Just opened.
        self.open.as_ref().map(|(connection, _)| connection).ok_or(Error::InvalidQuery)
    }
}

#[cfg(unix)]
fn file_id(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Elsewhere, a file that is open cannot be replaced.
#[cfg(not(unix))]
fn file_id(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().map(|_| (0, 0))
}

// RG4
fn classify(error: &Error) -> RegisterError {
    let text = error.to_string();
    // Found wrong before it ran.
    let is_sql = error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_ERROR);
    if is_sql || matches!(error, Error::SqlInputError { .. }) {
        return RegisterError::refused(format!("{text}; the table must be:\n{TABLE}"));
    }
    match error.sqlite_error_code() {
        // Rolled back, with the statement.
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::DiskFull) => {
            RegisterError::not_sent(text)
        }
        Some(ErrorCode::CannotOpen) => {
            RegisterError::refused(format!("{text}: its folder must exist, and this user may write to both"))
        }
        Some(
            ErrorCode::NotADatabase
            | ErrorCode::PermissionDenied
            | ErrorCode::ReadOnly
            | ErrorCode::AuthorizationForStatementDenied,
        ) => RegisterError::refused(text),
        _ => RegisterError::unknown(text),
    }
}

/// The host's time of day, which all processes of the machine share.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn version_of(record: &Record) -> Result<i64, RegisterError> {
    i64::try_from(record.version).map_err(|_| RegisterError::refused("the version of the record is too large"))
}

fn revision_of(record: &Record) -> Result<Revision, RegisterError> {
    Ok(Revision::new(format!("{} {}", version_of(record)?, record.writer)))
}

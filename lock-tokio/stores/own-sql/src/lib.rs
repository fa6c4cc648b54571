//! The recipe of docs/registers-sql.md: a store for locks on MariaDB, by sqlx.

#![cfg(feature = "mariadb")]

use std::time::Duration;

use lock_driver::register::{Register, RegisterError};
use lock_proto::register::{Entry, Record, Revision};
use sqlx::mysql::{MySqlDatabaseError, MySqlPool};

/// The table.
pub const CREATE_TABLE: &str = "CREATE TABLE lock_register (
    name VARBINARY(1024) PRIMARY KEY,
    version BIGINT NOT NULL,
    writer VARCHAR(80) CHARACTER SET ascii NOT NULL,
    record LONGBLOB NOT NULL,
    written DATETIME(6) NOT NULL
) ENGINE = InnoDB";

/// Locks on a table of MariaDB.
#[derive(Debug)]
pub struct MariaDbRegister(pub MySqlPool);

impl Register for MariaDbRegister {
    async fn read(&self, key: &[u8]) -> Result<Option<Entry>, RegisterError> {
        let sql = "SELECT record, TIMESTAMPDIFF(MICROSECOND, written, UTC_TIMESTAMP(6)) \
            FROM lock_register WHERE name = ?";
        let row: Option<(Vec<u8>, i64)> =
            sqlx::query_as(sql).bind(key).fetch_optional(&self.0).await.map_err(failure)?;
        let Some((record, age)) = row else { return Ok(None) };
        // A record of a later version of the library is refused, never overwritten.
        let record = Record::decode(&record).map_err(RegisterError::refused)?;
        let age = Duration::from_micros(age.try_into().unwrap_or(0));
        Ok(Some(Entry::new(record.clone(), revision(&record)).age(age)))
    }

    async fn write(&self, key: &[u8], record: &Record, expected: Option<&Entry>) -> Result<Revision, RegisterError> {
        let columns = "version = ?, writer = ?, record = ?, written = UTC_TIMESTAMP(6)";
        let sql = match expected {
            None => format!("INSERT INTO lock_register SET {columns}, name = ?"),
            Some(_) => format!("UPDATE lock_register SET {columns} WHERE name = ? AND version = ? AND writer = ?"),
        };
        let mut query = sqlx::query(&sql);
        query = query.bind(record.version as i64).bind(record.writer.to_string()).bind(record.encode()).bind(key);
        if let Some(Entry { record, .. }) = expected {
            query = query.bind(record.version as i64).bind(record.writer.to_string());
        }
        let done = query.execute(&self.0).await.map_err(failure)?;
        if done.rows_affected() == 1 { Ok(revision(record)) } else { Err(RegisterError::Conflict) }
    }
}

/// A row that was deleted and made again may have the same version, but not the same writer.
fn revision(record: &Record) -> Revision {
    Revision::new(format!("{} {}", record.version, record.writer))
}

/// Only what proves that nothing was written is `NotSent`, and only another record a `Conflict`.
fn failure(error: sqlx::Error) -> RegisterError {
    let of_mariadb = error.as_database_error().and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>());
    match of_mariadb.map(MySqlDatabaseError::number) {
        Some(1062) => RegisterError::Conflict,               // the name is there
        Some(1205 | 1213) => RegisterError::not_sent(error), // another transaction has the row, or a deadlock
        Some(1142 | 1146) => RegisterError::refused(error),  // no permission, or no table
        None if matches!(error, sqlx::Error::PoolTimedOut) => RegisterError::not_sent(error),
        _ => RegisterError::unknown(error),
    }
}

//! SQL that compares fencing tokens.

use alloc::format;
use alloc::string::String;

use super::FenceCheck;
use crate::lock::Fence;

/// A family of SQL databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SqlDialect {
    /// Postgres, and what speaks its language.
    Postgres,
    /// SQLite 3.35 or later.
    Sqlite,
    /// MariaDB and MySQL.
    MariaDb,
}

impl SqlDialect {
    /// Quotes an identifier, whatever it contains.
    // F3
    fn quote(self, name: &str) -> String {
        match self {
            Self::Postgres => format!("\"{}\"", name.replace('"', "\"\"")),
            // SQLite knows double quotes too, but takes an unknown column in them for a text.
            Self::Sqlite | Self::MariaDb => format!("`{}`", name.replace('`', "``")),
        }
    }

    /// The placeholder of the parameter with this number, from 1.
    fn placeholder(self, number: u16) -> String {
        match self {
            Self::Postgres => format!("${number}"),
            Self::Sqlite => format!("?{number}"),
            Self::MariaDb => "?".into(),
        }
    }
}

/// A column that holds the greatest token which has written the row. Its type is `BIGINT`, on
/// SQLite `INTEGER`; it may be null in rows that nobody has fenced yet.
///
/// The check is part of the `UPDATE` that writes, so both are one step:
///
/// ```text
/// UPDATE invoice SET state = 'paid', {set} WHERE id = 42 AND {condition}
/// ```
///
/// Bind the token as [`Fence::as_i64`]. [`check`](Self::check) says what the number of affected rows
/// means.
#[derive(Clone, Copy, Debug)]
pub struct FenceColumn<'a> {
    dialect: SqlDialect,
    column: &'a str,
}

impl<'a> FenceColumn<'a> {
    /// A column with this name.
    #[must_use]
    pub const fn new(dialect: SqlDialect, column: &'a str) -> Self {
        Self { dialect, column }
    }

    /// The name of the column, quoted: for a `SELECT` after an `UPDATE` that affected no row.
    #[must_use]
    pub fn name(&self) -> String {
        self.dialect.quote(self.column)
    }

    /// The part of `SET` that stores the token, which is the parameter with this number. MariaDB's
    /// parameters have no numbers: bind the token once here and once for the condition.
    #[must_use]
    pub fn set(&self, parameter: u16) -> String {
        format!("{} = {}", self.name(), self.dialect.placeholder(parameter))
    }

    /// The part of `WHERE` that lets only a token pass that is no smaller than the stored one.
    // F1
    #[must_use]
    pub fn condition(&self, parameter: u16) -> String {
        let name = self.name();
        format!("({name} IS NULL OR {name} <= {})", self.dialect.placeholder(parameter))
    }

    /// What an `UPDATE` with the condition did.
    ///
    /// `affected` is the number of rows that the client reports. `seen` is the token in the row,
    /// and needed only if that number is 0: read it after the update, on MariaDB inside a
    /// transaction with `FOR UPDATE`; `None` if there is no such row, or it has none.
    ///
    /// Returns `None` if the row does not exist, or another part of the `WHERE` did not hold.
    ///
    /// MariaDB counts the rows that *changed*: a holder that writes what is there already affects
    /// none, and is accepted. Another part of the `WHERE` that does not hold looks the same then.
    /// (Clients that ask the server for the rows *found* get those, as elsewhere.)
    pub fn check(&self, fence: Fence, affected: u64, seen: Option<Fence>) -> Option<FenceCheck> {
        if affected > 0 {
            return Some(FenceCheck::Accepted);
        }
        let seen = seen?;
        let fence = Fence::from_i64(fence.as_i64());
        match fence.check(seen) {
            FenceCheck::Accepted => {
                let is_unchanged = self.dialect == SqlDialect::MariaDb && seen == fence;
                is_unchanged.then_some(FenceCheck::Accepted)
            }
            stale @ FenceCheck::Stale { .. } => Some(stale),
        }
    }
}

/// A table with one row a lock, which holds the greatest token seen: for resources without a
/// column for it, and for writes to several tables.
///
/// [`raise`](Self::raise) is the first statement of a transaction, and the writes follow in the
/// same one. It locks the row, so a newer holder waits until the transaction ends, and an older one
/// that waits sees the newer token. Roll back if [`Fence::check`] finds the token stale.
#[derive(Clone, Copy, Debug)]
pub struct FenceTable<'a> {
    dialect: SqlDialect,
    schema: Option<&'a str>,
    table: &'a str,
}

impl<'a> FenceTable<'a> {
    /// A table with this name.
    #[must_use]
    pub const fn new(dialect: SqlDialect, table: &'a str) -> Self {
        Self { dialect, schema: None, table }
    }

    /// Puts the table into a schema; a database, on MariaDB and SQLite.
    #[must_use]
    pub const fn schema(self, schema: &'a str) -> Self {
        Self { schema: Some(schema), ..self }
    }

    /// The statement that creates the table, if it does not exist.
    #[must_use]
    pub fn create(&self) -> String {
        // MariaDB compares texts without regard to case and trailing spaces.
        let (name, number) = match self.dialect {
            SqlDialect::Postgres => ("text", "bigint"),
            SqlDialect::Sqlite => ("TEXT", "INTEGER"),
            SqlDialect::MariaDb => ("VARBINARY(512)", "BIGINT"),
        };
        format!(
            "CREATE TABLE IF NOT EXISTS {} (name {name} NOT NULL PRIMARY KEY, fence {number} NOT NULL)",
            self.qualified()
        )
    }

    /// The statement that raises the token of a lock, unless it is greater. Parameters: the lock's
    /// name, the token.
    ///
    /// On Postgres and SQLite it returns one row with one column: the greatest token seen, this one
    /// included. On MariaDB, run [`seen`](Self::seen) after it. The number of affected rows says
    /// nothing.
    // F1
    #[must_use]
    pub fn raise(&self) -> String {
        let table = self.qualified();
        match self.dialect {
            SqlDialect::Postgres => format!(
                "INSERT INTO {table} AS seen (name, fence) VALUES ($1, $2) ON CONFLICT (name) \
                 DO UPDATE SET fence = greatest(seen.fence, excluded.fence) RETURNING fence"
            ),
            SqlDialect::Sqlite => format!(
                "INSERT INTO {table} AS seen (name, fence) VALUES (?1, ?2) ON CONFLICT (name) \
                 DO UPDATE SET fence = max(seen.fence, excluded.fence) RETURNING fence"
            ),
            SqlDialect::MariaDb => format!(
                "INSERT INTO {table} (name, fence) VALUES (?, ?) \
                 ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))"
            ),
        }
    }

    /// The statement that returns the greatest token of a lock. Parameter: the lock's name.
    ///
    /// On MariaDB it locks the row: without that, it could return what the transaction's snapshot
    /// had, which is older than what [`raise`](Self::raise) compared with.
    #[must_use]
    pub fn seen(&self) -> String {
        let (parameter, lock) = match self.dialect {
            SqlDialect::Postgres => ("$1", ""),
            SqlDialect::Sqlite => ("?1", ""),
            SqlDialect::MariaDb => ("?", " FOR UPDATE"),
        };
        format!("SELECT fence FROM {} WHERE name = {parameter}{lock}", self.qualified())
    }

    fn qualified(&self) -> String {
        let table = self.dialect.quote(self.table);
        self.schema.map_or_else(|| table.clone(), |schema| format!("{}.{table}", self.dialect.quote(schema)))
    }
}

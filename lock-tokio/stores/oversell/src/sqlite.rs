//! The stock in SQLite.

use std::path::Path;
use std::time::Duration;

use lock_proto::Fence;
use lock_proto::fence::{FenceCheck, FenceColumn, SqlDialect};
use rusqlite::{Connection, TransactionBehavior};

use crate::{SaleError, Stock};

const FENCE: FenceColumn<'static> = FenceColumn::new(SqlDialect::Sqlite, "fence");
/// Longer than all others stall together.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to the table `sale`.
#[derive(Debug)]
pub struct SqliteStock(Connection);

impl SqliteStock {
    /// Opens the file.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Self, SaleError> {
        let db = Connection::open(path)?;
        db.busy_timeout(BUSY_TIMEOUT)?;
        Ok(Self(db))
    }

    /// Starts a sale of this many goods.
    ///
    /// # Errors
    ///
    /// As [`Stock::read`].
    pub fn reset(&mut self, goods: i64) -> Result<(), SaleError> {
        let create = "CREATE TABLE IF NOT EXISTS sale (stock INTEGER, version INTEGER, fence INTEGER)";
        Ok(self.0.execute_batch(&format!("{create}; DELETE FROM sale; INSERT INTO sale VALUES ({goods}, 0, NULL)"))?)
    }

    fn check(&self, fence: Fence, affected: usize) -> Result<FenceCheck, SaleError> {
        let seen: Option<i64> = self.0.query_row("SELECT fence FROM sale", [], |row| row.get(0))?;
        FENCE.check(fence, affected as u64, seen.map(Fence::from_i64)).ok_or_else(|| "there is no sale".into())
    }
}

impl Stock for SqliteStock {
    fn read(&mut self) -> Result<i64, SaleError> {
        Ok(self.0.query_row("SELECT stock FROM sale", [], |row| row.get(0))?)
    }

    fn write(&mut self, left: i64) -> Result<(), SaleError> {
        self.0.execute("UPDATE sale SET stock = ?1", [left])?;
        Ok(())
    }

    fn claim(&mut self, fence: Fence) -> Result<FenceCheck, SaleError> {
        let update = format!("UPDATE sale SET {} WHERE {}", FENCE.set(1), FENCE.condition(1));
        let affected = self.0.execute(&update, [fence.as_i64()])?;
        self.check(fence, affected)
    }

    fn write_fenced(&mut self, left: i64, fence: Fence) -> Result<FenceCheck, SaleError> {
        let update = format!("UPDATE sale SET stock = ?2, {} WHERE {}", FENCE.set(1), FENCE.condition(1));
        let affected = self.0.execute(&update, [fence.as_i64(), left])?;
        self.check(fence, affected)
    }

    /// It locks no row, but the whole file: `BEGIN IMMEDIATE`.
    fn sell_exclusively(&mut self, work: &mut dyn FnMut()) -> Result<bool, SaleError> {
        let transaction = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let left: i64 = transaction.query_row("SELECT stock FROM sale", [], |row| row.get(0))?;
        if left <= 0 {
            return Ok(false);
        }
        work();
        transaction.execute("UPDATE sale SET stock = ?1", [left - 1])?;
        transaction.commit()?;
        Ok(true)
    }

    fn sell_if_unchanged(&mut self, work: &mut dyn FnMut()) -> Result<Option<bool>, SaleError> {
        let select = "SELECT stock, version FROM sale";
        let (left, version) = self.0.query_row(select, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
        if left <= 0 {
            return Ok(Some(false));
        }
        work();
        let update = "UPDATE sale SET stock = ?1, version = version + 1 WHERE version = ?2";
        Ok((self.0.execute(update, [left - 1, version])? == 1).then_some(true))
    }
}

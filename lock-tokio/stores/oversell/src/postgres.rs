//! The stock in Postgres.

use lock_proto::Fence;
use lock_proto::fence::{FenceCheck, FenceColumn, SqlDialect};
use postgres::{Client, NoTls};

use crate::{SaleError, Stock};

const FENCE: FenceColumn<'static> = FenceColumn::new(SqlDialect::Postgres, "fence");

/// A connection to the table `sale`.
#[expect(missing_debug_implementations, reason = "the client has none")]
pub struct PostgresStock(Client);

impl PostgresStock {
    /// Connects.
    ///
    /// # Errors
    ///
    /// The server cannot be reached.
    pub fn connect(url: &str) -> Result<Self, SaleError> {
        Ok(Self(Client::connect(url, NoTls)?))
    }

    /// Starts a sale of this many goods.
    ///
    /// # Errors
    ///
    /// As [`Stock::read`].
    pub fn reset(&mut self, goods: i64) -> Result<(), SaleError> {
        let create = "CREATE TABLE IF NOT EXISTS sale (stock bigint, version bigint, fence bigint)";
        Ok(self.0.batch_execute(&format!("{create}; DELETE FROM sale; INSERT INTO sale VALUES ({goods}, 0, NULL)"))?)
    }

    fn check(&mut self, fence: Fence, affected: u64) -> Result<FenceCheck, SaleError> {
        let seen: Option<i64> = self.0.query_one("SELECT fence FROM sale", &[])?.get(0);
        FENCE.check(fence, affected, seen.map(Fence::from_i64)).ok_or_else(|| "there is no sale".into())
    }
}

impl Stock for PostgresStock {
    fn read(&mut self) -> Result<i64, SaleError> {
        Ok(self.0.query_one("SELECT stock FROM sale", &[])?.get(0))
    }

    fn write(&mut self, left: i64) -> Result<(), SaleError> {
        self.0.execute("UPDATE sale SET stock = $1", &[&left])?;
        Ok(())
    }

    fn claim(&mut self, fence: Fence) -> Result<FenceCheck, SaleError> {
        let update = format!("UPDATE sale SET {} WHERE {}", FENCE.set(1), FENCE.condition(1));
        let affected = self.0.execute(&update, &[&fence.as_i64()])?;
        self.check(fence, affected)
    }

    fn write_fenced(&mut self, left: i64, fence: Fence) -> Result<FenceCheck, SaleError> {
        let update = format!("UPDATE sale SET stock = $2, {} WHERE {}", FENCE.set(1), FENCE.condition(1));
        let affected = self.0.execute(&update, &[&fence.as_i64(), &left])?;
        self.check(fence, affected)
    }

    fn sell_exclusively(&mut self, work: &mut dyn FnMut()) -> Result<bool, SaleError> {
        let mut transaction = self.0.transaction()?;
        let left: i64 = transaction.query_one("SELECT stock FROM sale FOR UPDATE", &[])?.get(0);
        if left <= 0 {
            return Ok(false);
        }
        work();
        transaction.execute("UPDATE sale SET stock = $1", &[&(left - 1)])?;
        transaction.commit()?;
        Ok(true)
    }

    fn sell_if_unchanged(&mut self, work: &mut dyn FnMut()) -> Result<Option<bool>, SaleError> {
        let row = self.0.query_one("SELECT stock, version FROM sale", &[])?;
        let (left, version): (i64, i64) = (row.get(0), row.get(1));
        if left <= 0 {
            return Ok(Some(false));
        }
        work();
        let update = "UPDATE sale SET stock = $1, version = version + 1 WHERE version = $2";
        Ok((self.0.execute(update, &[&(left - 1), &version])? == 1).then_some(true))
    }
}

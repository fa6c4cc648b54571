//! A flash sale with more buyers than goods, on real databases.
//!
//! Each buyer reads the stock, works for a while, and writes back one less. Every fourth stops in
//! between for longer than the lock's TTL: a collection of garbage, a container without CPU time. Five
//! ways keep the stock right, or do not: see [`Way`].

mod postgres;
mod redis;
mod sale;
mod sqlite;

pub use self::postgres::PostgresStock;
pub use self::redis::RedisStock;
pub use self::sale::{BUYERS, GOODS, STALL, SaleResult, TTL, Way, sell};
pub use self::sqlite::SqliteStock;

use lock_proto::Fence;
use lock_proto::fence::FenceCheck;

/// Whatever went wrong.
pub type SaleError = Box<dyn std::error::Error + Send + Sync>;

/// The row of one buyer's connection that says how many goods are left.
pub trait Stock {
    /// Returns the number of goods left.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or refused the request. So for all functions here.
    fn read(&mut self) -> Result<i64, SaleError>;

    /// Writes the number of goods left, whatever is there.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn write(&mut self, left: i64) -> Result<(), SaleError>;

    /// Stores the token, unless a greater one is there. What an older holder writes afterwards is
    /// refused.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn claim(&mut self, fence: Fence) -> Result<FenceCheck, SaleError>;

    /// Writes the number of goods left, unless a greater token is there.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn write_fenced(&mut self, left: i64, fence: Fence) -> Result<FenceCheck, SaleError>;

    /// Sells one and keeps all others out from the read to the write, as far as the store can.
    /// Returns false if nothing is left.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn sell_exclusively(&mut self, work: &mut dyn FnMut()) -> Result<bool, SaleError>;

    /// Sells one if nobody wrote between the read and the write. Returns false if nothing is left,
    /// and `None` if somebody wrote.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    fn sell_if_unchanged(&mut self, work: &mut dyn FnMut()) -> Result<Option<bool>, SaleError>;
}

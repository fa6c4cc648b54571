//! Checks of fencing tokens at the resource that a lock protects.
//!
//! A holder that was paused past the end of its lock may still write. Only the resource can refuse
//! that write, by comparing its [`Fence`] with the greatest that it has accepted. This module
//! builds what a resource needs for that: SQL, a Redis script, a condition for DynamoDB, and the
//! decisions for object stores and HTTP. It does no I/O and needs no database client.
//!
//! ```
//! use lock_proto::Fence;
//! use lock_proto::fence::{FenceCheck, FenceColumn, SqlDialect};
//!
//! // A database: the check is part of the statement that writes.
//! let fence = FenceColumn::new(SqlDialect::Postgres, "fence");
//! let (set, condition) = (fence.set(1), fence.condition(1));
//! let update = format!("UPDATE invoice SET state = 'paid', {set} WHERE id = 42 AND {condition}");
//! assert_eq!(
//!     update,
//!     r#"UPDATE invoice SET state = 'paid', "fence" = $1 WHERE id = 42 AND ("fence" IS NULL OR "fence" <= $1)"#
//! );
//!
//! // Anywhere else: compare under the lock of the resource that is written.
//! assert_eq!(Fence::new(8).check(Fence::new(8)), FenceCheck::Accepted);
//! assert_eq!(Fence::new(7).check(Fence::new(8)), FenceCheck::Stale { seen: Fence::new(8) });
//! ```
//!
//! In each of them, check and write are one step that nothing comes between, and a token equal to
//! the greatest passes, so that one holder can write several times.
//!
//! `docs/fencing.md` of the repository has an example for each resource.

mod dynamo;
mod http;
mod object;
mod redis;
mod sql;
#[cfg(test)]
mod tests;

pub use self::http::{FENCE_HEADER, parse_header};
pub use dynamo::DynamoCondition;
pub use object::{OBJECT_METADATA, PutAnswer, put_answer};
pub use redis::{REDIS_SCRIPT, redis_eval};
pub use sql::{FenceColumn, FenceTable, SqlDialect};

use core::str::FromStr;

use crate::lock::Fence;

/// What a resource says about a write with a fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a stale write must not be carried out"]
pub enum FenceCheck {
    /// No greater token was accepted before. The write is done, or may be.
    Accepted,
    /// A newer holder has written. This one has lost the lock and must stop.
    Stale {
        /// The greatest token that the resource has accepted.
        seen: Fence,
    },
}

impl Fence {
    /// Compares this token with the greatest that a resource has accepted. An equal one passes.
    ///
    /// Nothing else may write to the resource between this comparison and the write, or the check
    /// is worthless: hold the resource's own lock, or compare within its transaction.
    // F1
    pub const fn check(self, seen: Self) -> FenceCheck {
        if self.0 < seen.0 { FenceCheck::Stale { seen } } else { FenceCheck::Accepted }
    }

    /// The token of a signed 64-bit column, as [`as_i64`](Self::as_i64) wrote it. A negative number
    /// counts as zero.
    #[must_use]
    pub const fn from_i64(number: i64) -> Self {
        if number < 0 { Self(0) } else { Self(number as u64) }
    }
}

/// A text is not a fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("a fencing token is a decimal number below 2^64, digits only")]
pub struct InvalidFence;

/// Decimal digits, without a sign or spaces.
// F2
impl FromStr for Fence {
    type Err = InvalidFence;

    fn from_str(text: &str) -> Result<Self, InvalidFence> {
        // `u64` would accept a plus sign.
        if text.starts_with('+') {
            return Err(InvalidFence);
        }
        text.parse().map(Self).map_err(|_| InvalidFence)
    }
}

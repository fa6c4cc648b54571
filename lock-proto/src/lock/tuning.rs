//! Limits and settings common to all stores.

use core::time::Duration;

use crate::error::Invalid;

/// The default TTL on Redis and etcd. On ZooKeeper it is five ticks.
pub const DEFAULT_TTL: Duration = Duration::from_secs(10);

/// The maximal length of a lock name and of a prefix, in bytes.
pub const MAX_NAME: usize = 512;

/// Checks the length of a lock name.
pub(crate) const fn check_name(name: &[u8]) -> Result<(), Invalid> {
    let len = name.len();
    if len == 0 || len > MAX_NAME { Err(Invalid::NameLength { len, max: MAX_NAME }) } else { Ok(()) }
}

/// The longest value of a candidate, in bytes. By default etcd accepts requests of 1.5 MiB
/// (`--max-request-bytes`), and ZooKeeper of 1 MiB (`jute.maxbuffer`).
pub const MAX_VALUE: usize = 1_000_000;

/// Checks the length of a candidate's value.
pub(crate) const fn check_value(value: &[u8]) -> Result<(), Invalid> {
    let len = value.len();
    if len > MAX_VALUE { Err(Invalid::ValueLength { len, max: MAX_VALUE }) } else { Ok(()) }
}

/// The shortest TTL.
pub const MIN_TTL: Duration = Duration::from_millis(50);

/// The longest TTL.
pub const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How far two clocks may drift apart. Validity ends `ttl / divisor + margin` early.
// T1
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Drift {
    /// The TTL is divided by this.
    pub divisor: u32,
    /// A fixed amount that is added.
    pub margin: Duration,
}

impl Drift {
    pub(crate) const DEFAULT: Self = Self { divisor: 100, margin: Duration::from_millis(2) };

    /// Returns what is left of a TTL.
    pub(crate) fn validity(self, ttl: Duration) -> Duration {
        ttl.saturating_sub(ttl / self.divisor + self.margin)
    }
}

impl Default for Drift {
    /// One percent of the TTL and 2 ms.
    fn default() -> Self {
        Self::DEFAULT
    }
}

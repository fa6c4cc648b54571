//! What the main thread is told, and by which handle it speaks to whoever drives the lock.

use core::fmt;
use core::time::Duration;

use lock_proto::etcd::OwnerKey;
use lock_proto::redis::{Blocked, Fence, Loss, Release};

/// Everything that the main thread waits for.
#[derive(Debug)]
pub enum News {
    /// Still waiting, and why.
    Blocked(Blocked),
    /// The lock is held.
    Held(Held),
    /// It was lost.
    Lost(Loss),
    /// It was not acquired. Last word.
    Failed(Failed),
    /// The answer to [`Holder::stop`]: what the release found, `None` if nothing was held. Last word.
    Stopped(Option<Release>),
    /// A signal came for this process.
    Signal(i32),
    /// The command has ended.
    CommandEnded,
}

/// Why the lock was not acquired.
#[derive(Clone, Debug)]
pub enum Failed {
    /// The servers refused, or could not be reached.
    Servers {
        /// The exit code.
        code: u8,
        /// What went wrong, for stderr.
        message: String,
    },
    /// A value that cannot be used.
    Usage(String),
}

/// A held lock.
pub struct Held {
    /// What tells this hold from all others. On Redis it is the value of the key.
    pub token: String,
    /// The fencing token.
    pub fence: Option<Fence>,
    /// The key on etcd, unless the lock is lost already.
    pub owner: Option<OwnerKey>,
    /// The TTL of the key.
    pub ttl: Duration,
    /// How long it is certainly held from this moment; `None` once it is lost. Compares the clock at the question.
    pub remaining: Box<dyn Fn() -> Option<Duration> + Send>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("fence", &self.fence).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

/// Whoever drives the lock, on threads of its own.
pub trait Holder {
    /// Stop waiting, or release; answered by [`News::Stopped`], unless [`News::Failed`] is on its way.
    fn stop(&self);
}

//! Requests of an application.

use alloc::sync::Arc;
use core::time::Duration;

/// How long to wait for a lock that is held elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Make exactly one attempt; none if the lock is held or waited for in this client.
    Try,
    /// Wait at most this long. Independent of the TTL. Zero makes one attempt.
    For(Duration),
    /// Wait without limit.
    Forever,
}

impl Wait {
    /// Turns a wait of zero into one attempt.
    #[must_use]
    pub const fn or_try(self) -> Self {
        match self {
            Self::For(Duration::ZERO) => Self::Try,
            Self::Try | Self::For(_) | Self::Forever => self,
        }
    }

    /// Returns how long an acquisition may take: no time if it makes one attempt.
    pub(crate) const fn limit(self) -> Option<Duration> {
        match self {
            Self::Try => Some(Duration::ZERO),
            Self::For(limit) => Some(limit),
            Self::Forever => None,
        }
    }
}

/// What renews the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Renew {
    /// The watchdog, as long as the guard is held.
    Auto,
    /// The application, by `extend`. Otherwise the lock expires a TTL after the grant.
    Manual,
    /// The watchdog, but the hold ends this long after the grant at the latest.
    ///
    /// The holder is then notified with [`Loss::MaxHold`](super::Loss::MaxHold), and renewal stops.
    /// The key stays until the guard is released or dropped, so that the work can finish before the
    /// next holder begins. A guard that is kept delays the next holder by at most a TTL, when the
    /// key expires. A shutdown of the client leaves the key to the guard, too.
    ///
    /// On etcd such a lock has its own lease, as one with [`Manual`](Self::Manual) has. That costs
    /// one extra request to acquire and one to release. On ZooKeeper it has its own session and
    /// connection.
    AtMost(Duration),
}

/// A request for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "an Acquire does nothing until it is given to a client"]
pub struct Acquire {
    /// The name of the lock, without the prefix.
    pub name: Arc<[u8]>,
    /// How long the lock outlives its last renewal; `None` for the default.
    pub ttl: Option<Duration>,
    /// How long to wait for the lock.
    pub wait: Wait,
    /// How the lock is renewed.
    pub renew: Renew,
}

impl Acquire {
    /// Requests the lock `name` with the client's TTL, renewed by the watchdog, without a limit on
    /// the wait. The TTL is 10 s by default, on ZooKeeper 15 s.
    pub fn new(name: impl AsRef<[u8]>) -> Self {
        Self { name: name.as_ref().into(), ttl: None, wait: Wait::Forever, renew: Renew::Auto }
    }

    /// Sets the TTL: how long the lock outlives its last renewal, from 50 ms to 30 days. Redis
    /// rounds it up to milliseconds, etcd to seconds, at least 2 s with its default settings.
    /// ZooKeeper needs at least five ticks.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets how long to wait for the lock.
    pub const fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Sets how the lock is renewed.
    pub const fn renew(mut self, renew: Renew) -> Self {
        self.renew = renew;
        self
    }
}

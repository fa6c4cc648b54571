//! What an application asks for.

use alloc::sync::Arc;
use core::time::Duration;

/// How long to wait for a lock that somebody else holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wait {
    /// Exactly one attempt; none if the lock is held or waited for in this client.
    Try,
    /// At most this long. Independent of the TTL.
    For(Duration),
    /// For ever.
    Forever,
}

impl Wait {
    /// No time to wait is one attempt, not none.
    pub(crate) const fn or_try(self) -> Self {
        match self {
            Self::For(Duration::ZERO) => Self::Try,
            Self::Try | Self::For(_) | Self::Forever => self,
        }
    }
}

/// Who keeps the lock alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Renew {
    /// The watchdog, for as long as the guard is held.
    Auto,
    /// The application, by `extend`; without it the lock ends a TTL after the grant.
    Manual,
    /// The watchdog, but the hold ends at the latest this long after the grant.
    ///
    /// At that time the holder is notified with [`Loss::MaxHold`](super::Loss::MaxHold), and renewal stops. The key stays until the guard is released or
    /// dropped, so that the work can come to an end before the next holder begins. A guard that stays out delays the next holder by a
    /// TTL at most: then the key ends by itself.
    ///
    /// On etcd such a lock has a lease of its own, which costs one more request to take it and one more to release it.
    AtMost(Duration),
}

/// A wish for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "an Acquire does nothing until it is given to a client"]
pub struct Acquire {
    /// What is locked, without the prefix.
    pub name: Arc<[u8]>,
    /// How long the lock outlives its last renewal; `None` for the default.
    pub ttl: Option<Duration>,
    /// How long to wait for it.
    pub wait: Wait,
    /// Whether and how long it is renewed.
    pub renew: Renew,
}

impl Acquire {
    /// The lock `name`, with the client's TTL (10 s if nothing else was set), kept alive by the watchdog, waiting for ever.
    pub fn new(name: impl AsRef<[u8]>) -> Self {
        Self { name: name.as_ref().into(), ttl: None, wait: Wait::Forever, renew: Renew::Auto }
    }

    /// How long the lock outlives the last sign of life of its holder. Whole milliseconds, rounded up.
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// How long to wait for it.
    pub const fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Who keeps it alive.
    pub const fn renew(mut self, renew: Renew) -> Self {
        self.renew = renew;
        self
    }
}

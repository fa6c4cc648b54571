//! Clients that a world of Redis nodes can run.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Debug;

use crate::check::Rule;
use lock_proto::redis::{Client, FENCE_NAME, RESERVED};
use lock_proto::{ByteClient, Machine as _};

/// A client of Redis: a [`ByteClient`] that implements `Clone` and `Debug`. See
/// [`Builder::machine`](super::Builder::machine) and
/// [`Plan::run_redis`](crate::Plan::run_redis).
///
/// A lock of your own needs much less: see [`OwnLock`](crate::own::OwnLock).
pub trait RedisClient: ByteClient + Clone + Debug {
    /// Whether a client uses one token for several attempts. Then a grant is ordered by the last
    /// time that its token appeared in the store, otherwise by the first.
    const ONE_TOKEN: bool = false;

    /// Whether a client without locks closes its connections after a while. Then one that is open
    /// at the end of a run violates [`Rule::Leftover`].
    const CLOSES_IDLE: bool = false;

    /// Rules that these clients do not promise. A violation is collected and does not panic.
    const EXCUSED: &'static [Rule] = &[];

    /// Returns true if the client may yet delete a key of its own. By default, it has a deadline or
    /// requests in flight.
    fn has_work(&self) -> bool {
        self.next_deadline().is_some() || self.in_flight() > 0
    }

    /// Returns the key of the lock of this name. By default the name, with the client's prefix.
    fn key(&self, name: &[u8]) -> Vec<u8> {
        [self.info().prefix, name].concat()
    }

    /// Returns the next violation that the client has found of itself.
    fn poll_violation(&mut self) -> Option<(Rule, String)> {
        None
    }

    /// Returns true if this key may exist when no lock is held or waited for. `expires`: it has a
    /// TTL. By default these are the side keys of [`Client`].
    fn may_leave(&self, key: &[u8], expires: bool) -> bool {
        // Wake-up lists and waiter marks expire.
        let is_own = key.windows(RESERVED.len()).any(|part| part == RESERVED.as_bytes());
        is_own && (expires || key.ends_with(FENCE_NAME.as_bytes()))
    }
}

impl RedisClient for Client {
    const CLOSES_IDLE: bool = true;

    // An open connection has a deadline, too, so the hub is asked.
    fn has_work(&self) -> bool {
        !self.is_idle() || self.in_flight() > 0
    }
}

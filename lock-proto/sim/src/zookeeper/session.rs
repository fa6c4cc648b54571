//! The sessions, as the leader tracks them (`SessionTrackerImpl`, `ExpiryQueue`).

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use lock_proto::Instant;
use lock_proto::time::nanos;
use lock_proto::zookeeper::codec::ErrorCode;

/// The connection of a server to the leader over which a session was last opened. A session moves
/// with its client; requests by another way are refused.
pub(super) type SessionOwner = u64;

/// The leader's own clients.
pub(super) const LEADER: SessionOwner = 0;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Session {
    expires: Instant,
    owner: Option<SessionOwner>,
    /// Its end is proposed.
    closing: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LeaderSessions {
    tick: u64,
    tracked: BTreeMap<i64, Session>,
}

impl LeaderSessions {
    /// Tracks the sessions of a new leader's tree: each gets its whole timeout.
    pub(super) fn new(now: Instant, tick: Duration, timeouts: &BTreeMap<i64, i32>) -> Self {
        let mut sessions = Self { tick: nanos(tick).max(1), tracked: BTreeMap::new() };
        for (session, timeout) in timeouts {
            sessions.track(now, *session, *timeout);
        }
        sessions
    }

    /// Sessions expire at multiples of the tick, never too early.
    fn expiry(&self, now: Instant, timeout: i32) -> Instant {
        let timeout = Duration::from_millis(timeout.unsigned_abs().into());
        let ticks = (now + timeout).as_nanos() / self.tick + 1;
        Instant::from_nanos(ticks.saturating_mul(self.tick))
    }

    pub(super) fn track(&mut self, now: Instant, session: i64, timeout: i32) {
        let expires = self.expiry(now, timeout);
        let tracked = Session { expires, owner: None, closing: false };
        self.tracked.entry(session).or_insert(tracked).expires = expires;
    }

    /// The client has been heard. Returns false if the session has ended.
    pub(super) fn touch(&mut self, now: Instant, session: i64, timeout: i32) -> bool {
        let expires = self.expiry(now, timeout);
        let Some(tracked) = self.tracked.get_mut(&session).filter(|tracked| !tracked.closing) else { return false };
        tracked.expires = expires;
        true
    }

    pub(super) fn set_owner(&mut self, session: i64, owner: SessionOwner) {
        if let Some(tracked) = self.tracked.get_mut(&session).filter(|tracked| !tracked.closing) {
            tracked.owner = Some(owner);
        }
    }

    pub(super) fn check(&mut self, session: i64, owner: SessionOwner) -> Result<(), ErrorCode> {
        let tracked = self.tracked.get_mut(&session).filter(|tracked| !tracked.closing);
        let tracked = tracked.ok_or(ErrorCode::SESSION_EXPIRED)?;
        if *tracked.owner.get_or_insert(owner) == owner { Ok(()) } else { Err(ErrorCode::SESSION_MOVED) }
    }

    pub(super) fn set_closing(&mut self, session: i64) {
        if let Some(tracked) = self.tracked.get_mut(&session) {
            tracked.closing = true;
        }
    }

    pub(super) fn remove(&mut self, session: i64) {
        self.tracked.remove(&session);
    }

    fn live(&self) -> impl Iterator<Item = (i64, &Session)> {
        self.tracked.iter().filter(|(_, tracked)| !tracked.closing).map(|(session, tracked)| (*session, tracked))
    }

    pub(super) fn expired(&self, now: Instant) -> Vec<i64> {
        self.live().filter(|(_, tracked)| tracked.expires <= now).map(|(session, _)| session).collect()
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.live().map(|(_, tracked)| tracked.expires).min()
    }

    /// Returns when a session expires; `None` if it has ended.
    pub(super) fn expires(&self, session: i64) -> Option<Instant> {
        self.live().find(|(id, _)| *id == session).map(|(_, tracked)| tracked.expires)
    }
}

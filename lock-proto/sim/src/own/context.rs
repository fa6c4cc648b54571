//! What an own lock sees and does.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use core::time::Duration;

use super::connections::Connections;
use super::transport::Transport;
use crate::rng::Rng;
use lock_proto::Instant;
use lock_proto::{Acquire, Event, Failure, Fence, Grant, Loss, Release, Report, Token, Wait};
use lock_proto::{ConnId, LockId, Role};

/// The request of one acquisition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Info {
    pub(super) id: LockId,
    pub(super) request: Acquire,
    pub(super) name: String,
    pub(super) token: Token,
    pub(super) token_text: String,
    pub(super) ttl: Duration,
    pub(super) since: Instant,
}

/// How far the acquisition is, as its application knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// The application waits, until then at most.
    Waiting(Option<Instant>),
    /// Granted until then. Claimed or not.
    Granted(Instant, bool),
    Lost,
    /// The result of the release is due then.
    Releasing(Instant),
    /// The application knows the end, or wants to know nothing.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    Retry,
    Own(u64),
}

/// The state of one acquisition besides the lock itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Progress {
    pub(super) stage: Stage,
    pub(super) timers: BTreeMap<Timer, Instant>,
    /// Unanswered commands on shared connections, and on its own ones.
    pub(super) pending: usize,
    pub(super) pending_alone: usize,
    /// When each extension must have ended that has not.
    pub(super) extends: VecDeque<Instant>,
    /// It was granted and has not been released, whatever the application knows.
    pub(super) granted: bool,
    /// Granted to nobody: to be released at once.
    pub(super) unwanted: bool,
}

impl Progress {
    pub(super) const fn new(wait_ends: Option<Instant>) -> Self {
        Self {
            stage: Stage::Waiting(wait_ends),
            timers: BTreeMap::new(),
            pending: 0,
            pending_alone: 0,
            extends: VecDeque::new(),
            granted: false,
            unwanted: false,
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        // Nobody waits for a command that blocks for a lock that is not wanted any more.
        let waits = self.pending > 0 || (self.granted && self.pending_alone > 0);
        self.stage == Stage::Over && !waits && self.timers.is_empty()
    }

    /// A command is unanswered.
    pub(super) const fn awaits_reply(&self) -> bool {
        self.pending + self.pending_alone > 0
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let own = match self.stage {
            Stage::Waiting(ends) => ends,
            Stage::Granted(until, _) => Some(self.extends.front().map_or(until, |by| until.min(*by))),
            Stage::Releasing(by) => Some(by),
            Stage::Lost | Stage::Over => None,
        };
        own.into_iter().chain(self.timers.values().copied()).min()
    }

    /// Notifies the application, and ends the acquisition if this is the last event.
    pub(super) fn emit(&mut self, transport: &mut impl Transport, lock: LockId, event: Event) {
        if event.is_last() {
            self.stage = Stage::Over;
        }
        transport.emit(lock, event);
    }
}

/// What an [`OwnLock`](super::OwnLock) sees and does, during one call. On etcd it has other
/// requests: [`etcd::Context`](super::etcd::Context).
#[derive(Debug)]
pub struct Context<'a, T = Connections> {
    pub(super) info: &'a Arc<Info>,
    pub(super) now: Instant,
    pub(super) progress: &'a mut Progress,
    pub(super) transport: &'a mut T,
    pub(super) rng: &'a mut Rng,
}

impl<'a, T: Transport> Context<'a, T> {
    /// Returns the time, by the client's clock.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Returns the request.
    pub fn request(&self) -> &'a Acquire {
        &self.info.request
    }

    /// Returns the name of the lock, as text. If its key differs, see
    /// [`OwnLock::key`](super::OwnLock::key).
    #[must_use]
    pub fn name(&self) -> &'a str {
        &self.info.name
    }

    /// Returns a text that no other acquisition of any client has. Put it into the value of the
    /// key: the rules recognise the key by it.
    #[must_use]
    pub fn token(&self) -> &'a str {
        &self.info.token_text
    }

    /// Returns the requested TTL.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.info.ttl
    }

    /// Returns a random number below `bound`, or 0 if `bound` is 0.
    pub fn random(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// Returns true if the lock was granted and is not released, whether the application still
    /// wants it or not.
    #[must_use]
    pub const fn is_granted(&self) -> bool {
        self.progress.granted
    }

    /// Returns true while the application believes to hold the lock.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        matches!(self.progress.stage, Stage::Granted(..))
    }

    /// Returns true while the application waits for the lock.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        matches!(self.progress.stage, Stage::Waiting(_))
    }

    /// Sets the timer of this number, in place of an earlier one.
    pub fn after(&mut self, time: Duration, timer: u64) {
        self.progress.timers.insert(Timer::Own(timer), self.now + time);
    }

    /// Stops the timer of this number. A timer that nobody stops runs on after the end of the
    /// acquisition.
    pub fn cancel(&mut self, timer: u64) {
        self.progress.timers.remove(&Timer::Own(timer));
    }

    /// The attempt failed: calls [`OwnLock::acquire`](super::OwnLock::acquire) again after `pause`.
    /// Ends the acquisition if the application wants a single attempt. Does nothing if the
    /// application does not wait any more.
    pub fn retry(&mut self, pause: Duration) {
        if !self.is_waiting() {
            return;
        }
        if self.info.request.wait == Wait::Try {
            let report = Report::new(self.now.since(self.info.since), []);
            return self.emit(Event::Failed(Failure::TimedOut(report)));
        }
        self.progress.timers.insert(Timer::Retry, self.now + pause);
    }

    /// The lock is granted: the application believes to hold it until then, or for ever with
    /// `None`. At that time it learns of the loss. `fence` is the fencing token, if the lock has
    /// one.
    ///
    /// During a hold it moves the end, as a renewal does. After a loss or a release it does
    /// nothing.
    ///
    /// If `until` has passed, as after a late reply, the lock is granted and lost at once. That
    /// breaks no rule, even if it happens to every grant. Call [`retry`](Self::retry) instead.
    pub fn grant(&mut self, until: impl Into<Option<Instant>>, fence: Option<u64>) {
        let until = until.into().unwrap_or(FOREVER);
        match &mut self.progress.stage {
            Stage::Waiting(_) => {
                self.progress.granted = true;
                self.progress.timers.remove(&Timer::Retry);
                self.progress.stage = Stage::Granted(until, false);
                let grant = Grant::new(self.info.token, fence.map(Fence::new), self.info.ttl, until);
                self.emit(Event::Granted(grant));
            }
            Stage::Granted(at, _) => {
                *at = until;
                self.emit(Event::Renewed { valid_until: until });
            }
            Stage::Over if !self.progress.granted => {
                (self.progress.granted, self.progress.unwanted) = (true, true);
            }
            Stage::Lost | Stage::Releasing(_) | Stage::Over => {}
        }
    }

    /// The lock is lost before the end of its validity. Does nothing if it is not held.
    pub fn lost(&mut self, why: Loss) {
        if self.is_held() {
            self.progress.stage = Stage::Lost;
            self.emit(Event::Lost(why));
        }
    }

    /// The release is done, with this outcome. Call this within two seconds of the release, unless
    /// a reply or a timer is outstanding. Otherwise the lock breaks
    /// [`Rule::Notified`](crate::Rule::Notified).
    pub fn released(&mut self, outcome: Release) {
        self.progress.granted = false;
        if matches!(self.progress.stage, Stage::Releasing(_)) {
            self.emit(Event::Released(outcome));
        }
    }

    /// The oldest extension that has not ended was confirmed. Call [`grant`](Self::grant) with the
    /// new end first.
    pub fn extended(&mut self) {
        if self.is_held() {
            self.progress.extends.pop_front();
            self.emit(Event::Extended);
        }
    }

    /// The oldest extension that has not ended failed.
    pub fn extend_failed(&mut self) {
        if self.is_held() {
            self.progress.extends.pop_front();
            self.emit(Event::ExtendFailed(Report::new(Duration::ZERO, [])));
        }
    }

    fn emit(&mut self, event: Event) {
        self.progress.emit(self.transport, self.info.id, event);
    }
}

impl Context<'_> {
    /// Returns the number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.transport.nodes()
    }

    /// Sends a command to a node, on the connection that all acquisitions of the client share.
    /// `tag` comes back with the reply. Commands that are sent in one call stay together, so
    /// `MULTI` up to `EXEC` may be sent like this.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub fn send<A: AsRef<[u8]>>(&mut self, node: usize, tag: u64, args: &[A]) {
        self.progress.pending += 1;
        self.transport.send(self.now, node, None, self.info.id, tag, args);
    }

    /// Sends a command to every node, see [`send`](Self::send).
    pub fn send_all<A: AsRef<[u8]>>(&mut self, tag: u64, args: &[A]) {
        for node in 0..self.nodes() {
            self.send(node, tag, args);
        }
    }

    /// Sends a command to a node on a connection that only this acquisition uses, for `SUBSCRIBE`,
    /// `WATCH` and commands that block. The connection is closed at the end of the acquisition.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    pub fn send_alone<A: AsRef<[u8]>>(&mut self, node: usize, tag: u64, args: &[A]) {
        self.progress.pending_alone += 1;
        self.transport.send(self.now, node, Some(self.info.id), self.info.id, tag, args);
    }

    /// A command on this connection needs no reply any more.
    pub(super) const fn answered(&mut self, conn: ConnId) {
        let pending = match conn.role() {
            Role::Commands => &mut self.progress.pending,
            Role::Wake => &mut self.progress.pending_alone,
        };
        *pending = pending.saturating_sub(1);
    }
}

/// Some 36 years: longer than any run.
pub(super) const FOREVER: Instant = Instant::from_nanos(1 << 60);

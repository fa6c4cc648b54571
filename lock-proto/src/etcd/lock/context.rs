//! What the machine of one name sees of its surroundings, and its only way out.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use super::Etcd;
use crate::etcd::config::Config;
use crate::etcd::request::{LeaseId, Request};
use crate::etcd::seam::{LocksOutput, WatchId};
use crate::etcd::session::{pause, recheck};
use crate::etcd::sessions::{SessionId, Sessions};
use crate::id::{CallId, CallOwner, ClientId, LockId, NodeId};
use crate::lock::{Event, Loss, Surroundings};
use crate::time::Instant;

/// The surroundings of one step.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) config: &'a Config,
    pub(crate) client: ClientId,
    pub(crate) stopping: bool,
    pub(crate) seed: u64,
    /// The slot of the name, for its calls and watches.
    pub(crate) name: u32,
    /// Grants so far, to tell them apart.
    pub(crate) number: &'a mut u64,
    pub(crate) serial: &'a mut u64,
    pub(crate) watch: &'a mut u64,
    pub(crate) sessions: &'a mut Sessions,
    pub(crate) out: &'a mut VecDeque<LocksOutput>,
    /// Watches that were opened (with the name's slot) and closed.
    pub(crate) watches: &'a mut Vec<(WatchId, bool)>,
    /// Sessions that are to be extended.
    pub(crate) extend: &'a mut Vec<SessionId>,
    /// Acquisitions that had their last event.
    pub(crate) ended: &'a mut Vec<LockId>,
}

impl Context<'_> {
    /// Emits a request about a key of this session, and gives the serial of its call.
    pub(crate) fn send(&mut self, session: SessionId, request: Request) -> u64 {
        let patience = self.patience(session);
        *self.serial += 1;
        let call = CallId { owner: CallOwner::Lock(self.name), node: NodeId(0), serial: *self.serial };
        self.out.push_back(LocksOutput::Send { call, request, patience });
        call.serial
    }

    fn patience(&self, session: SessionId) -> Duration {
        self.sessions.get(session).map_or(self.config.request_timeout, |found| found.patience(self.config))
    }

    /// Watches one key from now on.
    pub(crate) fn open_watch(&mut self, key: Bytes) -> WatchId {
        *self.watch += 1;
        let watch = WatchId(*self.watch);
        self.watches.push((watch, true));
        self.out.push_back(LocksOutput::Watch { watch, key, end: Bytes::new() });
        watch
    }

    pub(crate) fn close_watch(&mut self, watch: WatchId) {
        self.watches.push((watch, false));
        self.out.push_back(LocksOutput::Unwatch { watch });
    }

    /// The pause after `tries` failures.
    pub(crate) fn pause(&self, tries: u32) -> Duration {
        pause(self.seed ^ u64::from(self.name), self.now.as_nanos(), tries)
    }

    /// When to read a queue again although its watches are open and report nothing.
    pub(crate) fn recheck_at(&self) -> Instant {
        self.now + recheck(self.config, self.seed ^ u64::from(self.name), self.now)
    }

    pub(crate) fn lease(&self, session: SessionId) -> Option<LeaseId> {
        self.sessions.get(session).map(|found| found.lease)
    }

    pub(crate) fn is_alive(&self, session: SessionId) -> bool {
        self.sessions.get(session).is_some_and(|found| found.is_alive() && self.now < found.until())
    }

    pub(crate) fn until(&self, session: SessionId) -> Instant {
        self.sessions.get(session).map_or(Instant::ZERO, |found| found.until())
    }

    pub(crate) fn ttl(&self, session: SessionId) -> Duration {
        self.sessions.get(session).map_or(self.config.session_ttl, |found| found.ttl())
    }

    /// Returns true if the server has no such lease any more.
    pub(crate) fn is_gone(&self, session: SessionId) -> bool {
        self.sessions.get(session).is_none_or(|found| found.is_gone())
    }

    /// The server said that the session's lease does not exist. Its users are told after this step.
    pub(crate) fn lost_lease(&mut self, session: SessionId) {
        self.sessions.lose(session, Loss::Gone);
    }
}

/// What the times of a lock depend on.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub(crate) config: &'a Config,
    pub(crate) sessions: &'a Sessions,
}

impl Surroundings<Etcd> for Context<'_> {
    fn now(&self) -> Instant {
        self.now
    }

    fn is_stopping(&self) -> bool {
        self.stopping
    }

    fn release_by(&self) -> Instant {
        self.now + self.config.release_within
    }

    fn view(&self) -> View<'_> {
        View { config: self.config, sessions: self.sessions }
    }

    fn emit(&mut self, lock: LockId, event: Event) {
        self.out.push_back(LocksOutput::Event { lock, event });
    }

    fn forget(&mut self, lock: LockId) {
        self.ended.push(lock);
    }
}

/// A watch as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Watched {
    pub(crate) id: WatchId,
    /// Everything after this revision is told; `None` while it is not open.
    pub(crate) open: Option<i64>,
}

impl Watched {
    pub(crate) fn new(ctx: &mut Context<'_>, key: Bytes) -> Self {
        Self { id: ctx.open_watch(key), open: None }
    }

    /// What was read at `known` may be out of date: the watch tells only what came after its opening.
    pub(crate) fn is_ahead_of(&self, known: i64) -> bool {
        self.open.is_some_and(|open| open > known)
    }
}

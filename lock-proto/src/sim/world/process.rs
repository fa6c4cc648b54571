//! The processes: a client with its clock and what its application was told, and what a server's
//! kernel knows.

use alloc::collections::{BTreeMap, VecDeque};

use super::super::clock::Clock;
use super::super::network::Packet;
use super::super::record::Record;
use super::super::trace::State;
use super::handover::Reasons;
use super::store::Servers;
use crate::fault::Fault;
use crate::id::{ConnId, LockId};
use crate::lock::Machine as _;
use crate::time::Instant;

#[derive(Clone, Debug)]
pub(crate) struct Process<S: Servers> {
    pub(super) machine: S::Client,
    pub(super) clock: Clock,
    pub(super) state: State,
    /// When the machine wants to be called, in true time.
    next: Option<Instant>,
    /// Its clock has been standing still since this true time.
    pub(super) asleep: Option<Instant>,
    /// What happened while it was stopped.
    pub(super) inbox: VecDeque<Fact<S>>,
    pub(super) records: BTreeMap<LockId, Record>,
    /// Told that the shutdown is over, with what may be left.
    pub(super) stopped: Option<u32>,
    /// Why it asks for each lock.
    pub(super) reasons: Reasons,
    /// What else its store wants to know of it.
    pub(super) own: S::Own,
}

/// Something that reaches a process from outside.
#[derive(Clone, Debug)]
pub(crate) enum Fact<S: Servers> {
    Connected(ConnId),
    Received(ConnId, S::Packet),
    Disconnected(ConnId, Fault),
    /// Its application gives a lock back, held or lost.
    Release(LockId),
    /// Its application or its host does something else.
    Chore(S::Chore),
}

impl<S: Servers> Process<S> {
    pub(super) fn new(machine: S::Client, clock: Clock, own: S::Own) -> Self {
        let mut process = Self {
            machine,
            clock,
            state: State::Running,
            next: None,
            asleep: None,
            inbox: VecDeque::new(),
            records: BTreeMap::new(),
            stopped: None,
            reasons: Reasons::default(),
            own,
        };
        process.look();
        process
    }

    /// The process's own time.
    pub(super) fn local(&self, now: Instant) -> Instant {
        Instant::from_nanos(self.clock.read(self.asleep.unwrap_or(now)))
    }

    /// True time at which its clock shows `local`.
    pub(super) fn when(&self, local: Instant) -> Instant {
        self.clock.when(local.as_nanos())
    }

    /// True time at which the machine wants to be called; `None` while the process does not run.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next.filter(|_| self.state == State::Running)
    }

    /// Asks the machine when it wants to be called: after every call.
    pub(super) fn look(&mut self) {
        self.next = self.machine.next_deadline().map(|at| self.when(at));
    }
}

/// A server's process.
#[derive(Clone, Debug)]
pub(super) struct Host<P> {
    pub(super) state: State,
    /// What has come while it was stopped, by connection. Its kernel took it, so it is executed
    /// when the process goes on, even if the client has hung up meanwhile.
    pub(super) inbox: VecDeque<(u64, Packet<P>)>,
    /// Until when it works on what it has taken.
    pub(super) busy_until: Option<Instant>,
    /// What waits for that, and since when.
    pub(super) queue: VecDeque<(Instant, u64, Packet<P>)>,
}

impl<P> Host<P> {
    pub(super) const fn new() -> Self {
        Self { state: State::Running, inbox: VecDeque::new(), busy_until: None, queue: VecDeque::new() }
    }

    /// It has died: what it had taken is gone.
    pub(super) fn drops_all(&mut self) {
        self.inbox.clear();
        self.queue.clear();
        self.busy_until = None;
    }
}

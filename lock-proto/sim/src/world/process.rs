//! Processes: a client with its clock and the events of its application, and a server's kernel.

use alloc::collections::{BTreeMap, VecDeque};

use super::super::clock::Clock;
use super::super::network::Packet;
use super::super::record::HistoryRecord;
use super::super::trace::ProcessState;
use super::elections::Observed;
use super::handover::Reasons;
use super::store::ServerKind;
use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::{ConnId, LockId};
use lock_proto::{Machine as _, OperationId};

#[derive(Clone, Debug)]
pub(crate) struct Process<S: ServerKind> {
    pub(super) machine: S::Client,
    pub(super) clock: Clock,
    pub(super) state: ProcessState,
    /// Next deadline of the machine, in true time.
    next: Option<Instant>,
    /// True time at which its clock stopped.
    pub(super) suspended_at: Option<Instant>,
    /// Inputs that arrived while it was paused.
    pub(super) inbox: VecDeque<Input<S>>,
    pub(super) records: BTreeMap<LockId, HistoryRecord>,
    pub(super) queries: BTreeMap<OperationId, Observed>,
    /// Set once the shutdown is complete: number of leftovers.
    pub(super) stopped: Option<u32>,
    pub(super) reasons: Reasons,
    pub(super) own: S::Own,
}

#[derive(Clone, Debug)]
pub(crate) enum Input<S: ServerKind> {
    Connected(ConnId),
    /// A message of a TLS handshake, with the number of round trips that are left.
    Handshake(ConnId, u8),
    Received(ConnId, S::Packet),
    Disconnected(ConnId, Fault),
    /// The source of credentials answers the request of this number.
    Credentials(ConnId, u64),
    /// The application claims an offer.
    Claim(LockId),
    /// The application releases a lock, held or lost.
    Release(LockId),
    Chore(S::Chore),
}

impl<S: ServerKind> Process<S> {
    pub(super) fn new(machine: S::Client, clock: Clock, own: S::Own) -> Self {
        let mut process = Self {
            machine,
            clock,
            state: ProcessState::Running,
            next: None,
            suspended_at: None,
            inbox: VecDeque::new(),
            records: BTreeMap::new(),
            queries: BTreeMap::new(),
            stopped: None,
            reasons: Reasons::default(),
            own,
        };
        process.update_deadline();
        process
    }

    pub(super) fn local(&self, now: Instant) -> Instant {
        Instant::from_nanos(self.clock.read(self.suspended_at.unwrap_or(now)))
    }

    /// Returns the true time at which its clock shows `local`.
    pub(super) fn when(&self, local: Instant) -> Instant {
        self.clock.when(local.as_nanos())
    }

    /// Returns the machine's next deadline in true time, or `None` while the process does not run.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next.filter(|_| self.state == ProcessState::Running)
    }

    /// Updates the machine's deadline. Called after every call to it.
    pub(super) fn update_deadline(&mut self) {
        self.next = self.machine.next_deadline().map(|at| self.when(at));
    }
}

#[derive(Clone, Debug)]
pub(super) struct ProcessHost<P> {
    pub(super) state: ProcessState,
    /// Packets that arrived while it was paused, by connection. The kernel accepted them, so they
    /// are executed on resume even if the client has hung up.
    pub(super) inbox: VecDeque<(u64, Packet<P>)>,
    /// When it finishes the current command.
    pub(super) busy_until: Option<Instant>,
    /// Queued commands with their arrival times.
    pub(super) queue: VecDeque<(Instant, u64, Packet<P>)>,
}

impl<P> ProcessHost<P> {
    pub(super) const fn new() -> Self {
        Self { state: ProcessState::Running, inbox: VecDeque::new(), busy_until: None, queue: VecDeque::new() }
    }

    pub(super) fn clear(&mut self) {
        self.inbox.clear();
        self.queue.clear();
        self.busy_until = None;
    }
}

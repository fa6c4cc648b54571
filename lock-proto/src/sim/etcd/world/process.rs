//! A client process: the machine, its clock, and what its application was told.

use crate::lock::Machine;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::wire::Wire;
use crate::etcd::{Client, ElectionEvent, OwnerKey, QueryId, StreamId};
use crate::fault::Fault;
use crate::id::{ConnId, LockId};
use crate::sim::clock::Clock;
use crate::sim::record::Record;
use crate::sim::trace::State;
use crate::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) machine: Client,
    pub(super) clock: Clock,
    /// When the machine wants to be called, in true time.
    next: Option<Instant>,
    /// Its clock has been standing still since this true time: a suspended host whose clock does not count on.
    pub(super) asleep: Option<Instant>,
    pub(super) state: State,
    /// What happened while it was stopped.
    pub(super) inbox: VecDeque<Fact>,
    pub(super) records: BTreeMap<LockId, Record>,
    /// The keys of holders, also of those that were notified of a loss and whose guards are still out.
    pub(super) owners: BTreeMap<LockId, OwnerKey>,
    /// What questions and observations were told.
    pub(super) queries: BTreeMap<QueryId, Observed>,
    /// Its open streams, by the world's numbers.
    pub(super) streams: BTreeMap<StreamId, u64>,
    /// Told that the shutdown is over, with what may be left.
    pub(super) stopped: Option<u32>,
    /// Calls and messages that it has sent.
    pub(super) sent: u64,
}

/// Something that reaches a process from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    Connected(ConnId),
    Heard(ConnId, Wire),
    Disconnected(ConnId, Fault),
    /// The application gives a lock back, as it was told to do after some time.
    Release(LockId),
    /// The application writes to the resource, if it believes to hold the lock.
    Write(LockId),
}

/// What a question or an observation was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Observed {
    pub(super) name: Arc<[u8]>,
    pub(super) observes: bool,
    pub(super) events: Vec<ElectionEvent>,
    pub(super) over: bool,
}

impl Process {
    pub(super) fn new(machine: Client, clock: Clock) -> Self {
        let mut process = Self {
            machine,
            clock,
            next: None,
            asleep: None,
            state: State::Running,
            inbox: VecDeque::new(),
            records: BTreeMap::new(),
            owners: BTreeMap::new(),
            queries: BTreeMap::new(),
            streams: BTreeMap::new(),
            stopped: None,
            sent: 0,
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
        match self.state {
            State::Running => self.next,
            State::Paused | State::Down => None,
        }
    }

    /// Asks the machine when it wants to be called: after every call.
    pub(super) fn look(&mut self) {
        self.next = self.machine.next_deadline().map(|at| self.when(at));
    }
}

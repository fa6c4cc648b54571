//! A client process: the machine, its clock, and what its application was told.

use crate::lock::Machine;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::time::Duration;

use super::super::check::Permit;
use super::super::clock::Clock;
use super::super::record::Record;
use super::super::trace::State;
use crate::fault::Fault;
use crate::id::{ConnId, LockId};
use crate::redis::{CLIENT_PART, Client};
use crate::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) machine: Client,
    pub(super) clock: Clock,
    pub(super) state: State,
    /// When the machine wants to be called, in true time.
    next: Option<Instant>,
    /// Its clock has been standing still since this true time.
    pub(super) asleep: Option<Instant>,
    /// What happened while it was stopped.
    pub(super) inbox: VecDeque<Fact>,
    pub(super) records: BTreeMap<LockId, Record>,
    /// Told that the shutdown is over, with the number of locks that could not be released.
    pub(super) stopped: Option<u32>,
    /// Its host will write in a moment.
    pub(super) gathers: bool,
    /// What the values of its keys begin with.
    mark: Vec<u8>,
}

/// Something that reaches a process from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    Connected(ConnId),
    Received(ConnId, Vec<u8>),
    Disconnected(ConnId, Fault),
    /// Its application has something to do.
    Chore(Chore),
}

/// What an application does by itself when its time comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chore {
    /// Gives a lock back, held or lost.
    Release(LockId),
    /// Looks whether it holds the lock, and writes in a moment if so. Again and again, if an interval is given.
    Look(LockId, Option<Duration>),
    /// Writes to what the lock protects, without another look.
    Write(Permit),
    /// Its host writes what was gathered.
    Flush,
}

impl Process {
    pub(super) fn new(machine: Client, clock: Clock) -> Self {
        let mut mark = machine.identity().token(0).to_string().into_bytes();
        mark.truncate(CLIENT_PART);
        Self {
            mark,
            machine,
            clock,
            state: State::Running,
            next: None,
            asleep: None,
            inbox: VecDeque::new(),
            records: BTreeMap::new(),
            stopped: None,
            gathers: false,
        }
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

    /// Whether it has nothing to do, and `value` is one of its tokens.
    pub(super) fn has_forgotten(&self, value: &[u8]) -> bool {
        let is_idle = self.state == State::Running && self.stopped.is_none() && self.next.is_none();
        is_idle && value.starts_with(&self.mark)
    }

    /// Asks the machine when it wants to be called: after every call.
    pub(super) fn look(&mut self) {
        self.next = self.machine.next_deadline().map(|at| self.when(at));
    }
}

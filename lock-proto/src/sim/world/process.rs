//! A client process: the machine, its clock, and what its application was told.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use super::super::clock::Clock;
use crate::fault::Fault;
use crate::id::{ConnId, LockId};
use crate::redis::{Client, Event, Grant};
use crate::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) machine: Client,
    pub(super) clock: Clock,
    pub(super) state: ProcessState,
    /// What happened while it was stopped.
    pub(super) inbox: VecDeque<Fact>,
    pub(super) records: BTreeMap<LockId, Record>,
    /// Told that the shutdown is over, with the number of locks that could not be released.
    pub(super) stopped: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessState {
    Running,
    Paused,
    Dead,
}

/// Something that reaches a process from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    Connected(ConnId),
    Received(ConnId, Vec<u8>),
    Disconnected(ConnId, Fault),
    /// The application gives a lock back, as it was told to do after some time.
    Release(LockId),
}

/// What is known of one acquisition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The key under which it is locked.
    pub(super) key: Vec<u8>,
    pub(super) stage: Stage,
    pub(super) events: Vec<Event>,
    /// In true time, as many as `events`.
    pub(super) times: Vec<Instant>,
    pub(super) grant: Option<Grant>,
    /// Claim an offer as soon as it comes.
    pub(super) claim: bool,
    /// Give it back this long after the grant.
    pub(super) hold: Option<Duration>,
}

/// Where an acquisition stands, by what its application has done and was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    Offered,
    Held,
    Lost,
    Releasing,
    Abandoned,
    Ended,
}

impl Record {
    pub(super) const fn new(key: Vec<u8>, claim: bool) -> Self {
        Self { key, stage: Stage::Waiting, events: Vec::new(), times: Vec::new(), grant: None, claim, hold: None }
    }
}

impl Process {
    pub(super) fn new(machine: Client, clock: Clock) -> Self {
        Self {
            machine,
            clock,
            state: ProcessState::Running,
            inbox: VecDeque::new(),
            records: BTreeMap::new(),
            stopped: None,
        }
    }

    /// The process's own time.
    pub(super) fn local(&self, now: Instant) -> Instant {
        Instant::from_nanos(self.clock.read(now))
    }

    /// True time at which its clock shows `local`.
    pub(super) fn when(&self, local: Instant) -> Instant {
        self.clock.when(local.as_nanos())
    }

    /// True time at which the machine wants to be called; `None` while the process does not run.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            ProcessState::Running => self.machine.next_deadline().map(|at| self.when(at)),
            ProcessState::Paused | ProcessState::Dead => None,
        }
    }
}

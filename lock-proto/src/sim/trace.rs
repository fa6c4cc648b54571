//! A structured record of a run, for pictures.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::check::Violation;
use super::direction::Direction;
use crate::id::LockId;
use crate::time::Instant;

/// Who a line of the picture belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// A client process.
    Client(usize),
    /// A Redis node or an etcd member.
    Node(usize),
    /// What the locks protect.
    Resource,
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(index) => write!(f, "client {index}"),
            Self::Node(index) => write!(f, "node {index}"),
            Self::Resource => f.write_str("resource"),
        }
    }
}

/// Something that travelled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who sent it.
    pub from: Lane,
    /// Who it was for.
    pub to: Lane,
    /// What it says, in short.
    pub label: String,
    /// When it left, in true time.
    pub sent: Instant,
    /// What became of it.
    pub fate: Fate,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Still under way, or held back by a cut, when the run ended.
    UnderWay,
    /// It arrived at this time.
    Arrived(Instant),
    /// It was lost at this time, with its connection.
    Lost(Instant),
}

/// The number of a message in [`Trace::messages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(usize);

/// Whether a process does anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// It runs.
    Running,
    /// It is stopped, and will go on.
    Paused,
    /// It is dead.
    Down,
}

/// Where an acquisition has got to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Point {
    /// Somebody wants this lock.
    Asked,
    /// It is granted the lock: an offer, until it is claimed.
    Granted {
        /// The fencing token, if there is one.
        fence: Option<u64>,
        /// The end of validity, in true time.
        valid_until: Instant,
    },
    /// Its application has taken what it was offered: what was granted before is held from now on.
    Claimed,
    /// The end of validity has moved, in true time.
    Renewed {
        /// The new end.
        valid_until: Instant,
    },
    /// It was told that the lock is lost, and why.
    Lost(String),
    /// It asked to give the lock back, or dropped it.
    GaveBack,
    /// Nothing more will be told of it, and this was the last.
    Ended(String),
}

/// Something that happened at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A process stops, goes on, dies or starts.
    State {
        /// Whose.
        lane: Lane,
        /// What it is from now on.
        state: State,
    },
    /// A clock was set, forward or (negative) back, in ns. One that stood still for a time, and goes on, was set back by it.
    Clock {
        /// Whose.
        lane: Lane,
        /// By how much.
        by: i64,
    },
    /// Nothing passes this way from now on.
    Cut {
        /// The client.
        client: usize,
        /// The node.
        node: usize,
        /// The direction.
        direction: Direction,
    },
    /// Everything passes this way again.
    Healed {
        /// The client.
        client: usize,
        /// The node.
        node: usize,
        /// The direction.
        direction: Direction,
    },
    /// An acquisition moves on.
    Lock {
        /// Whose.
        client: usize,
        /// Which.
        lock: LockId,
        /// The name that is locked.
        name: String,
        /// How far it is.
        point: Point,
    },
    /// A write reaches what the lock protects.
    Write {
        /// Whose.
        client: usize,
        /// Under which acquisition.
        lock: LockId,
        /// The name that is locked.
        name: String,
        /// The fencing token that it carries.
        fence: Option<u64>,
        /// Whether the resource took it.
        accepted: bool,
    },
    /// A checker has found something.
    Violation(Violation),
    /// Anything else worth a word.
    Note {
        /// Where it belongs, if anywhere.
        lane: Option<Lane>,
        /// The word.
        text: String,
    },
}

/// Something that happened, and when, in true time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// True time.
    pub at: Instant,
    /// What happened.
    pub what: What,
}

/// A run as data: for timelines and other pictures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// How many clients there were.
    pub clients: usize,
    /// How many nodes there were.
    pub nodes: usize,
    /// The end of the first phase: the faults have stopped.
    pub calm: Option<Instant>,
    /// The end of the run.
    pub end: Instant,
    /// What happened, in order.
    pub entries: Vec<Entry>,
    /// What was sent, in order of sending.
    pub messages: Vec<Message>,
}

/// Makes a [`Trace`], if it is wanted; else it costs a look at a pointer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Option<Box<Trace>>);

impl Recorder {
    /// Records from now on.
    pub(crate) fn on(clients: usize, nodes: usize) -> Self {
        Self(Some(Box::new(Trace { clients, nodes, ..Trace::default() })))
    }

    /// Whether somebody records.
    pub(crate) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Something has happened. `what` is made only if somebody records.
    pub(crate) fn note(&mut self, now: Instant, what: impl FnOnce() -> What) {
        if let Some(trace) = &mut self.0 {
            trace.entries.push(Entry { at: now, what: what() });
        }
    }

    /// A message leaves; its label is made only if somebody records.
    pub(crate) fn sent(
        &mut self,
        now: Instant,
        from: Lane,
        to: Lane,
        label: impl FnOnce() -> String,
    ) -> Option<MessageId> {
        let trace = self.0.as_mut()?;
        trace.messages.push(Message { from, to, label: label(), sent: now, fate: Fate::UnderWay });
        Some(MessageId(trace.messages.len() - 1))
    }

    /// What became of a message.
    pub(crate) fn fate(&mut self, message: Option<MessageId>, fate: Fate) {
        if let (Some(trace), Some(MessageId(index))) = (&mut self.0, message)
            && let Some(message) = trace.messages.get_mut(index)
        {
            message.fate = fate;
        }
    }

    /// The faults have stopped.
    pub(crate) fn calm(&mut self, now: Instant) {
        if let Some(trace) = &mut self.0 {
            trace.calm = Some(now);
        }
    }

    /// What was recorded, up to now; empty if nothing was.
    pub(crate) fn finish(&mut self, now: Instant) -> Trace {
        let mut trace = self.0.take().map_or_else(Trace::default, |trace| *trace);
        trace.end = now;
        trace
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    #[test]
    fn nothing_is_made_while_nobody_records() {
        let mut off = Recorder::default();
        off.note(Instant::ZERO, || unreachable!());
        assert_eq!(off.sent(Instant::ZERO, Lane::Client(0), Lane::Node(0), || unreachable!()), None);
        assert!(!off.is_on() && off.finish(Instant::ZERO) == Trace::default());
    }

    #[test]
    fn messages_get_their_fate() {
        let mut on = Recorder::on(1, 1);
        let (a, b) = (Instant::from_millis(1), Instant::from_millis(2));
        let first = on.sent(a, Lane::Client(0), Lane::Node(0), || "SET".to_string());
        on.sent(a, Lane::Client(0), Lane::Node(0), || "DEL".to_string());
        on.fate(first, Fate::Arrived(b));
        let trace = on.finish(b);
        assert_eq!(trace.messages[0].fate, Fate::Arrived(b));
        assert_eq!(trace.messages[1].fate, Fate::UnderWay);
    }
}

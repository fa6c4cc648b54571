//! A structured record of a run, for visualisation.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::check::Violation;
use super::direction::Direction;
use lock_proto::Instant;
use lock_proto::LockId;

/// A lane of the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// A client process.
    Client(usize),
    /// A Redis node, or a member of etcd or ZooKeeper.
    Node(usize),
    /// The resource that the locks protect.
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

/// A message that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender.
    pub from: Lane,
    /// The receiver.
    pub to: Lane,
    /// A short label of its content.
    pub label: String,
    /// When it was sent, in true time.
    pub sent: Instant,
    /// What happened to it.
    pub delivery: Delivery,
}

/// What happened to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Still in flight, or held back by a cut, when the run ended.
    InFlight,
    /// It arrived at this time.
    Arrived(Instant),
    /// It was lost with its connection at this time.
    Lost(Instant),
}

/// Index of a message in [`Trace::messages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(usize);

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProcessState {
    /// It runs.
    Running,
    /// It is paused and will resume.
    Paused,
    /// It has been killed.
    Down,
}

/// A step of an acquisition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Point {
    /// The application requested the lock.
    Requested,
    /// The lock is granted. It is an offer until it is claimed.
    Granted {
        /// The fencing token, if any.
        fence: Option<u64>,
        /// The end of validity, in true time.
        valid_until: Instant,
    },
    /// The application claimed the offer and now holds the lock.
    Claimed,
    /// The end of validity has moved, in true time.
    Renewed {
        /// The new end.
        valid_until: Instant,
    },
    /// The application learned that the lock is lost, for this reason.
    Lost(String),
    /// The application released the lock, or dropped the acquisition.
    Released,
    /// The last event of the acquisition.
    Ended(String),
}

/// Something that happened at one point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A process is paused, resumed, killed or started.
    State {
        /// The process.
        lane: Lane,
        /// Its new state.
        state: ProcessState,
    },
    /// A clock was set by this many ns, forward or (negative) back. A clock that stopped for a
    /// while counts as set back.
    Clock {
        /// The owner of the clock.
        lane: Lane,
        /// By how much.
        by: i64,
    },
    /// Nothing passes in this direction from now on.
    Cut {
        /// The client.
        client: usize,
        /// The node.
        node: usize,
        /// The direction.
        direction: Direction,
    },
    /// Traffic passes in this direction again.
    Healed {
        /// The client.
        client: usize,
        /// The node.
        node: usize,
        /// The direction.
        direction: Direction,
    },
    /// An acquisition progresses.
    Lock {
        /// The client.
        client: usize,
        /// The acquisition.
        lock: LockId,
        /// The name of the lock.
        name: String,
        /// The step.
        point: Point,
    },
    /// A write reaches the protected resource.
    Write {
        /// The client.
        client: usize,
        /// The acquisition.
        lock: LockId,
        /// The name of the lock.
        name: String,
        /// The fencing token that it carries.
        fence: Option<u64>,
        /// Whether the resource accepted it.
        accepted: bool,
    },
    /// A checker found a violation.
    Violation(Violation),
    /// A free-form note.
    Note {
        /// The lane that it belongs to, if any.
        lane: Option<Lane>,
        /// The text.
        text: String,
    },
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// True time.
    pub at: Instant,
    /// What happened.
    pub what: TraceEvent,
}

/// A run as data, for timelines and other visualisations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Number of clients.
    pub clients: usize,
    /// Number of nodes.
    pub nodes: usize,
    /// When the faults stopped: the end of the first phase.
    pub calm: Option<Instant>,
    /// When the run ended.
    pub end: Instant,
    /// The events, in order.
    pub entries: Vec<TraceEntry>,
    /// The messages, in the order of sending.
    pub messages: Vec<Message>,
}

/// Builds a [`Trace`] if enabled. Otherwise costs one pointer check.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder(Option<Box<Trace>>);

impl Recorder {
    pub(crate) fn on(clients: usize, nodes: usize) -> Self {
        Self(Some(Box::new(Trace { clients, nodes, ..Trace::default() })))
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Records an event. `what` is evaluated only if recording is enabled.
    pub(crate) fn note(&mut self, now: Instant, what: impl FnOnce() -> TraceEvent) {
        if let Some(trace) = &mut self.0 {
            trace.entries.push(TraceEntry { at: now, what: what() });
        }
    }

    pub(crate) fn sent(
        &mut self,
        now: Instant,
        from: Lane,
        to: Lane,
        label: impl FnOnce() -> String,
    ) -> Option<MessageId> {
        let trace = self.0.as_mut()?;
        trace.messages.push(Message { from, to, label: label(), sent: now, delivery: Delivery::InFlight });
        Some(MessageId(trace.messages.len() - 1))
    }

    pub(crate) fn set_delivery(&mut self, message: Option<MessageId>, delivery: Delivery) {
        if let (Some(trace), Some(MessageId(index))) = (&mut self.0, message)
            && let Some(message) = trace.messages.get_mut(index)
        {
            message.delivery = delivery;
        }
    }

    pub(crate) fn calm(&mut self, now: Instant) {
        if let Some(trace) = &mut self.0 {
            trace.calm = Some(now);
        }
    }

    /// Returns what was recorded so far; empty if recording is disabled.
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
    fn disabled_recorder_builds_nothing() {
        let mut off = Recorder::default();
        off.note(Instant::ZERO, || unreachable!());
        assert_eq!(off.sent(Instant::ZERO, Lane::Client(0), Lane::Node(0), || unreachable!()), None);
        assert!(!off.is_on() && off.finish(Instant::ZERO) == Trace::default());
    }

    #[test]
    fn message_delivery_is_recorded() {
        let mut on = Recorder::on(1, 1);
        let (a, b) = (Instant::from_millis(1), Instant::from_millis(2));
        let first = on.sent(a, Lane::Client(0), Lane::Node(0), || "SET".to_string());
        on.sent(a, Lane::Client(0), Lane::Node(0), || "DEL".to_string());
        on.set_delivery(first, Delivery::Arrived(b));
        let trace = on.finish(b);
        assert_eq!(trace.messages[0].delivery, Delivery::Arrived(b));
        assert_eq!(trace.messages[1].delivery, Delivery::InFlight);
    }
}

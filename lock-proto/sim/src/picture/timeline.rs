//! Reconstructs a run from its trace: acquisitions from request to end, pauses, cuts.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::time::Duration;

use crate::direction::Direction;
use crate::trace::{Lane, Point, ProcessState, Trace, TraceEvent};
use lock_proto::Instant;
use lock_proto::LockId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: Instant,
    pub(super) to: Instant,
}

impl Span {
    pub(super) fn is_empty(self) -> bool {
        self.to <= self.from
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AcquisitionLane {
    pub(super) client: usize,
    pub(super) lock: LockId,
    pub(super) name: String,
    pub(super) fence: Option<u64>,
    pub(super) requested: Instant,
    pub(super) granted: Option<Instant>,
    pub(super) claimed: Option<Instant>,
    /// When the client believed to hold the lock. Several spans if it was renewed after its end.
    pub(super) believed: Vec<Span>,
    pub(super) renewed: Vec<Instant>,
    /// When the client was notified of the loss, and its cause.
    pub(super) lost: Option<(Instant, String)>,
    pub(super) released: Option<Instant>,
    /// When the client was notified of the end, and which end.
    pub(super) ended: Option<(Instant, String)>,
    /// Time of the last known event.
    pub(super) last_event: Instant,
}

impl AcquisitionLane {
    fn new(client: usize, lock: LockId, name: &str, requested: Instant) -> Self {
        Self {
            client,
            lock,
            name: name.into(),
            fence: None,
            requested,
            granted: None,
            claimed: None,
            believed: Vec::new(),
            renewed: Vec::new(),
            lost: None,
            released: None,
            ended: None,
            last_event: requested,
        }
    }

    /// Returns true if no further event will come.
    fn has_ended(&self) -> bool {
        // A waiter that is dropped gets no event.
        self.ended.is_some() || (self.released.is_some() && self.granted.is_none())
    }

    fn extend_belief(&mut self, at: Instant, until: Instant) {
        match self.believed.last_mut() {
            Some(span) if at <= span.to => span.to = until,
            Some(_) | None => self.believed.push(Span { from: at, to: until }),
        }
    }

    fn end_belief(&mut self, at: Instant) {
        if let Some(span) = self.believed.last_mut() {
            span.to = span.to.min(at);
        }
    }

    fn apply(&mut self, at: Instant, point: &Point) {
        match point {
            Point::Requested => {}
            Point::Granted { fence, valid_until } => {
                self.granted.get_or_insert(at);
                self.fence = *fence;
                self.extend_belief(at, *valid_until);
            }
            Point::Claimed => self.claimed = self.claimed.or(Some(at)),
            Point::Renewed { valid_until } => {
                self.renewed.push(at);
                self.extend_belief(at, *valid_until);
            }
            Point::Lost(why) => {
                self.end_belief(at);
                self.lost = Some((at, why.clone()));
            }
            Point::Released => {
                self.end_belief(at);
                self.released = Some(at);
            }
            Point::Ended(how) => {
                self.end_belief(at);
                self.ended = Some((at, how.clone()));
            }
        }
        self.last_event = at;
    }

    /// Returns the time between the end of the hold and the notification of its loss.
    pub(super) fn unreported(&self) -> Option<Span> {
        let (notified, _) = self.lost.as_ref()?;
        let span = Span { from: self.believed.last()?.to, to: *notified };
        (!span.is_empty()).then_some(span)
    }
}

/// A period in which a process was paused or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interruption {
    pub(super) lane: Lane,
    pub(super) state: ProcessState,
    pub(super) span: Span,
}

/// A cut between a client and a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) client: usize,
    pub(super) node: usize,
    /// `None` means both directions.
    pub(super) direction: Option<Direction>,
    pub(super) span: Span,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Timeline {
    pub(super) acquisitions: Vec<AcquisitionLane>,
    pub(super) interruptions: Vec<Interruption>,
    pub(super) cuts: Vec<Cut>,
    /// Names of locks, in order of appearance.
    pub(super) names: Vec<String>,
    /// Number of leading digits that all fencing tokens share, and labels omit.
    shared_digits: usize,
    /// Whether the trace records claims.
    pub(super) claims: bool,
}

impl Timeline {
    pub(super) fn of(trace: &Trace) -> Self {
        let mut builder = TimelineBuilder {
            timeline: Self::default(),
            live: BTreeMap::new(),
            interrupted: BTreeMap::new(),
            cut: Vec::new(),
        };
        for entry in &trace.entries {
            builder.apply(entry.at, &entry.what);
        }
        builder.end(trace.end)
    }

    /// Returns the distinguishing digits of a fencing token.
    pub(super) fn fence(&self, fence: u64) -> String {
        let digits = fence.to_string();
        match digits.get(self.shared_digits..).filter(|_| self.shared_digits > 0) {
            Some(rest) => format!("…{rest}"),
            None => digits,
        }
    }

    pub(super) fn label(&self, acquisition: &AcquisitionLane) -> String {
        match acquisition.fence {
            Some(fence) => format!("{} · fence {}", acquisition.name, self.fence(fence)),
            None => acquisition.name.clone(),
        }
    }

    /// Counts the digits that long tokens of equal length share; at least four remain.
    fn count_shared_digits(&mut self) {
        let all: Vec<String> =
            self.acquisitions.iter().filter_map(|a| a.fence).map(|fence| fence.to_string()).collect();
        let Some(first) = all.first().filter(|first| first.len() > 8) else { return };
        let common = |other: &String| {
            let shared_digits = first.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
            if first.len() == other.len() { shared_digits } else { 0 }
        };
        self.shared_digits = all.iter().map(common).min().unwrap_or(0).min(first.len() - 4);
    }

    pub(super) fn name(&self, name: &str) -> usize {
        self.names.iter().position(|known| known == name).unwrap_or(0)
    }
}

struct TimelineBuilder {
    timeline: Timeline,
    /// Index of each open acquisition in the timeline.
    live: BTreeMap<(usize, LockId), usize>,
    interrupted: BTreeMap<Lane, (ProcessState, Instant)>,
    cut: Vec<(usize, usize, Direction, Instant)>,
}

impl TimelineBuilder {
    fn apply(&mut self, at: Instant, what: &TraceEvent) {
        match what {
            TraceEvent::State { lane, state } => self.state(at, *lane, *state),
            TraceEvent::Clock { lane: Lane::Client(client), by } => self.clock(at, *client, *by),
            TraceEvent::Cut { client, node, direction } => {
                if !self.cut.iter().any(|(c, n, w, _)| (c, n, w) == (client, node, direction)) {
                    self.cut.push((*client, *node, *direction, at));
                }
            }
            TraceEvent::Healed { client, node, direction } => {
                while let Some(i) = self.cut.iter().position(|(c, n, w, _)| (c, n, w) == (client, node, direction)) {
                    let cut = self.cut.remove(i);
                    self.close_cut(cut, at);
                }
            }
            TraceEvent::Lock { client, lock, name, point } => self.lock(at, (*client, *lock), name, point),
            TraceEvent::Write { name, .. } => self.named(name),
            TraceEvent::Clock { lane: Lane::Node(_) | Lane::Resource, .. }
            | TraceEvent::Violation(_)
            | TraceEvent::Note { .. } => {}
        }
    }

    fn named(&mut self, name: &str) {
        if !self.timeline.names.iter().any(|known| known == name) {
            self.timeline.names.push(name.into());
        }
    }

    fn lock(&mut self, at: Instant, id: (usize, LockId), name: &str, point: &Point) {
        self.named(name);
        self.timeline.claims |= *point == Point::Claimed;
        let all = &mut self.timeline.acquisitions;
        let index = *self.live.entry(id).or_insert_with(|| {
            all.push(AcquisitionLane::new(id.0, id.1, name, at));
            all.len() - 1
        });
        all[index].apply(at, point);
        if all[index].has_ended() {
            self.live.remove(&id);
        }
    }

    fn state(&mut self, at: Instant, lane: Lane, state: ProcessState) {
        if self.interrupted.get(&lane).is_some_and(|(before, _)| *before == state) {
            return;
        }
        if let Some((state, from)) = self.interrupted.remove(&lane) {
            self.timeline.interruptions.push(Interruption { lane, state, span: Span { from, to: at } });
        }
        match state {
            ProcessState::Running => {}
            ProcessState::Paused => {
                self.interrupted.insert(lane, (state, at));
            }
            ProcessState::Down => {
                self.interrupted.insert(lane, (state, at));
                let dead: Vec<_> =
                    self.live.keys().filter(|(client, _)| lane == Lane::Client(*client)).copied().collect();
                for id in dead {
                    if let Some(index) = self.live.remove(&id) {
                        let acquisition = &mut self.timeline.acquisitions[index];
                        acquisition.end_belief(at);
                        acquisition.last_event = at;
                    }
                }
            }
        }
    }

    /// Adjusts the deadlines of a client whose clock was set.
    fn clock(&mut self, at: Instant, client: usize, by: i64) {
        let shift = Duration::from_nanos(by.unsigned_abs());
        // A clock that is behind was stopped, and has been wrong for that long.
        let since = if by < 0 { at.back(shift) } else { at };
        for ((owner, _), index) in &self.live {
            let acquisition = &mut self.timeline.acquisitions[*index];
            if let Some(span) = acquisition.believed.last_mut().filter(|span| *owner == client && span.to > since) {
                span.to = if by < 0 { span.to + shift } else { span.to.back(shift).max(at) };
            }
        }
    }

    fn close_cut(&mut self, (client, node, direction, from): (usize, usize, Direction, Instant), to: Instant) {
        let span = Span { from, to };
        let other = |cut: &&mut Cut| {
            (cut.client, cut.node, cut.span) == (client, node, span) && cut.direction != Some(direction)
        };
        match self.timeline.cuts.iter_mut().find(other) {
            Some(cut) => cut.direction = None,
            None => self.timeline.cuts.push(Cut { client, node, direction: Some(direction), span }),
        }
    }

    /// Extends everything that is still open to the end of the run.
    fn end(mut self, end: Instant) -> Timeline {
        for cut in core::mem::take(&mut self.cut) {
            self.close_cut(cut, end);
        }
        for (lane, (state, from)) in core::mem::take(&mut self.interrupted) {
            self.timeline.interruptions.push(Interruption { lane, state, span: Span { from, to: end } });
        }
        for index in self.live.into_values() {
            let acquisition = &mut self.timeline.acquisitions[index];
            acquisition.last_event = end;
            if let Some(span) = acquisition.believed.last_mut() {
                span.to = span.to.min(end);
            }
        }
        self.timeline.count_shared_digits();
        self.timeline
    }
}

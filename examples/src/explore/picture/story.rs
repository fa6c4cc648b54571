//! Reconstructs a run from its trace: acquisitions from request to end, pauses, cuts.

use core::time::Duration;
use std::collections::BTreeMap;

use lock_proto::sim::Direction;
use lock_proto::sim::trace::{Lane, Point, State, Trace, What};
use lock_proto::{Instant, LockId};

/// A period of time.
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

/// One acquisition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acquisition {
    pub(super) client: usize,
    pub(super) lock: LockId,
    pub(super) name: String,
    pub(super) fence: Option<u64>,
    pub(super) asked: Instant,
    pub(super) granted: Option<Instant>,
    pub(super) claimed: Option<Instant>,
    /// When the client believed to hold the lock. Several spans if it was renewed after its end.
    pub(super) believed: Vec<Span>,
    pub(super) renewed: Vec<Instant>,
    /// When the client was notified of the loss, and its cause.
    pub(super) lost: Option<(Instant, String)>,
    pub(super) gave_back: Option<Instant>,
    /// When the client was notified of the end, and which end.
    pub(super) ended: Option<(Instant, String)>,
    /// Time of the last known event.
    pub(super) over: Instant,
}

impl Acquisition {
    fn new(client: usize, lock: LockId, name: &str, asked: Instant) -> Self {
        Self {
            client,
            lock,
            name: name.into(),
            fence: None,
            asked,
            granted: None,
            claimed: None,
            believed: Vec::new(),
            renewed: Vec::new(),
            lost: None,
            gave_back: None,
            ended: None,
            over: asked,
        }
    }

    /// Returns true if no further event will come.
    fn is_over(&self) -> bool {
        // A waiter that is dropped gets no event.
        self.ended.is_some() || (self.gave_back.is_some() && self.granted.is_none())
    }

    /// From `at` on, the client believes to hold the lock until `until`.
    fn believes(&mut self, at: Instant, until: Instant) {
        match self.believed.last_mut() {
            Some(span) if at <= span.to => span.to = until,
            Some(_) | None => self.believed.push(Span { from: at, to: until }),
        }
    }

    /// From `at` on, the client no longer believes to hold the lock.
    fn stops(&mut self, at: Instant) {
        if let Some(span) = self.believed.last_mut() {
            span.to = span.to.min(at);
        }
    }

    fn goes_on(&mut self, at: Instant, point: &Point) {
        match point {
            Point::Requested => {}
            Point::Granted { fence, valid_until } => {
                self.granted.get_or_insert(at);
                self.fence = *fence;
                self.believes(at, *valid_until);
            }
            Point::Claimed => self.claimed = self.claimed.or(Some(at)),
            Point::Renewed { valid_until } => {
                self.renewed.push(at);
                self.believes(at, *valid_until);
            }
            Point::Lost(why) => {
                self.stops(at);
                self.lost = Some((at, why.clone()));
            }
            Point::Released => {
                self.stops(at);
                self.gave_back = Some(at);
            }
            Point::Ended(how) => {
                self.stops(at);
                self.ended = Some((at, how.clone()));
            }
        }
        self.over = at;
    }

    /// Returns the time between the end of the hold and the notification of its loss.
    pub(super) fn untold(&self) -> Option<Span> {
        let (told, _) = self.lost.as_ref()?;
        let span = Span { from: self.believed.last()?.to, to: *told };
        (!span.is_empty()).then_some(span)
    }
}

/// A paused process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Still {
    pub(super) lane: Lane,
    pub(super) state: State,
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

/// A reconstructed run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Story {
    pub(super) acquisitions: Vec<Acquisition>,
    pub(super) stills: Vec<Still>,
    pub(super) cuts: Vec<Cut>,
    /// Names of locks, in order of appearance.
    pub(super) names: Vec<String>,
    /// Number of leading digits that all fencing tokens share, and labels omit.
    same: usize,
    /// Whether the trace records claims.
    pub(super) claims: bool,
}

impl Story {
    pub(super) fn of(trace: &Trace) -> Self {
        let mut builder =
            Builder { story: Self::default(), live: BTreeMap::new(), still: BTreeMap::new(), cut: Vec::new() };
        for entry in &trace.entries {
            builder.apply(entry.at, &entry.what);
        }
        builder.end(trace.end)
    }

    /// Returns the distinguishing digits of a fencing token.
    pub(super) fn fence(&self, fence: u64) -> String {
        let digits = fence.to_string();
        match digits.get(self.same..).filter(|_| self.same > 0) {
            Some(rest) => format!("…{rest}"),
            None => digits,
        }
    }

    /// Returns the label of an acquisition.
    pub(super) fn label(&self, acquisition: &Acquisition) -> String {
        match acquisition.fence {
            Some(fence) => format!("{} · fence {}", acquisition.name, self.fence(fence)),
            None => acquisition.name.clone(),
        }
    }

    /// Returns the length of the common prefix of long fencing tokens with equal length; at least
    /// four digits remain.
    fn count_same(&mut self) {
        let all: Vec<String> =
            self.acquisitions.iter().filter_map(|a| a.fence).map(|fence| fence.to_string()).collect();
        let Some(first) = all.first().filter(|first| first.len() > 8) else { return };
        let common = |other: &String| {
            let same = first.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
            if first.len() == other.len() { same } else { 0 }
        };
        self.same = all.iter().map(common).min().unwrap_or(0).min(first.len() - 4);
    }

    /// Returns the index of a lock's name.
    pub(super) fn name(&self, name: &str) -> usize {
        self.names.iter().position(|known| known == name).unwrap_or(0)
    }
}

struct Builder {
    story: Story,
    /// Index of each open acquisition in the story.
    live: BTreeMap<(usize, LockId), usize>,
    still: BTreeMap<Lane, (State, Instant)>,
    cut: Vec<(usize, usize, Direction, Instant)>,
}

impl Builder {
    fn apply(&mut self, at: Instant, what: &What) {
        match what {
            What::State { lane, state } => self.state(at, *lane, *state),
            What::Clock { lane: Lane::Client(client), by } => self.clock(at, *client, *by),
            What::Cut { client, node, direction } => {
                if !self.cut.iter().any(|(c, n, w, _)| (c, n, w) == (client, node, direction)) {
                    self.cut.push((*client, *node, *direction, at));
                }
            }
            What::Healed { client, node, direction } => {
                while let Some(i) = self.cut.iter().position(|(c, n, w, _)| (c, n, w) == (client, node, direction)) {
                    let cut = self.cut.remove(i);
                    self.healed(cut, at);
                }
            }
            What::Lock { client, lock, name, point } => self.lock(at, (*client, *lock), name, point),
            What::Write { name, .. } => self.named(name),
            What::Clock { lane: Lane::Node(_) | Lane::Resource, .. } | What::Violation(_) | What::Note { .. } => {}
        }
    }

    fn named(&mut self, name: &str) {
        if !self.story.names.iter().any(|known| known == name) {
            self.story.names.push(name.into());
        }
    }

    fn lock(&mut self, at: Instant, id: (usize, LockId), name: &str, point: &Point) {
        self.named(name);
        self.story.claims |= *point == Point::Claimed;
        let all = &mut self.story.acquisitions;
        let index = *self.live.entry(id).or_insert_with(|| {
            all.push(Acquisition::new(id.0, id.1, name, at));
            all.len() - 1
        });
        all[index].goes_on(at, point);
        if all[index].is_over() {
            self.live.remove(&id);
        }
    }

    fn state(&mut self, at: Instant, lane: Lane, state: State) {
        if self.still.get(&lane).is_some_and(|(before, _)| *before == state) {
            return;
        }
        if let Some((state, from)) = self.still.remove(&lane) {
            self.story.stills.push(Still { lane, state, span: Span { from, to: at } });
        }
        match state {
            State::Running => {}
            State::Paused => {
                self.still.insert(lane, (state, at));
            }
            State::Down => {
                self.still.insert(lane, (state, at));
                // A dead process holds nothing any more.
                let dead: Vec<_> =
                    self.live.keys().filter(|(client, _)| lane == Lane::Client(*client)).copied().collect();
                for id in dead {
                    if let Some(index) = self.live.remove(&id) {
                        let acquisition = &mut self.story.acquisitions[index];
                        acquisition.stops(at);
                        acquisition.over = at;
                    }
                }
            }
        }
    }

    /// Adjusts the deadlines of a client whose clock was set.
    fn clock(&mut self, at: Instant, client: usize, by: i64) {
        let shift = Duration::from_nanos(by.unsigned_abs());
        // A clock that is behind stood still, and has been wrong for that long.
        let since = if by < 0 { at.back(shift) } else { at };
        for ((whose, _), index) in &self.live {
            let acquisition = &mut self.story.acquisitions[*index];
            if let Some(span) = acquisition.believed.last_mut().filter(|span| *whose == client && span.to > since) {
                span.to = if by < 0 { span.to + shift } else { span.to.back(shift).max(at) };
            }
        }
    }

    fn healed(&mut self, (client, node, direction, from): (usize, usize, Direction, Instant), to: Instant) {
        let span = Span { from, to };
        let other = |cut: &&mut Cut| {
            (cut.client, cut.node, cut.span) == (client, node, span) && cut.direction != Some(direction)
        };
        match self.story.cuts.iter_mut().find(other) {
            Some(cut) => cut.direction = None,
            None => self.story.cuts.push(Cut { client, node, direction: Some(direction), span }),
        }
    }

    /// Extends everything that is still open to the end of the run.
    fn end(mut self, end: Instant) -> Story {
        for cut in core::mem::take(&mut self.cut) {
            self.healed(cut, end);
        }
        for (lane, (state, from)) in core::mem::take(&mut self.still) {
            self.story.stills.push(Still { lane, state, span: Span { from, to: end } });
        }
        for index in self.live.into_values() {
            let acquisition = &mut self.story.acquisitions[index];
            acquisition.over = end;
            if let Some(span) = acquisition.believed.last_mut() {
                span.to = span.to.min(end);
            }
        }
        self.story.count_same();
        self.story
    }
}

//! Vertical layout of the picture.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};

use super::axis::{Axis, length};
use super::spacing::{Rows, width};
use super::timeline::{Span, Timeline};
use super::{NOTE_SIZE, TEXT_SIZE};
use crate::trace::{Lane, Trace, TraceEvent};

pub(super) const BAR: f64 = 14.0;
const ROW: f64 = 20.0;
const NOTE_ROW: f64 = 13.0;
const CUT_ROW: f64 = 13.0;
/// Height of the axis at the top.
pub(super) const AXIS: f64 = 46.0;
/// Space between clients and nodes, for the messages.
const BETWEEN: f64 = 34.0;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Band {
    pub(super) top: f64,
    pub(super) bottom: f64,
    /// Where messages leave and arrive.
    pub(super) line: f64,
    first: f64,
}

impl Band {
    pub(super) fn row(&self, row: usize) -> f64 {
        self.first + row as f64 * ROW
    }
}

/// A text at a time on a lane: a note, or a clock that is set.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Flag {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) text: String,
    pub(super) clock: bool,
    pub(super) shown: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Layout {
    pub(super) clients: Vec<Band>,
    pub(super) nodes: Vec<Band>,
    pub(super) resource: Option<Band>,
    /// The row of each acquisition; `None` outside of the window.
    pub(super) rows: Vec<Option<usize>>,
    /// The height of each cut; `None` outside of the window.
    pub(super) cuts: Vec<Option<f64>>,
    pub(super) flags: Vec<Flag>,
    pub(super) top: f64,
    pub(super) height: f64,
}

/// Contents of each lane before its height is known.
#[derive(Default)]
struct Draft {
    flags: Vec<(Lane, usize, Flag)>,
    notes: BTreeMap<Lane, Rows>,
}

impl Layout {
    /// Places everything within the window, below a head of height `head`.
    pub(super) fn of(trace: &Trace, timeline: &Timeline, axis: &Axis, window: Span, head: f64) -> Self {
        let draft = Draft::of(trace, axis, window);
        let mut layout = Self { top: AXIS + head, ..Self::default() };
        let mut rows = vec![Rows::default(); trace.clients];
        for acquisition in &timeline.acquisitions {
            let seen = acquisition.requested <= window.to && acquisition.last_event >= window.from;
            let from = axis.x(acquisition.requested);
            let shown = seen.then(|| rows.get_mut(acquisition.client)).flatten();
            // A short bar needs room for its label.
            let end =
                axis.x(acquisition.last_event).max(from + width(&timeline.label(acquisition), TEXT_SIZE) + 16.0) + 6.0;
            layout.rows.push(shown.map(|rows| rows.place(from, end)));
        }
        let mut y = layout.top;
        for (client, rows) in rows.iter().enumerate() {
            let notes = draft.rows(Lane::Client(client)) * NOTE_ROW;
            let first = y + 8.0 + notes + ROW / 2.0;
            // Below the rows is room for a note about the process.
            let line = y + 8.0 + notes + rows.len().max(1) as f64 * ROW + 10.0;
            layout.clients.push(Band { top: y, bottom: line + 14.0, line, first });
            y = line + 14.0;
        }
        y += layout.place_cuts(timeline, axis, window, y);
        for node in 0..trace.nodes {
            let line = y + 14.0;
            let bottom = line + 16.0 + draft.rows(Lane::Node(node)) * NOTE_ROW;
            layout.nodes.push(Band { top: y, bottom, line, first: line + 16.0 });
            y = bottom;
        }
        let written = |what: &TraceEvent| matches!(what, TraceEvent::Write { .. });
        if trace.entries.iter().any(|entry| written(&entry.what)) {
            y += 10.0;
            let bottom = y + 12.0 + timeline.names.len() as f64 * ROW;
            layout.resource = Some(Band { top: y, bottom, line: y, first: y + 6.0 + ROW / 2.0 });
            y = bottom;
        }
        layout.height = y + 8.0;
        layout.place_flags(draft);
        layout
    }

    pub(super) fn band(&self, lane: Lane) -> Option<Band> {
        match lane {
            Lane::Client(client) => self.clients.get(client).copied(),
            Lane::Node(node) => self.nodes.get(node).copied(),
            Lane::Resource => self.resource,
        }
    }

    pub(super) fn bands(&self) -> impl Iterator<Item = (Lane, Band)> {
        let clients = self.clients.iter().enumerate().map(|(i, band)| (Lane::Client(i), *band));
        let nodes = self.nodes.iter().enumerate().map(|(i, band)| (Lane::Node(i), *band));
        clients.chain(nodes).chain(self.resource.map(|band| (Lane::Resource, band)))
    }

    /// Places cuts into the network, between clients and nodes. Returns the height of the network.
    fn place_cuts(&mut self, timeline: &Timeline, axis: &Axis, window: Span, top: f64) -> f64 {
        let mut rows = Rows::default();
        for cut in &timeline.cuts {
            let seen = cut.span.from <= window.to && cut.span.to >= window.from;
            let (from, to) = (axis.x(cut.span.from), axis.x(cut.span.to));
            let row = seen.then(|| rows.place(from, to.max(from + 110.0) + 4.0));
            self.cuts.push(row.map(|row| top + BETWEEN / 2.0 + (row as f64 + 0.5) * CUT_ROW));
        }
        BETWEEN + rows.len() as f64 * CUT_ROW
    }

    fn place_flags(&mut self, draft: Draft) {
        for (lane, row, mut flag) in draft.flags {
            let Some(band) = self.band(lane) else { continue };
            flag.y = row as f64 * NOTE_ROW
                + match lane {
                    Lane::Client(_) => band.top + 14.0,
                    Lane::Node(_) | Lane::Resource => band.line + 18.0,
                };
            self.flags.push(flag);
        }
    }
}

impl Draft {
    fn of(trace: &Trace, axis: &Axis, window: Span) -> Self {
        let mut draft = Self::default();
        for entry in trace.entries.iter().filter(|entry| entry.at >= window.from && entry.at <= window.to) {
            let (lane, text, clock) = match &entry.what {
                TraceEvent::Note { lane: Some(lane), text } => (*lane, text.clone(), false),
                TraceEvent::Clock { lane, by } => {
                    let sign = if *by < 0 { '−' } else { '+' };
                    let by = length(core::time::Duration::from_nanos(by.unsigned_abs()));
                    (*lane, format!("clock {sign}{by}"), true)
                }
                TraceEvent::Note { lane: None, .. }
                | TraceEvent::State { .. }
                | TraceEvent::Cut { .. }
                | TraceEvent::Healed { .. }
                | TraceEvent::Lock { .. }
                | TraceEvent::Write { .. }
                | TraceEvent::Violation(_) => continue,
            };
            let x = axis.x(entry.at);
            let end = x + 16.0 + width(&text, NOTE_SIZE);
            let row = draft.notes.entry(lane).or_default().try_place(x, end, 4);
            draft.flags.push((lane, row.unwrap_or(0), Flag { x, y: 0.0, text, clock, shown: row.is_some() }));
        }
        draft
    }

    fn rows(&self, lane: Lane) -> f64 {
        self.notes.get(&lane).map_or(0, Rows::len) as f64
    }
}

//! The detailed picture of a run.

use alloc::borrow::ToOwned as _;
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};

use super::axis::{Axis, length};
use super::layout::{AXIS, BAR, Layout};
use super::spacing::{Rows, width};
use super::svg::{Anchor, Svg};
use super::timeline::{AcquisitionLane, Span, Timeline};
use super::{COLOURS, Finding, NOTE_SIZE, ServersWord, TEXT_SIZE};
use crate::direction::Direction;
use crate::trace::{Delivery, Lane, Message, ProcessState, Trace, TraceEvent};
use lock_proto::Instant;

const NAMES: f64 = 92.0;
/// Height of a text line above the lanes.
const HEAD_ROW: f64 = 17.0;
/// Further findings are marked without text.
const TEXTS: usize = 8;

pub(super) struct Scene<'a> {
    pub(super) trace: &'a Trace,
    pub(super) timeline: &'a Timeline,
    pub(super) axis: &'a Axis,
    pub(super) window: Span,
    pub(super) findings: &'a [Finding],
    pub(super) servers: ServersWord,
}

/// A text above all lanes.
struct Head {
    class: &'static str,
    x: f64,
    text_x: f64,
    anchor: Anchor,
    row: usize,
    text: String,
    finding: Option<usize>,
}

/// Returns the class of a lock's name: one of the colours.
pub(super) fn colour(timeline: &Timeline, name: &str) -> String {
    let number = timeline.name(name);
    let again = if number >= COLOURS { " again" } else { "" };
    format!("n{}{again}", number % COLOURS)
}

/// Returns true if a message only concerns a connection.
fn is_about_connection(label: &str) -> bool {
    label == "connect" || label == "connected" || label.starts_with("close")
}

impl Scene<'_> {
    /// Draws two pictures side by side: the names of the lanes, and the lanes.
    pub(super) fn draw(&self) -> String {
        let heads = self.heads();
        let rows = heads.iter().map(|head| head.row + 1).max().unwrap_or(0);
        let layout = Layout::of(self.trace, self.timeline, self.axis, self.window, rows as f64 * HEAD_ROW);
        let (height, wide) = (layout.height, self.axis.width());
        let mut svg = Svg::new();
        svg.put(format_args!("<div class=\"scroll\">\n"));
        svg.put(format_args!(
            "<svg class=\"names\" width=\"{NAMES}\" height=\"{height:.0}\" viewBox=\"0 0 {NAMES} {height:.0}\" role=\"presentation\">\n"
        ));
        self.names(&mut svg, &layout);
        svg.put(format_args!("</svg>\n"));
        svg.put(format_args!(
            "<svg class=\"lanes\" width=\"{wide:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {wide:.0} {height:.0}\" role=\"img\" aria-label=\"timeline\">\n"
        ));
        self.lanes(&mut svg, &layout);
        self.breaks(&mut svg, &layout);
        self.interruptions(&mut svg, &layout);
        self.cuts(&mut svg, &layout);
        self.messages(&mut svg, &layout);
        for (acquisition, row) in self.timeline.acquisitions.iter().zip(&layout.rows) {
            if let (Some(row), Some(band)) = (row, layout.clients.get(acquisition.client)) {
                self.acquisition(&mut svg, acquisition, band.row(*row));
            }
        }
        self.writes(&mut svg, &layout);
        Self::flags(&mut svg, &layout);
        Self::draw_heads(&mut svg, &heads, &layout);
        svg.put(format_args!("</svg>\n</div>\n"));
        svg.into_text()
    }

    fn names(&self, svg: &mut Svg, layout: &Layout) {
        for (lane, band) in layout.bands() {
            svg.rect(lane_class(lane), (0.0, band.top), (NAMES, band.bottom - band.top), "");
            let y = match lane {
                Lane::Client(_) => band.row(0),
                Lane::Node(_) => band.line,
                Lane::Resource => band.top + 10.0,
            };
            svg.text("lane", (8.0, y + 4.0), Anchor::Start, &self.servers.name(lane));
        }
        if let Some(band) = layout.resource {
            for (row, name) in self.timeline.names.iter().enumerate() {
                let shown: String = name.chars().take(12).collect();
                svg.text("small", (NAMES - 8.0, band.row(row) + 4.0), Anchor::End, &shown);
            }
        }
        svg.text("small", (8.0, 14.0), Anchor::Start, "true time");
    }

    fn lanes(&self, svg: &mut Svg, layout: &Layout) {
        let wide = self.axis.width();
        for (lane, band) in layout.bands() {
            svg.rect(lane_class(lane), (0.0, band.top), (wide, band.bottom - band.top), "");
            if lane == Lane::Resource {
                for row in 0..self.timeline.names.len() {
                    svg.line("guide", (0.0, band.row(row)), (wide, band.row(row)), "");
                }
            } else {
                svg.line("process", (0.0, band.line), (wide, band.line), "");
            }
        }
        for (x, text) in self.axis.labels() {
            svg.line("guide", (x, 20.0), (x, layout.height), "");
            svg.text("small", (x + 3.0, 14.0), Anchor::Start, &text);
        }
    }

    fn interruptions(&self, svg: &mut Svg, layout: &Layout) {
        for interruption in &self.timeline.interruptions {
            let Some(band) = layout.band(interruption.lane).filter(|_| self.sees(interruption.span)) else { continue };
            let (from, to) = (self.axis.x(interruption.span.from), self.axis.x(interruption.span.to));
            let (class, word) = match interruption.state {
                ProcessState::Paused => ("paused", "stopped"),
                ProcessState::Down => ("down", "dead"),
                ProcessState::Running => continue,
            };
            let title = format!("{} is {word} {}", self.servers.name(interruption.lane), describe(interruption.span));
            svg.rect(class, (from, band.top + 1.0), ((to - from).max(2.0), band.bottom - band.top - 2.0), &title);
            let text = format!("{word} {}", length(interruption.span.to.since(interruption.span.from)));
            if width(&text, NOTE_SIZE) + 10.0 < to - from {
                svg.text("note halo", (from + 5.0, band.line - 3.0), Anchor::Start, &text);
            }
        }
    }

    fn cuts(&self, svg: &mut Svg, layout: &Layout) {
        for (cut, y) in self.timeline.cuts.iter().zip(&layout.cuts) {
            let Some(y) = *y else { continue };
            let (from, to) = (self.axis.x(cut.span.from), self.axis.x(cut.span.to));
            let arrow = match cut.direction {
                None => "⇹",
                Some(Direction::ToNode) => "↛",
                Some(Direction::ToClient) => "↚",
            };
            let node = self.servers.name(Lane::Node(cut.node));
            let text = format!("✂ client {} {arrow} {node}", cut.client);
            let title = format!("{text}: cut {}", describe(cut.span));
            svg.rect("cut", (from, y - 4.0), ((to - from).max(2.0), 8.0), &title);
            svg.text("note halo", (from + 3.0, y + 3.5), Anchor::Start, &text);
        }
    }

    fn messages(&self, svg: &mut Svg, layout: &Layout) {
        let mut labels = vec![Rows::default(); self.trace.clients];
        let mut labels_svg = Svg::new();
        for message in &self.trace.messages {
            let until = match message.delivery {
                Delivery::InFlight => self.trace.end,
                Delivery::Arrived(at) | Delivery::Lost(at) => at,
            };
            if !self.sees(Span { from: message.sent, to: until }) {
                continue;
            }
            let (Some(from), Some(to)) = (layout.band(message.from), layout.band(message.to)) else { continue };
            self.message(svg, message, until, (from.line, to.line));
            // Label requests where there is room. Writes are labelled below.
            let (Lane::Client(client), Lane::Node(_)) = (message.from, message.to) else { continue };
            let text = shortened(&message.label, 26);
            let x = self.axis.x(message.sent);
            let has_text = !is_about_connection(&message.label) && message.label != "…";
            let show_label = has_text && message.sent >= self.window.from;
            if show_label && labels[client].try_place(x, x + width(&text, NOTE_SIZE) + 8.0, 1).is_some() {
                labels_svg.text("note halo", (x + 2.0, from.line + 11.0), Anchor::Start, &text);
            }
        }
        svg.add(&labels_svg);
    }

    fn message(&self, svg: &mut Svg, message: &Message, until: Instant, (from, to): (f64, f64)) {
        let kind = match (message.from, message.to) {
            (_, Lane::Resource) => "m request writes",
            (_, Lane::Client(_) | Lane::Node(_)) if is_about_connection(&message.label) => "m conn",
            (Lane::Client(_), Lane::Client(_) | Lane::Node(_)) => "m request",
            (Lane::Node(_) | Lane::Resource, Lane::Client(_) | Lane::Node(_)) => "m reply",
        };
        let start = (self.axis.x(message.sent), from);
        let x = self.axis.x(until);
        let Message { label, sent, .. } = message;
        let (sender, receiver) = (self.servers.name(message.from), self.servers.name(message.to));
        let tooltip = |delivery: &str| format!("{sender} → {receiver}: {label}\nsent {sent}, {delivery}");
        match message.delivery {
            Delivery::Arrived(at) => {
                let took = length(at.since(*sent));
                svg.path(kind, &[start, (x, to)], &tooltip(&format!("arrived {at}, after {took}")));
                arrowhead(svg, kind, start, (x, to));
            }
            Delivery::Lost(at) => {
                let title = tooltip(&format!("lost {at}"));
                let middle = (x, (from + to) / 2.0);
                svg.path(&format!("{kind} lost"), &[start, middle], &title);
                svg.cross("lost", middle, 4.0, &title);
            }
            Delivery::InFlight => {
                let middle = (x, (from + to) / 2.0);
                svg.path(&format!("{kind} under-way"), &[start, middle], &tooltip("still in flight at the end"));
            }
        }
    }

    fn acquisition(&self, svg: &mut Svg, acquisition: &AcquisitionLane, y: f64) {
        let colour = colour(self.timeline, &acquisition.name);
        let x = |at| self.axis.x(at);
        let AcquisitionLane { client, lock, requested, granted, .. } = acquisition;
        let label = self.timeline.label(acquisition);
        let name = &acquisition.name;
        let fence = acquisition.fence.map_or_else(String::new, |fence| format!(", fence {fence}"));
        let acquisition_label = format!("client {client} {lock}: {name}{fence}");
        let waited = granted.unwrap_or(acquisition.last_event);
        svg.line(
            &format!("wait {colour}"),
            (x(*requested), y),
            (x(waited), y),
            &format!("{acquisition_label}\nwaits from {requested} to {waited}"),
        );
        if *requested >= self.window.from {
            svg.circle(
                &format!("requested {colour}"),
                (x(*requested), y),
                2.6,
                &format!("{acquisition_label}\nrequested {requested}"),
            );
        }
        if let Some(end) = acquisition.believed.last().map(|span| span.to)
            && end < acquisition.last_event
            && acquisition.unreported().is_none()
        {
            let title = format!(
                "{acquisition_label}\nno longer held, release not confirmed, from {end} to {}",
                acquisition.last_event
            );
            svg.line(&format!("back {colour}"), (x(end), y), (x(acquisition.last_event), y), &title);
        }
        for span in &acquisition.believed {
            self.belief(svg, acquisition, *span, (&colour, &acquisition_label), y);
        }
        if let Some(span) = acquisition.unreported() {
            let title =
                format!("{acquisition_label}\nno longer held, but the process was not notified {}", describe(span));
            svg.rect(
                &format!("unreported {colour}"),
                (x(span.from), y - 4.0),
                (x(span.to) - x(span.from), 8.0),
                &title,
            );
        }
        for at in &acquisition.renewed {
            if self.is_in(*at) {
                svg.line(
                    "tick",
                    (x(*at), y - BAR / 2.0),
                    (x(*at), y + BAR / 2.0),
                    &format!("{acquisition_label}\nrenewed {at}"),
                );
            }
        }
        self.ends(svg, acquisition, &acquisition_label, y);
        self.label(svg, acquisition, (&label, &colour), y);
    }

    /// Draws a bar while the client believes to hold the lock; hollow while it is only offered.
    fn belief(
        &self,
        svg: &mut Svg,
        acquisition: &AcquisitionLane,
        span: Span,
        (colour, acquisition_label): (&str, &str),
        y: f64,
    ) {
        if span.is_empty() || !self.sees(span) {
            return;
        }
        let claimed = if self.timeline.claims { acquisition.claimed.unwrap_or(span.to) } else { span.from };
        let claimed = claimed.clamp(span.from, span.to);
        let bar = |svg: &mut Svg, class: &str, part: Span, what: &str| {
            let (from, to) = (self.axis.x(part.from), self.axis.x(part.to));
            let title = format!("{acquisition_label}\n{what} {}", describe(part));
            svg.rect(&format!("{class} {colour}"), (from, y - BAR / 2.0), ((to - from).max(1.5), BAR), &title);
        };
        if claimed > span.from {
            bar(svg, "offer", Span { from: span.from, to: claimed }, "offered");
        }
        if claimed < span.to {
            bar(svg, "held", Span { from: claimed, to: span.to }, "believes to hold the lock");
        }
        // Expired, without an event.
        let by_itself = acquisition.released.is_none_or(|at| at > span.to)
            && acquisition.ended.as_ref().is_none_or(|(at, _)| *at > span.to)
            && span.to < self.trace.end;
        if by_itself && self.is_in(span.to) {
            let (x, title) = (self.axis.x(span.to), format!("{acquisition_label}\nvalid until {}", span.to));
            let (t, b) = (y - BAR / 2.0 - 2.0, y + BAR / 2.0 + 2.0);
            svg.path("until", &[(x - 4.0, t), (x, t), (x, b), (x - 4.0, b)], &title);
        }
    }

    fn ends(&self, svg: &mut Svg, acquisition: &AcquisitionLane, acquisition_label: &str, y: f64) {
        if let Some((at, why)) = acquisition.lost.as_ref().filter(|(at, _)| self.is_in(*at)) {
            let x = self.axis.x(*at);
            svg.cross("loss", (x, y), 4.5, &format!("{acquisition_label}\nnotified {at}: lost, {why}"));
            svg.text(
                "note loss-text halo",
                (x + 7.0, y - 3.0),
                Anchor::Start,
                &format!("lost: {}", shortened(why, 30)),
            );
        }
        if let Some((at, how)) = acquisition.ended.as_ref().filter(|(at, _)| self.is_in(*at)) {
            let x = self.axis.x(*at);
            svg.line("end", (x, y - 5.0), (x, y + 5.0), &format!("{acquisition_label}\nended {at}: {how}"));
        } else if acquisition.granted.is_none()
            && let Some(at) = acquisition.released.filter(|at| self.is_in(*at))
        {
            svg.line(
                "end",
                (self.axis.x(at), y - 5.0),
                (self.axis.x(at), y + 5.0),
                &format!("{acquisition_label}\ndropped {at}"),
            );
        }
    }

    fn label(&self, svg: &mut Svg, acquisition: &AcquisitionLane, (label, colour): (&str, &str), y: f64) {
        let needed = width(label, TEXT_SIZE) + 8.0;
        let seen = acquisition.believed.iter().map(|span| {
            let from = self.axis.x(span.from.max(self.window.from));
            (from, self.axis.x(span.to.min(self.window.to)) - from)
        });
        match seen.filter(|(_, wide)| *wide > 0.0).reduce(|a, b| if a.1 >= b.1 { a } else { b }) {
            Some((from, wide)) if wide >= needed => {
                // A held bar needs a contrasting colour; an offer is hollow.
                let offered = self.timeline.claims && acquisition.claimed.is_none();
                let class = if offered { "bar halo".to_owned() } else { format!("bar on-{colour}") };
                svg.text(&class, (from + 5.0, y + 4.0), Anchor::Start, label);
            }
            Some((from, wide)) => svg.text("bar halo", (from + wide + 8.0, y + 4.0), Anchor::Start, label),
            None => {
                let from = self.axis.x(acquisition.requested.max(self.window.from));
                svg.text("bar halo", (from + 6.0, y - 2.5), Anchor::Start, label);
            }
        }
    }

    fn writes(&self, svg: &mut Svg, layout: &Layout) {
        let Some(band) = layout.resource else { return };
        let mut labels = vec![Rows::default(); self.timeline.names.len()];
        let mut last: Vec<Option<String>> = vec![None; self.timeline.names.len()];
        for entry in self.trace.entries.iter().filter(|entry| self.is_in(entry.at)) {
            let TraceEvent::Write { client, lock, name, fence, accepted } = &entry.what else { continue };
            let (x, row) = (self.axis.x(entry.at), self.timeline.name(name));
            let y = band.row(row);
            let number = fence.map_or_else(|| "no fence".to_owned(), |fence| format!("fence {fence}"));
            let verdict = if *accepted { "taken" } else { "refused" };
            let title = format!("write of client {client} {lock} to {name}, {number}: {verdict}, {}", entry.at);
            let colour = colour(self.timeline, name);
            if *accepted {
                svg.circle(&format!("write {colour}"), (x, y), 4.5, &title);
            } else {
                svg.circle(&format!("refused {colour}"), (x, y), 4.5, &title);
                svg.cross("loss", (x, y), 5.5, &title);
            }
            let text = match fence {
                Some(fence) => format!("c{client} · fence {}", self.timeline.fence(*fence)),
                None => format!("c{client} · no fence"),
            };
            if *accepted && last[row].as_ref() == Some(&text) {
                continue;
            }
            last[row] = Some(text.clone());
            if labels[row].try_place(x, x + 14.0 + width(&text, NOTE_SIZE), 1).is_some() {
                svg.text("note halo", (x - 3.0, y - 6.5), Anchor::Start, &text);
            }
        }
    }

    fn flags(svg: &mut Svg, layout: &Layout) {
        for flag in &layout.flags {
            let (x, y) = (flag.x, flag.y);
            let class = if flag.clock { "flag clock" } else { "flag" };
            svg.path(class, &[(x, y + 3.0), (x, y - 8.0), (x + 7.0, y - 5.0), (x, y - 2.0)], &flag.text);
            if flag.shown {
                svg.text("note halo", (x + 10.0, y + 1.0), Anchor::Start, &flag.text);
            }
        }
    }

    fn breaks(&self, svg: &mut Svg, layout: &Layout) {
        for piece in self.axis.breaks() {
            let ((left, right), text) = (piece.x, length(piece.time()));
            let title = format!("nothing happens for {text}: left out");
            svg.rect("gap", (left, 20.0), (right - left, layout.height - 20.0), &title);
            let middle = (left + right) / 2.0;
            for x in [middle - 4.0, middle + 1.0] {
                svg.path("zigzag", &[(x, 18.0), (x + 3.0, 21.0), (x, 24.0), (x + 3.0, 27.0), (x, 30.0)], "");
            }
            svg.text("note", (middle, 40.0), Anchor::Middle, &text);
        }
    }

    /// Draws findings, the end of the faults, and texts without a lane.
    fn heads(&self) -> Vec<Head> {
        let mut texts: Vec<(Instant, &'static str, String, Option<usize>)> = Vec::new();
        for (i, finding) in self.findings.iter().enumerate() {
            let text = if i < TEXTS { finding.text() } else { String::new() };
            let class = if finding.promised { "violation" } else { "violation excused" };
            texts.push((finding.violation.at, class, text, Some(i)));
        }
        texts.extend(self.trace.calm.map(|at| (at, "calm", "the faults end".to_owned(), None)));
        for entry in &self.trace.entries {
            if let TraceEvent::Note { lane: None, text } = &entry.what
                && self.trace.calm != Some(entry.at)
            {
                texts.push((entry.at, "general", text.clone(), None));
            }
        }
        let mut rows = Rows::default();
        let seen = texts.into_iter().filter(|(at, ..)| self.is_in(*at));
        let mut heads: Vec<Head> = seen
            .map(|(at, class, text, finding)| {
                let (x, wide) = (self.axis.x(at), width(&text, TEXT_SIZE) + 10.0);
                // The text of a finding is left of its time, where the page first scrolls to.
                let right = x + wide <= self.axis.width();
                let (anchor, left) = if x >= wide && (finding.is_some() || !right) {
                    (Anchor::End, x - wide)
                } else if right {
                    (Anchor::Start, x)
                } else {
                    (Anchor::Start, (self.axis.width() - wide).max(0.0))
                };
                let text_x = if anchor == Anchor::End { x - 5.0 } else { left + 5.0 };
                Head { class, x, text_x, anchor, row: 0, text, finding }
            })
            .collect();
        heads.sort_by(|a, b| a.x.total_cmp(&b.x));
        for head in &mut heads {
            let wide = width(&head.text, TEXT_SIZE) + 10.0;
            let left = if head.anchor == Anchor::End { head.text_x - wide } else { head.text_x };
            head.row = if head.text.is_empty() { 0 } else { rows.place(left, left + wide) };
        }
        heads
    }

    fn draw_heads(svg: &mut Svg, heads: &[Head], layout: &Layout) {
        for head in heads {
            let y = AXIS + head.row as f64 * HEAD_ROW + 10.0;
            svg.line(head.class, (head.x, y - 10.0), (head.x, layout.height), &head.text);
        }
        for head in heads {
            let y = AXIS + head.row as f64 * HEAD_ROW + 10.0;
            if let Some(number) = head.finding {
                svg.put(format_args!("<g id=\"finding-{number}\">"));
            }
            svg.text(&format!("head {} halo", head.class), (head.text_x, y), head.anchor, &head.text);
            if head.finding.is_some() {
                svg.put(format_args!("</g>\n"));
            }
        }
    }

    fn is_in(&self, at: Instant) -> bool {
        at >= self.window.from && at <= self.window.to
    }

    fn sees(&self, span: Span) -> bool {
        span.from <= self.window.to && span.to >= self.window.from
    }
}

fn lane_class(lane: Lane) -> &'static str {
    match lane {
        Lane::Client(client) if client % 2 == 0 => "band client",
        Lane::Client(_) => "band client odd",
        Lane::Node(node) if node % 2 == 0 => "band node",
        Lane::Node(_) => "band node odd",
        Lane::Resource => "band resource",
    }
}

fn arrowhead(svg: &mut Svg, kind: &str, start: (f64, f64), end: (f64, f64)) {
    let (dx, dy) = (end.0 - start.0, end.1 - start.1);
    let long = dx.hypot(dy).max(1.0);
    let (ux, uy) = (dx / long, dy / long);
    let back = (end.0 - ux * 6.0, end.1 - uy * 6.0);
    let (left, right) = ((back.0 - uy * 2.4, back.1 + ux * 2.4), (back.0 + uy * 2.4, back.1 - ux * 2.4));
    svg.path(&format!("{kind} tip"), &[end, left, right, end], "");
}

fn shortened(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars {
        return text.to_owned();
    }
    let head: String = text.chars().take(chars.saturating_sub(1)).collect();
    format!("{head}…")
}

fn describe(span: Span) -> String {
    let Span { from, to } = span;
    format!("from {from} to {to}, {}", length(to.since(from)))
}

//! Draws a run as an HTML page with text and SVG. The pictures need no script.

mod axis;
mod draw;
mod layout;
mod overview;
mod page;
mod spacing;
#[cfg(test)]
mod tests;
mod timeline;

use core::time::Duration;
use std::collections::BTreeSet;

use lock_proto::Instant;
use lock_proto::sim::scenario::Backend;
use lock_proto::sim::trace::{Delivery, Lane, Message, Trace, What};
use lock_proto::sim::{Outcome, Plan, Violation};

use axis::Axis;
use draw::Scene;
use page::Page;
use timeline::{Span, Timeline};

const TEXT_SIZE: f64 = 11.0;
const NOTE_SIZE: f64 = 9.5;
/// Number of locks with their own colour. Further names have a dashed edge.
const COLOURS: usize = 6;
const MIN_WIDTH: f64 = 1_080.0;
/// Maximum number of messages; of a longer run only a part is drawn.
const MESSAGES: usize = 600;
const AFTER: usize = 120;

/// A run to draw.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The plan of the run.
    pub plan: &'a Plan,
    /// Its outcome.
    pub outcome: &'a Outcome,
    /// Its trace.
    pub trace: &'a Trace,
    /// The command that creates this page again.
    pub replay: &'a str,
    /// The part to draw in detail, since the start; chosen automatically if `None`.
    pub window: (Option<Duration>, Option<Duration>),
}

/// A finding of the checkers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    violation: Violation,
    /// Whether the scenario promises that this does not happen.
    promised: bool,
}

impl Finding {
    fn text(&self) -> String {
        let Violation { rule, text, .. } = &self.violation;
        let promised = if self.promised { "" } else { " (not promised here)" };
        format!("{rule}{promised}: {text}")
    }
}

/// Returns the word for servers, which depends on the store.
#[derive(Clone, Copy, Debug)]
struct Servers(&'static str);

impl Servers {
    const fn of(backend: Backend) -> Self {
        Self(match backend {
            Backend::Redis => "node",
            Backend::Etcd => "member",
        })
    }

    fn name(self, lane: Lane) -> String {
        match lane {
            Lane::Node(index) => format!("{} {index}", self.0),
            Lane::Client(_) | Lane::Resource => lane.to_string(),
        }
    }
}

/// Draws a run as a self-contained HTML page.
#[must_use]
pub fn page(run: &Run<'_>) -> String {
    let timeline = Timeline::of(run.trace);
    let findings = findings(run);
    let window = window(run, &findings);
    let axis = axis(run.trace, &timeline, window);
    let servers = Servers::of(run.plan.scenario.backend);
    let scene = Scene { trace: run.trace, timeline: &timeline, axis: &axis, window, findings: &findings, servers };
    let overview = overview::overview(run.trace, &timeline, servers, window, &findings);
    let page =
        Page { run, timeline: &timeline, findings: &findings, window, overview: &overview, drawn: &scene.draw() };
    page.write(main_finding(&findings).map(|finding| axis.x(finding.violation.at)))
}

/// Returns the finding that the page is about.
fn main_finding(findings: &[Finding]) -> Option<&Finding> {
    findings.iter().find(|finding| finding.promised).or_else(|| findings.first())
}

fn findings(run: &Run<'_>) -> Vec<Finding> {
    let violations = run.trace.entries.iter().filter_map(|entry| match &entry.what {
        What::Violation(violation) => Some(violation.clone()),
        What::State { .. }
        | What::Clock { .. }
        | What::Cut { .. }
        | What::Healed { .. }
        | What::Lock { .. }
        | What::Write { .. }
        | What::Note { .. } => None,
    });
    violations.map(|violation| Finding { promised: run.plan.promises(violation.rule), violation }).collect()
}

/// Returns the requested part, or the whole run, or a readable part around the first finding.
fn window(run: &Run<'_>, findings: &[Finding]) -> Span {
    let (messages, end) = (&run.trace.messages, run.trace.end);
    let mut window = Span { from: Instant::ZERO, to: end };
    if messages.len() > MESSAGES && run.window == (None, None) {
        let last = main_finding(findings).map_or(MESSAGES, |finding| {
            messages.partition_point(|message| message.sent <= finding.violation.at).saturating_add(AFTER).max(MESSAGES)
        });
        let sent = |index: usize| messages.get(index).map(|message| message.sent);
        if let Some(from) = last.checked_sub(MESSAGES).filter(|index| *index > 0).and_then(sent) {
            window.from = from;
        }
        window.to = sent(last).unwrap_or(end);
    }
    let (from, to) = run.window;
    window.from = from.map_or(window.from, |from| Instant::ZERO + from);
    window.to = to.map_or(window.to, |to| Instant::ZERO + to).min(end);
    // A window beyond the end of the run shows the end.
    window.from = window.from.min(window.to.back(Duration::from_millis(1)));
    window
}

fn arrival(message: &Message) -> Option<Instant> {
    match message.delivery {
        Delivery::InFlight => None,
        Delivery::Arrived(at) | Delivery::Lost(at) => Some(at),
    }
}

fn axis(trace: &Trace, timeline: &Timeline, window: Span) -> Axis {
    let mut times: BTreeSet<Instant> = trace.entries.iter().map(|entry| entry.at).collect();
    times.extend(trace.messages.iter().flat_map(|message| [Some(message.sent), arrival(message)]).flatten());
    times.extend(timeline.acquisitions.iter().flat_map(|acquisition| &acquisition.believed).map(|span| span.to));
    times.extend(trace.calm);
    let seen = trace.messages.iter().filter(|message| message.sent >= window.from && message.sent <= window.to);
    let mut flights: Vec<Duration> = seen
        .filter_map(|message| arrival(message).map(|at| at.since(message.sent)))
        .filter(|flight| !flight.is_zero())
        .collect();
    flights.sort_unstable();
    let flight = flights.get(flights.len() / 2).copied().unwrap_or(Duration::from_millis(5));
    Axis::broken(window, &times, flight, MIN_WIDTH)
}

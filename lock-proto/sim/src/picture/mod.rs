//! Pictures of a run: what each client waits for, holds and believes, the messages, the faults and
//! the violated rules, as one HTML page with text and SVG. The page needs no script and no other
//! file.
//!
//! ```
//! use core::time::Duration;
//! use lock_proto::Acquire;
//! use lock_sim::World;
//! use lock_sim::picture::Picture;
//!
//! let mut w = World::redis(1).clients(2).traced(true).build();
//! w.acquire_for(0, Acquire::new("stock:42"), Duration::from_millis(300));
//! w.acquire_for(1, Acquire::new("stock:42"), Duration::from_millis(300));
//! w.pause_client(0);
//! w.run_for(Duration::from_secs(15));
//! let log = w.log_tail(100);
//! let page = Picture::new("A paused client", &w.take_trace()).log(&log).page();
//! assert!(page.contains("<svg"));
//! ```

mod axis;
mod draw;
mod layout;
mod overview;
mod page;
mod spacing;
pub mod svg;
#[cfg(test)]
mod tests;
mod timeline;

use alloc::borrow::ToOwned as _;
use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::time::Duration;

use crate::check::Violation;
use crate::scenario::{Backend, Bounds, Origin, Outcome, Plan};
use crate::trace::{Delivery, Lane, Message, Trace, TraceEvent};
use lock_proto::Instant;

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
#[derive(Clone, Debug)]
#[must_use = "a Picture is not drawn until `page`"]
pub struct Picture<'a> {
    trace: &'a Trace,
    title: String,
    /// What the run shows, in sentences.
    about: String,
    /// Why it exceeds the bounds of the guarantees, if it does.
    beyond: Option<&'a str>,
    /// Counts of grants and the like.
    summary: String,
    /// The command that creates this page again.
    replay: &'a str,
    /// The plan, and what it promises.
    plan: Option<&'a Plan>,
    /// Violations that the outcome excuses although the plan does not.
    excused: &'a [Violation],
    log: &'a str,
    servers: ServersWord,
    window: (Option<Duration>, Option<Duration>),
}

impl<'a> Picture<'a> {
    /// Draws the run of a world, see [`World::take_trace`](crate::world::World::take_trace).
    pub fn new(title: &str, trace: &'a Trace) -> Self {
        Self {
            trace,
            title: title.into(),
            about: String::new(),
            beyond: None,
            summary: simulated(trace.end.since(Instant::ZERO)),
            replay: "",
            plan: None,
            excused: &[],
            log: "",
            servers: ServersWord("node"),
            window: (None, None),
        }
    }

    /// Draws the run of a plan, see [`Plan::run_traced`].
    pub fn of_plan(plan: &'a Plan, outcome: &'a Outcome, trace: &'a Trace) -> Self {
        let title = match &plan.origin {
            Origin::Seed(seed) => format!("{}, seed {seed}", plan.scenario.name),
            Origin::Bytes(bytes) => format!("{}, {} bytes", plan.scenario.name, bytes.len()),
        };
        Self {
            about: format!("Faults: {}.", plan.scenario.about),
            beyond: if let Bounds::Beyond(what) = plan.scenario.bounds { Some(what) } else { None },
            summary: format!(
                "{} grants, {} calls of machines, {}",
                outcome.grants,
                outcome.steps,
                simulated(outcome.time)
            ),
            plan: Some(plan),
            excused: &outcome.excused,
            log: &outcome.log,
            servers: ServersWord::of(plan.scenario.backend),
            ..Self::new(&title, trace)
        }
    }

    /// Describes the run in a sentence.
    pub fn about(mut self, text: &str) -> Self {
        self.about = text.to_owned();
        self
    }

    /// Adds the end of the log.
    pub const fn log(mut self, log: &'a str) -> Self {
        self.log = log;
        self
    }

    /// Adds the command that makes this picture again.
    pub const fn replay(mut self, command: &'a str) -> Self {
        self.replay = command;
        self
    }

    /// Sets the part to draw in detail, since the start. By default the whole run is drawn, or a
    /// readable part around the first violation.
    pub const fn window(mut self, from: Option<Duration>, to: Option<Duration>) -> Self {
        self.window = (from, to);
        self
    }

    /// Calls the servers members, as etcd does.
    pub const fn members(mut self) -> Self {
        self.servers = ServersWord("member");
        self
    }

    /// Returns the page.
    #[must_use]
    pub fn page(&self) -> String {
        let timeline = Timeline::of(self.trace);
        let findings = findings(self);
        let window = window(self, &findings);
        let axis = axis(self.trace, &timeline, window);
        let servers = self.servers;
        let scene = Scene { trace: self.trace, timeline: &timeline, axis: &axis, window, findings: &findings, servers };
        let overview = overview::overview(self.trace, &timeline, servers, window, &findings);
        let page = Page {
            picture: self,
            timeline: &timeline,
            findings: &findings,
            window,
            overview: &overview,
            drawn: &scene.draw(),
        };
        page.write(main_finding(&findings).map(|finding| axis.x(finding.violation.at)))
    }
}

fn simulated(time: Duration) -> String {
    format!("{:.1} s of simulated time", time.as_secs_f64())
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
struct ServersWord(&'static str);

impl ServersWord {
    const fn of(backend: Backend) -> Self {
        Self(match backend {
            Backend::Redis => "node",
            Backend::Etcd | Backend::Zookeeper => "member",
            Backend::Register => "store",
        })
    }

    fn name(self, lane: Lane) -> String {
        match lane {
            Lane::Node(index) => format!("{} {index}", self.0),
            Lane::Client(_) | Lane::Resource => lane.to_string(),
        }
    }
}

/// Returns the finding that the page is about.
fn main_finding(findings: &[Finding]) -> Option<&Finding> {
    findings.iter().find(|finding| finding.promised).or_else(|| findings.first())
}

fn findings(picture: &Picture<'_>) -> Vec<Finding> {
    let violations = picture.trace.entries.iter().filter_map(|entry| match &entry.what {
        TraceEvent::Violation(violation) => Some(violation.clone()),
        TraceEvent::State { .. }
        | TraceEvent::Clock { .. }
        | TraceEvent::Cut { .. }
        | TraceEvent::Healed { .. }
        | TraceEvent::Lock { .. }
        | TraceEvent::Write { .. }
        | TraceEvent::Note { .. } => None,
    });
    let promised = |violation: &Violation| {
        picture.plan.is_none_or(|plan| plan.promises(violation.rule)) && !picture.excused.contains(violation)
    };
    violations.map(|violation| Finding { promised: promised(&violation), violation }).collect()
}

/// Returns the requested part, or the whole run, or a readable part around the first finding.
fn window(run: &Picture<'_>, findings: &[Finding]) -> Span {
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

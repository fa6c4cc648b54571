//! The whole run at a glance, to scale.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::axis::Axis;
use super::draw::colour;
use super::spacing::Rows;
use super::svg::{Anchor, Svg};
use super::timeline::{Span, Timeline};
use super::{Finding, NOTE_SIZE, ServersWord};
use crate::trace::{Lane, ProcessState, Trace, TraceEvent};
use lock_proto::Instant;

const WIDTH: f64 = 1_180.0;
const NAMES: f64 = 78.0;
const ROW: f64 = 7.0;
const AXIS: f64 = 20.0;

/// Draws holds, pauses and findings, and a frame around the detailed part.
pub(super) fn overview(
    trace: &Trace,
    timeline: &Timeline,
    servers: ServersWord,
    window: Span,
    findings: &[Finding],
) -> String {
    let whole = Span { from: Instant::ZERO, to: trace.end };
    let axis = Axis::linear(whole, WIDTH - NAMES);
    let x = |at| NAMES + axis.x(at);
    let mut body = Svg::new();
    let mut y = AXIS;
    let mut tops: Vec<(Lane, f64, f64)> = Vec::new();
    for client in 0..trace.clients {
        let mut rows = Rows::default();
        let mut bars = Svg::new();
        for acquisition in timeline.acquisitions.iter().filter(|acquisition| acquisition.client == client) {
            let (from, to) = (x(acquisition.requested), x(acquisition.last_event));
            let middle = y + 3.0 + (rows.place(from, to + 1.0) as f64 + 0.5) * ROW;
            let colour = colour(timeline, &acquisition.name);
            let waited = x(acquisition.granted.unwrap_or(acquisition.last_event));
            bars.line(&format!("wait {colour}"), (from, middle), (waited, middle), "");
            for span in acquisition.believed.iter().filter(|span| !span.is_empty()) {
                let wide = (x(span.to) - x(span.from)).max(1.0);
                bars.rect(&format!("held {colour}"), (x(span.from), middle - 2.5), (wide, 5.0), "");
            }
        }
        let bottom = y + 6.0 + rows.len().max(1) as f64 * ROW;
        tops.push((Lane::Client(client), y, bottom));
        draw_interruptions(&mut body, timeline, Lane::Client(client), (y, bottom), x);
        body.add(&bars);
        y = bottom;
    }
    for node in 0..trace.nodes {
        let bottom = y + 11.0;
        tops.push((Lane::Node(node), y, bottom));
        draw_interruptions(&mut body, timeline, Lane::Node(node), (y, bottom), x);
        for cut in timeline.cuts.iter().filter(|cut| cut.node == node) {
            let wide = (x(cut.span.to) - x(cut.span.from)).max(1.0);
            body.rect("cut", (x(cut.span.from), y + 3.5), (wide, 4.0), &format!("client {} is cut off", cut.client));
        }
        y = bottom;
    }
    for entry in &trace.entries {
        if let TraceEvent::Clock { lane, .. } = entry.what
            && let Some((_, top, bottom)) = tops.iter().find(|(known, ..)| *known == lane)
        {
            body.circle("clock-dot", (x(entry.at), (top + bottom) / 2.0), 2.5, "");
        }
    }
    if let Some(calm) = trace.calm {
        body.line("calm", (x(calm), 14.0), (x(calm), y), "the faults end");
    }
    for finding in findings {
        let class = if finding.promised { "violation" } else { "violation excused" };
        body.line(class, (x(finding.violation.at), 14.0), (x(finding.violation.at), y), &finding.text());
    }
    if window != whole {
        body.rect(
            "window",
            (x(window.from), AXIS - 2.0),
            (x(window.to) - x(window.from), y - AXIS + 4.0),
            "drawn out below",
        );
    }

    let mut svg = Svg::new();
    let height = y + 6.0;
    svg.put(format_args!(
        "<svg class=\"overview\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" role=\"img\" aria-label=\"the whole run\">\n"
    ));
    for (lane, top, bottom) in tops {
        let odd = matches!(lane, Lane::Client(n) | Lane::Node(n) if n % 2 == 1);
        let class = match (lane, odd) {
            (Lane::Client(_), false) => "band client",
            (Lane::Client(_), true) => "band client odd",
            (Lane::Node(_) | Lane::Resource, false) => "band node",
            (Lane::Node(_) | Lane::Resource, true) => "band node odd",
        };
        svg.rect(class, (0.0, top), (WIDTH, bottom - top), "");
        svg.text("small", (4.0, (top + bottom) / 2.0 + NOTE_SIZE * 0.35), Anchor::Start, &servers.name(lane));
    }
    for (at, text) in axis.labels() {
        svg.line("guide", (NAMES + at, 14.0), (NAMES + at, y), "");
        svg.text("small", (NAMES + at + 2.0, 10.0), Anchor::Start, &text);
    }
    svg.add(&body);
    svg.put(format_args!("</svg>\n"));
    svg.into_text()
}

fn draw_interruptions(
    svg: &mut Svg,
    timeline: &Timeline,
    lane: Lane,
    (top, bottom): (f64, f64),
    x: impl Fn(Instant) -> f64,
) {
    for interruption in timeline.interruptions.iter().filter(|interruption| interruption.lane == lane) {
        let class = match interruption.state {
            ProcessState::Paused => "paused",
            ProcessState::Down => "down",
            ProcessState::Running => continue,
        };
        let wide = (x(interruption.span.to) - x(interruption.span.from)).max(1.0);
        svg.rect(class, (x(interruption.span.from), top + 0.5), (wide, bottom - top - 1.0), "");
    }
}

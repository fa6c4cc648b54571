#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::time::Duration;

use super::Picture;
use super::axis::Axis;
use super::spacing::Rows;
use super::timeline::{Span, Timeline};
use crate::trace::{Delivery, Lane, Message, Point, ProcessState, Trace, TraceEntry, TraceEvent};
use crate::{Direction, Outcome, Plan, Rule, Scenario, Violation};
use lock_proto::Instant;
use lock_proto::LockId;

const fn ms(n: u64) -> Instant {
    Instant::from_millis(n)
}

fn span(from: u64, to: u64) -> Span {
    Span { from: ms(from), to: ms(to) }
}

fn lock(client: usize, number: u32, name: &str, point: Point) -> TraceEvent {
    TraceEvent::Lock { client, lock: LockId::new(0, number), name: name.into(), point }
}

fn granted(fence: Option<u64>, until: u64) -> Point {
    Point::Granted { fence, valid_until: ms(until) }
}

fn trace(clients: usize, nodes: usize, end: u64, entries: Vec<(u64, TraceEvent)>) -> Trace {
    let entries = entries.into_iter().map(|(at, what)| TraceEntry { at: ms(at), what }).collect();
    Trace { clients, nodes, calm: None, end: ms(end), entries, messages: Vec::new() }
}

fn state(lane: Lane, state: ProcessState) -> TraceEvent {
    TraceEvent::State { lane, state }
}

fn drawn(trace: &Trace) -> String {
    let plan = Plan::from_seed(Scenario::named("redis-pauses").unwrap(), 1);
    let outcome = Outcome::default();
    Picture::of_plan(&plan, &outcome, trace).replay("explore --again").page()
}

/// Returns the picture without the legend, which would contain every mark.
fn lanes(page: &str) -> &str {
    let begin = page.find("<h2>Drawn out").unwrap();
    let end = page[begin..].find("<details").unwrap();
    &page[begin..begin + end]
}

#[test]
fn believed_hold_ends_on_release_expiry_or_crash() {
    let timeline = Timeline::of(&trace(
        4,
        1,
        1_000,
        vec![
            (0, lock(0, 1, "a", Point::Requested)),
            (10, lock(0, 1, "a", granted(Some(1), 300))),
            (100, lock(0, 1, "a", Point::Renewed { valid_until: ms(400) })),
            (150, lock(0, 1, "a", Point::Released)),
            (160, lock(0, 1, "a", Point::Ended("Released".into()))),
            (200, lock(1, 1, "a", granted(Some(2), 500))),
            (600, lock(1, 1, "a", Point::Lost("expired".into()))),
            (650, lock(2, 1, "b", granted(None, 900))),
            (700, state(Lane::Client(2), ProcessState::Down)),
            (750, lock(3, 1, "b", granted(None, 5_000))),
        ],
    ));
    let believed: Vec<_> = timeline.acquisitions.iter().map(|a| a.believed.clone()).collect();
    assert_eq!(believed, [[span(10, 150)], [span(200, 500)], [span(650, 700)], [span(750, 1_000)]]);
    assert_eq!(timeline.acquisitions[0].renewed, [ms(100)]);
    assert_eq!(timeline.acquisitions[1].unreported(), Some(span(500, 600)));
    assert_eq!(timeline.names, ["a", "b"]);
    assert!(!timeline.claims);
}

#[test]
fn renewal_after_expiry_starts_new_believed_span() {
    let timeline = Timeline::of(&trace(
        1,
        1,
        900,
        vec![(0, lock(0, 1, "a", granted(None, 300))), (350, lock(0, 1, "a", Point::Renewed { valid_until: ms(600) }))],
    ));
    assert_eq!(timeline.acquisitions[0].believed, [span(0, 300), span(350, 600)]);
}

#[test]
fn stopped_clock_extends_believed_span() {
    let clock = TraceEvent::Clock { lane: Lane::Client(0), by: -200_000_000 };
    let held = |at| vec![(0, lock(0, 1, "a", granted(None, 300))), (at, clock.clone())];
    assert_eq!(Timeline::of(&trace(1, 1, 900, held(250))).acquisitions[0].believed, [span(0, 500)]);
    // Paused before the end, resumed after it.
    assert_eq!(Timeline::of(&trace(1, 1, 900, held(450))).acquisitions[0].believed, [span(0, 500)]);
    assert_eq!(Timeline::of(&trace(1, 1, 900, held(600))).acquisitions[0].believed, [span(0, 300)]);
    let another = TraceEvent::Clock { lane: Lane::Client(1), by: -200_000_000 };
    let timeline = Timeline::of(&trace(2, 1, 900, vec![(0, lock(0, 1, "a", granted(None, 300))), (250, another)]));
    assert_eq!(timeline.acquisitions[0].believed, [span(0, 300)]);
}

#[test]
fn reused_lock_id_starts_new_acquisition() {
    let again = || vec![lock(0, 1, "a", Point::Requested), lock(0, 1, "a", Point::Ended("Failed".into()))];
    let entries = again().into_iter().chain(again()).enumerate().map(|(i, what)| (i as u64, what)).collect();
    let timeline = Timeline::of(&trace(1, 1, 9, entries));
    assert_eq!(timeline.acquisitions.len(), 2);
    assert_eq!((timeline.acquisitions[1].requested, timeline.acquisitions[1].last_event), (ms(2), ms(3)));
}

#[test]
fn cuts_of_both_directions_merge_and_outages_end() {
    let cut = |direction| TraceEvent::Cut { client: 0, node: 1, direction };
    let heal = |direction| TraceEvent::Healed { client: 0, node: 1, direction };
    let timeline = Timeline::of(&trace(
        1,
        2,
        100,
        vec![
            (10, cut(Direction::ToNode)),
            (10, cut(Direction::ToClient)),
            (20, heal(Direction::ToNode)),
            (20, heal(Direction::ToClient)),
            (30, cut(Direction::ToNode)),
            (40, state(Lane::Node(0), ProcessState::Paused)),
            (50, state(Lane::Node(0), ProcessState::Down)),
            (60, state(Lane::Node(0), ProcessState::Running)),
            (70, state(Lane::Node(1), ProcessState::Down)),
            (80, state(Lane::Node(1), ProcessState::Down)),
        ],
    ));
    let cuts: Vec<_> = timeline.cuts.iter().map(|cut| (cut.direction, cut.span)).collect();
    assert_eq!(cuts, [(None, span(10, 20)), (Some(Direction::ToNode), span(30, 100))]);
    let interruptions: Vec<_> = timeline
        .interruptions
        .iter()
        .map(|interruption| (interruption.lane, interruption.state, interruption.span))
        .collect();
    assert_eq!(
        interruptions,
        [
            (Lane::Node(0), ProcessState::Paused, span(40, 50)),
            (Lane::Node(0), ProcessState::Down, span(50, 60)),
            (Lane::Node(1), ProcessState::Down, span(70, 100)),
        ]
    );
}

#[test]
fn axis_is_monotonic_and_breaks_long_gaps() {
    let times: BTreeSet<Instant> = [0, 5, 10, 4_000, 4_005].map(ms).into();
    let axis = Axis::broken(span(0, 4_010), &times, Duration::from_millis(5), 100.0);
    let xs: Vec<f64> = [0, 5, 10, 2_000, 4_000, 4_005, 4_010].into_iter().map(|at| axis.x(ms(at))).collect();
    assert!(xs.windows(2).all(|pair| pair[0] < pair[1]), "{xs:?}");
    assert_eq!(axis.breaks().map(|piece| piece.span).collect::<Vec<_>>(), [span(10, 4_000)]);
    // One scale, except for the cut stretches.
    let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
    assert!(close(xs[1] - xs[0], xs[5] - xs[4]) && xs[4] - xs[2] < 3.0 * (xs[1] - xs[0]), "{xs:?}");
    let labels: Vec<String> = axis.labels().into_iter().map(|(_, text)| text).collect();
    assert!(labels.contains(&"0.000 s".into()) && labels.contains(&"4.000 s".into()), "{labels:?}");
    // Narrow runs are drawn wider.
    assert!(close(Axis::broken(span(0, 10), &times, Duration::from_millis(5), 700.0).width(), 700.0));
    let nothing = Axis::broken(span(0, 0), &BTreeSet::new(), Duration::ZERO, 100.0);
    assert!(nothing.x(ms(0)).is_finite() && nothing.labels().len() == 1);
}

#[test]
fn placed_items_do_not_overlap() {
    let mut rows = Rows::default();
    assert_eq!(
        [rows.place(0.0, 10.0), rows.place(5.0, 8.0), rows.place(9.0, 12.0), rows.place(10.0, 11.0)],
        [0, 1, 1, 0]
    );
    assert_eq!(rows.try_place(10.5, 20.0, 2), None);
    assert_eq!((rows.try_place(11.0, 20.0, 2), rows.len()), (Some(0), 2));
}

#[test]
fn every_kind_of_entry_and_message_is_drawn() {
    let violation = |rule| TraceEvent::Violation(Violation { rule, text: format!("text of {rule}"), at: ms(200) });
    let write =
        |fence, accepted| TraceEvent::Write { client: 0, lock: LockId::new(0, 1), name: "a".into(), fence, accepted };
    let note = |lane, text: &str| TraceEvent::Note { lane, text: text.into() };
    let mut trace = trace(
        2,
        2,
        300,
        vec![
            (0, lock(0, 1, "a", Point::Requested)),
            (10, lock(0, 1, "a", granted(Some(41), 90))),
            (15, lock(0, 1, "a", Point::Claimed)),
            (20, lock(0, 1, "a", Point::Renewed { valid_until: ms(95) })),
            (25, state(Lane::Client(0), ProcessState::Paused)),
            (100, state(Lane::Client(0), ProcessState::Running)),
            (100, lock(0, 1, "a", Point::Lost("its time is over".into()))),
            (101, lock(0, 1, "a", Point::Released)),
            (110, lock(0, 1, "a", Point::Ended("Taken".into()))),
            (111, lock(1, 1, "b", Point::Requested)),
            (112, TraceEvent::Clock { lane: Lane::Node(1), by: 5_000_000_000 }),
            (113, TraceEvent::Clock { lane: Lane::Client(1), by: -20_000_000 }),
            (114, TraceEvent::Cut { client: 1, node: 0, direction: Direction::ToNode }),
            (120, TraceEvent::Healed { client: 1, node: 0, direction: Direction::ToNode }),
            (121, state(Lane::Node(1), ProcessState::Down)),
            (122, write(Some(41), false)),
            (123, write(None, true)),
            (124, note(Some(Lane::Node(0)), "a word on a lane")),
            (125, note(None, "a word for all")),
            (200, violation(Rule::MutualExclusion)),
            (200, violation(Rule::StaleWrite)),
        ],
    );
    trace.calm = Some(ms(210));
    let message =
        |from, to, label: &str, sent, delivery| Message { from, to, label: label.into(), sent: ms(sent), delivery };
    let (client, node) = (Lane::Client(1), Lane::Node(0));
    trace.messages = vec![
        message(client, node, "connect", 1, Delivery::Arrived(ms(2))),
        message(client, node, "ask for b", 3, Delivery::Arrived(ms(4))),
        message(node, client, "answer to b", 5, Delivery::Arrived(ms(6))),
        message(client, node, "lost words", 130, Delivery::Lost(ms(132))),
        message(client, node, "late words", 298, Delivery::InFlight),
        message(Lane::Client(0), Lane::Resource, "write b", 121, Delivery::Arrived(ms(123))),
    ];
    let page = drawn(&trace);
    let picture = lanes(&page);
    for part in [
        "class=\"requested n0\"",
        "class=\"wait n1\"",
        "class=\"offer n0\"",
        "class=\"held n0\"",
        "a · fence 41",
        "class=\"tick\"",
        "class=\"until\"",
        "class=\"unreported n0\"",
        "lost: its time is over",
        "ended 0.110000s: Taken",
        "class=\"paused\"",
        "class=\"down\"",
        "clock +5.0 s",
        "clock −20 ms",
        "✂ client 1 ↛ node 0",
        "class=\"m conn\"",
        "class=\"m request\"",
        "class=\"m reply\"",
        "class=\"m request lost\"",
        "class=\"m request under-way\"",
        ">ask for b</text>",
        "node 0 → client 1: answer to b",
        "class=\"write n0\"",
        "class=\"refused n0\"",
        "c0 · fence 41",
        ">a word on a lane</text>",
        ">a word for all</text>",
        ">the faults end</text>",
        ">MutualExclusion: text of MutualExclusion</text>",
        "class=\"violation\"",
    ] {
        assert!(picture.contains(part), "{part} is not drawn:\n{picture}");
    }
    assert!(page.contains("<strong>Broken: one holder at a time</strong>") && page.contains("explore --again"));
}

#[test]
fn names_and_texts_are_escaped() {
    let hostile = "<script>alert('a&b\"')</script>\u{1b}[2J";
    let mut trace = trace(
        1,
        1,
        100,
        vec![
            (0, lock(0, 1, hostile, Point::Requested)),
            (10, lock(0, 1, hostile, granted(None, 50))),
            (60, lock(0, 1, hostile, Point::Lost(hostile.into()))),
            (70, TraceEvent::Note { lane: None, text: hostile.into() }),
            (70, TraceEvent::Note { lane: Some(Lane::Client(0)), text: hostile.into() }),
            (80, TraceEvent::Violation(Violation { rule: Rule::Notified, text: hostile.into(), at: ms(80) })),
            (
                90,
                TraceEvent::Write {
                    client: 0,
                    lock: LockId::new(0, 1),
                    name: hostile.into(),
                    fence: None,
                    accepted: true,
                },
            ),
        ],
    );
    let (from, to) = (Lane::Client(0), Lane::Node(0));
    trace.messages = vec![Message { from, to, label: hostile.into(), sent: ms(1), delivery: Delivery::Arrived(ms(2)) }];
    let page = drawn(&trace);
    assert!(!page.contains("<script>alert") && !page.contains('\u{1b}'));
    assert!(page.matches("&lt;script&gt;").count() > 8);
}

#[test]
fn long_run_is_cropped_around_violation() {
    let mut trace = trace(
        1,
        1,
        20_000,
        vec![(15_000, TraceEvent::Violation(Violation { rule: Rule::Notified, text: "here".into(), at: ms(15_000) }))],
    );
    let (from, to) = (Lane::Client(0), Lane::Node(0));
    let message = |sent| Message {
        from,
        to,
        label: format!("at {sent}"),
        sent: ms(sent),
        delivery: Delivery::Arrived(ms(sent + 1)),
    };
    trace.messages = (0..2_000).map(|n| message(n * 10)).collect();
    let page = drawn(&trace);
    let picture = lanes(&page);
    assert!(picture.contains("Drawn out: from 10.") && picture.contains(">Notified: here</text>"));
    assert!(picture.contains("at 15000\n") && !picture.contains("at 0\n") && !picture.contains("at 19990\n"));
    assert!(page.contains("class=\"window\""));
}

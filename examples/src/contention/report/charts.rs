//! The charts of the report.

use super::Report;
use super::axis::Axis;
use super::plan::Method;
use crate::contention::outcome::{Outcome, Time};
use lock_sim::picture::svg::{Anchor, Escaped, Svg};

const WIDTH: f64 = 940.0;
/// The right end of the row titles.
const TITLES: f64 = 118.0;

/// Returns the style of a series: its colour, and a dashed line for a peer.
fn class_of(kind: &str, method: &Method) -> String {
    format!("{kind} c-{}{}", method.key, if method.peer.is_some() { " peer" } else { "" })
}

/// Starts a chart of this height; `label` describes it for screen readers.
fn chart(height: f64, label: &str, drawn: Svg) -> String {
    let (label, drawn) = (Escaped(label), drawn.into_text());
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{drawn}</svg>"#
    )
}

/// Draws the distribution of the waits in one scenario, one row for each series.
pub(super) fn waits(report: &Report, scenario: usize) -> String {
    const ROW: f64 = 40.0;
    const TOP: f64 = 26.0;
    const NUMBERS: [f64; 4] = [728.0, 796.0, 864.0, 938.0];
    let all = report.cells.iter().filter_map(|cell| cell.outcome.as_ref().ok());
    let ends = all.filter(|outcome| outcome.ops > 0);
    let axis = Axis::decades(
        ends.flat_map(|outcome| [outcome.quantile_us(0.001), outcome.longest_us()]),
        (TITLES + 12.0, 660.0),
    );
    let rows: Vec<_> = report.rows(scenario).collect();
    let bottom = TOP + ROW * rows.len() as f64;
    let title = report.plan.scenarios.get(scenario).map_or("", |scenario| &scenario.title);
    let mut svg = Svg::new();
    for tick in axis.ticks(8) {
        svg.line("grid", (axis.at(tick), TOP), (axis.at(tick), bottom), "");
        svg.text("tick", (axis.at(tick), bottom + 16.0), Anchor::Middle, &Time(tick).to_string().replace(".0", ""));
    }
    for (x, head) in NUMBERS.into_iter().zip(["mean", "P50", "P99", "longest"]) {
        svg.text("head", (x, TOP - 10.0), Anchor::End, head);
    }
    for (i, (method, result)) in rows.into_iter().enumerate() {
        let base = TOP + ROW * (i as f64 + 1.0) - 4.0;
        svg.line("base", (TITLES + 12.0, base), (660.0, base), "");
        svg.text("title", (TITLES, base - 4.0), Anchor::End, method.title);
        let outcome = match result {
            Ok(outcome) if outcome.ops > 0 => outcome,
            Ok(_) => {
                svg.text("note", (TITLES + 20.0, base - 4.0), Anchor::Start, "never acquired");
                continue;
            }
            Err(why) => {
                svg.text("note", (TITLES + 20.0, base - 4.0), Anchor::Start, why);
                continue;
            }
        };
        ridge(&mut svg, method, outcome, &axis, base, ROW - 10.0);
        let numbers = [outcome.mean_us(), outcome.quantile_us(0.5), outcome.quantile_us(0.99), outcome.longest_us()];
        for (x, number) in NUMBERS.into_iter().zip(numbers) {
            svg.text("number", (x, base - 4.0), Anchor::End, &Time(number).to_string());
        }
    }
    chart(bottom + 24.0, &format!("Distribution of the time to get the lock, {title}"), svg)
}

/// A ridge: the height is the share of the waits, scaled to the row by its largest value.
fn ridge(svg: &mut Svg, method: &Method, outcome: &Outcome, axis: &Axis, base: f64, height: f64) {
    const BIN: f64 = 4.0;
    let (left, right) = (axis.at(0.0), axis.at(f64::MAX));
    let count = ((right - left) / BIN) as usize + 1;
    let mut bins = vec![0.0_f64; count];
    for value in outcome.latencies.iter_recorded() {
        let position = (axis.at(value.value_iterated_to() as f64 / 1e3) - left) / BIN;
        if let Some(bin) = bins.get_mut(position as usize) {
            *bin += value.count_at_value() as f64;
        }
    }
    let at = |i: usize| bins.get(i).copied().unwrap_or(0.0);
    let smooth: Vec<f64> = (0..count).map(|i| (at(i.wrapping_sub(1)) + 2.0 * at(i) + at(i + 1)) / 4.0).collect();
    let highest = smooth.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let x = |i: usize| left + (i as f64 + 0.5) * BIN;
    let top = |(i, value): (usize, &f64)| {
        // Keeps rare values visible.
        let high = if *value > 0.0 { (value / highest * height).max(1.2) } else { 0.0 };
        (x(i), base - high)
    };
    let mut points = vec![(left, base)];
    points.extend(smooth.iter().enumerate().map(top));
    points.push((right, base));
    svg.area(&class_of("ridge", method), &points, "");
    for (quantile, high) in [(0.5, height * 0.75), (0.99, height * 0.5)] {
        let x = axis.at(outcome.quantile_us(quantile));
        svg.line("mark", (x, base), (x, base - high), "");
    }
    let longest = outcome.longest_us();
    let tooltip = format!("{}: the longest wait, {}", method.title, Time(longest));
    svg.circle(&class_of("ring", method), (axis.at(longest), base - 4.0), 3.2, &tooltip);
}

/// Draws locks per second over the number of clients, a panel for each store.
pub(super) fn rates(report: &Report) -> String {
    const TOP: f64 = 34.0;
    const BOTTOM: f64 = 330.0;
    /// Height of a row of panels.
    const ROW: f64 = 376.0;
    /// The store, the row, and the ends of the horizontal axis.
    const PANELS: [(&str, u8, f64, (f64, f64)); 3] =
        [("Redis", 0, 0.0, (52.0, 392.0)), ("etcd", 1, 0.0, (532.0, 838.0)), ("ZooKeeper", 2, 1.0, (52.0, 392.0))];
    let many = 1..report.plan.scenarios.len();
    let all = report.cells.iter().filter(|cell| many.contains(&cell.scenario));
    let all: Vec<&Outcome> =
        all.filter_map(|cell| cell.outcome.as_ref().ok()).filter(|outcome| outcome.ops > 0).collect();
    // The limit for a lock without any cost.
    let bound = all.iter().map(|outcome| 1.0 / outcome.hold_mean.as_secs_f64().max(1e-9)).fold(0.0, f64::max);
    let rates = all.iter().map(|outcome| outcome.rate());
    let highest = rates.chain([bound]).fold(1.0, f64::max);
    let mut svg = Svg::new();
    for (title, store, row, (from, to)) in PANELS {
        let (top, bottom) = (TOP + row * ROW, BOTTOM + row * ROW);
        let y = Axis::linear(highest * 1.04, (bottom, top));
        let position = |scenario: usize| {
            let part = (scenario - many.start) as f64 / (many.len().max(2) - 1) as f64;
            from + 24.0 + part * (to - from - 48.0)
        };
        svg.text("panel", (from, top - 16.0), Anchor::Start, title);
        for tick in y.ticks(6) {
            svg.line("grid", (from, y.at(tick)), (to, y.at(tick)), "");
            svg.text("tick", (from - 8.0, y.at(tick) + 4.0), Anchor::End, &number(tick));
        }
        for scenario in many.clone() {
            let clients = report.plan.scenarios.get(scenario).map_or("", |scenario| &scenario.title);
            svg.text("tick", (position(scenario), bottom + 20.0), Anchor::Middle, clients);
        }
        svg.line("bound", (from, y.at(bound)), (to, y.at(bound)), "");
        svg.text("note", (from + 4.0, y.at(bound) - 5.0), Anchor::Start, "what the hold alone allows");
        let mut labels = Vec::new();
        for (w, method) in
            report.plan.methods.iter().enumerate().filter(|(_, method)| method.deployment.store() == store)
        {
            let points = many.clone().filter_map(|s| Some((s, report.cell(w, s).filter(|outcome| outcome.ops > 0)?)));
            let points: Vec<_> = points.map(|(s, outcome)| (position(s), y.at(outcome.rate()), outcome)).collect();
            let line: Vec<_> = points.iter().map(|(x, y, _)| (*x, *y)).collect();
            svg.path(&class_of("series", method), &line, "");
            for (x, y, outcome) in &points {
                let tooltip =
                    format!("{}, {} clients: {} locks a second", method.title, outcome.clients, number(outcome.rate()));
                svg.circle(&class_of("dot", method), (*x, *y), 4.0, &tooltip);
            }
            if let Some((_, y, outcome)) = points.last() {
                labels.push((*y, method, format!("{} {}", method.title, number(outcome.rate()))));
            }
        }
        labels.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
        let mut free = top;
        for (y, method, label) in labels {
            let y = f64::max(y, free);
            svg.circle(&class_of("dot", method), (to - 6.0, y), 3.0, method.title);
            svg.text("label", (to + 2.0, y + 4.0), Anchor::Start, &label);
            free = y + 16.0;
        }
    }
    chart(BOTTOM + ROW + 46.0, "Locks a second over the number of clients", svg)
}

/// The values of one outcome in a row of dots.
pub(super) struct Measure {
    label: &'static str,
    value: fn(&Outcome) -> Option<f64>,
    /// An optional second dot.
    other: Option<fn(&Outcome) -> Option<f64>>,
    shown: fn(f64) -> String,
    /// The lower end of a logarithmic axis; `None` for shares.
    least: Option<f64>,
}

pub(super) const CPU: Measure = Measure {
    label: "Processor time for each lock",
    value: |outcome| Some(outcome.cpu_per_1000() * 1e3),
    other: Some(|outcome| Some(outcome.server_cpu_per_1000()? * 1e3)),
    shown: |us| Time(us).to_string(),
    least: Some(1.0),
};

pub(super) const COMMANDS: Measure = Measure {
    label: "Commands for each lock",
    value: Outcome::requests,
    other: Some(Outcome::commands),
    shown: number,
    least: Some(0.01),
};

pub(super) const FAIRNESS: Measure = Measure {
    label: "Fairness",
    value: |outcome| Some(outcome.jain),
    other: None,
    shown: |value| format!("{value:.2}"),
    least: None,
};

/// Draws one dot for each series and scenario, with the scenarios side by side on one axis.
pub(super) fn dots(report: &Report, measure: &Measure) -> String {
    const ROW: f64 = 25.0;
    const TOP: f64 = 32.0;
    const GAP: f64 = 26.0;
    let scenarios = report.plan.scenarios.len();
    let width = (WIDTH - TITLES - 12.0) / scenarios as f64;
    let bottom = TOP + ROW * report.plan.methods.len() as f64;
    let all = report.cells.iter().filter_map(|cell| cell.outcome.as_ref().ok()).filter(|outcome| outcome.ops > 0);
    // Falls back to the second value if the first is unknown.
    let value_of =
        |outcome: &Outcome| (measure.value)(outcome).or_else(|| measure.other.and_then(|other| other(outcome)));
    let values = all.flat_map(|outcome| [(measure.value)(outcome), measure.other.and_then(|other| other(outcome))]);
    let axis = match measure.least {
        None => Axis::linear(1.0, (0.0, 1.0)),
        Some(least) => Axis::decades(values.flatten().map(|value| value.max(least)), (0.0, 1.0)),
    };
    let mut svg = Svg::new();
    for (row, method) in report.plan.methods.iter().enumerate() {
        let y = TOP + ROW * (row as f64 + 0.5);
        svg.line("base", (TITLES + 12.0, y), (WIDTH, y), "");
        svg.text("title", (TITLES, y + 4.0), Anchor::End, method.title);
    }
    for (s, scenario) in report.plan.scenarios.iter().enumerate() {
        let from = TITLES + 12.0 + width * s as f64;
        let axis = axis.moved((from + 8.0, from + width - GAP));
        svg.text("panel", (from + 8.0, TOP - 14.0), Anchor::Start, &scenario.title);
        for tick in axis.ticks(if measure.least.is_some() { 4 } else { 2 }) {
            let shown = match measure.least {
                Some(_) => (measure.shown)(tick).replace(".0 ", " "),
                None => tick.to_string(),
            };
            svg.line("grid", (axis.at(tick), TOP), (axis.at(tick), bottom), "");
            svg.text("tick", (axis.at(tick), bottom + 16.0), Anchor::Middle, &shown);
        }
        for (w, method) in report.plan.methods.iter().enumerate() {
            let y = TOP + ROW * (w as f64 + 0.5);
            let found = match report.result(w, s) {
                None => Err("not measured"),
                Some(Err(why)) => Err(why),
                Some(Ok(outcome)) if outcome.ops == 0 => Err("never acquired"),
                Some(Ok(outcome)) => value_of(outcome).map(|value| (outcome, value)).ok_or("not known"),
            };
            let (outcome, value) = match found {
                Ok(found) => found,
                Err(why) => {
                    svg.text("note", (from + 12.0, y + 4.0), Anchor::Start, &short(why));
                    continue;
                }
            };
            let x = axis.at(value);
            let other = measure.other.and_then(|other| other(outcome)).map(|other| (axis.at(other), other));
            if let Some((far, other)) = other {
                svg.line(&class_of("span", method), (x, y), (far, y), "");
                svg.circle(
                    &class_of("ring", method),
                    (far, y),
                    4.0,
                    &format!("{}, on the servers: {}", method.title, (measure.shown)(other)),
                );
            }
            let shown = (measure.shown)(value);
            svg.circle(&class_of("dot", method), (x, y), 4.5, &format!("{}: {shown}", method.title));
            let far = other.map_or(x, |(far, _)| far);
            let (low, high) = (x.min(far), x.max(far));
            // Right of the dots if there is room, otherwise left.
            if high + 50.0 < from + width {
                svg.text("value", (high + 8.0, y + 4.0), Anchor::Start, &shown);
            } else {
                svg.text("value", (low - 8.0, y + 4.0), Anchor::End, &shown);
            }
        }
    }
    chart(bottom + 24.0, measure.label, svg)
}

/// Shortens a note to the width of a column. The tables have all of it.
fn short(note: &str) -> String {
    const MOST: usize = 30;
    match note.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", note[..end].trim_end()),
        None => note.to_owned(),
    }
}

/// Formats a number with about three digits and a thousands separator.
pub(super) fn number(value: f64) -> String {
    match value {
        value if value >= 9_999.5 => {
            let whole = format!("{value:.0}");
            let (head, tail) = whole.split_at(whole.len() - 3);
            let head = if head.len() > 3 {
                format!("{}\u{2009}{}", &head[..head.len() - 3], &head[head.len() - 3..])
            } else {
                head.to_owned()
            };
            format!("{head}\u{2009}{tail}")
        }

        value if value >= 9.95 => format!("{value:.0}"),
        value if value >= 0.995 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        0.0 => "0".to_owned(),
        value if value >= 0.00995 => format!("{value:.2}"),
        _ => "< 0.01".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use core::num::NonZeroUsize;
    use core::time::Duration;

    use hdrhistogram::Histogram;

    use super::*;
    use crate::contention::counters::Sets;
    use crate::contention::report::plan::{Cell, Plan};
    use crate::contention::{Failed, Workload};

    /// An outcome without a single acquisition, as on a server that nobody asks for its counts.
    fn outcome() -> Outcome {
        Outcome {
            workload: Workload::Contended,
            clients: 1,
            span: Duration::ZERO,
            hold: Duration::ZERO,
            window: Duration::ZERO,
            ops: 0,
            total: 0,
            latencies: Histogram::new(3).unwrap(),
            cpu: Duration::ZERO,
            jain: 0.0,
            errors: 0,
            first_error: None,
            violations: 0,
            pending: 0,
            longest_pending: Duration::ZERO,
            starved: 0,
            hold_mean: Duration::ZERO,
            servers: None,
            sets: Sets::Both,
        }
    }

    #[test]
    fn dots_name_reason_of_missing_value() {
        let plan = Plan::new(NonZeroUsize::MIN, &());
        let missing = plan.methods.len() * plan.scenarios.len() - 4;
        let unreachable = "no answer from any of the servers in time";
        let outcomes = [
            Ok(outcome()),
            Ok(Outcome { ops: 1, ..outcome() }),
            Err(Failed::unreachable("refused")),
            Err(Failed::unreachable(unreachable)),
        ];
        let cells = outcomes.into_iter().enumerate();
        let cells = cells.map(|(scenario, outcome)| Cell { method: 0, scenario, outcome }).collect();
        let chart = dots(&Report { plan, cells, facts: Vec::new() }, &COMMANDS);
        for (note, count) in [
            ("never acquired", 1),
            ("not known", 1),
            ("refused", 1),
            ("no answer from any of the serv…", 1),
            (unreachable, 0),
            ("not measured", missing),
        ] {
            assert_eq!(chart.matches(&format!(">{note}<")).count(), count, "{note}: {chart}");
        }
    }

    #[test]
    fn numbers_are_rounded_and_grouped() {
        for (value, text) in [
            (0.0, "0"),
            (0.004, "< 0.01"),
            (0.01, "0.01"),
            (0.15, "0.15"),
            (1.0, "1"),
            (5.33, "5.3"),
            (42.4, "42"),
            (7_800.0, "7800"),
            (12_345.0, "12\u{2009}345"),
            (1_234_567.0, "1\u{2009}234\u{2009}567"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}

//! Maps times to positions on the page.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::time::Duration;

use super::timeline::Span;
use lock_proto::Instant;

const MARGIN: f64 = 14.0;
/// Idle stretches wider than this are cut to `BREAK`.
const WIDEST_GAP: f64 = 78.0;
const BREAK: f64 = 46.0;
/// Width of a message in flight.
const FLIGHT: f64 = 18.0;
/// Minimum distance between two labels.
const LABEL: f64 = 74.0;
/// Minimum distance of a label from the right edge.
const EDGE: f64 = 50.0;

/// A stretch of time with one scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) span: Span,
    pub(super) x: (f64, f64),
    /// Nothing happens in this stretch, and it is not to scale.
    pub(super) broken: bool,
}

impl Piece {
    pub(super) fn time(&self) -> Duration {
        self.span.to.since(self.span.from)
    }

    fn px_per_ns(&self) -> f64 {
        (self.x.1 - self.x.0) / nanos(self.time()).max(1.0)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pieces: Vec<Piece>,
    width: f64,
}

impl Axis {
    /// Creates an axis of this width with a single scale.
    pub(super) fn linear(window: Span, width: f64) -> Self {
        let piece = Piece { span: window, x: (MARGIN, width - MARGIN), broken: false };
        Self { pieces: vec![piece], width }
    }

    /// Creates an axis for events at these `times`. Its scale makes messages that take `flight`
    /// visible, and it cuts long idle stretches. It is at least this wide.
    pub(super) fn broken(window: Span, times: &BTreeSet<Instant>, flight: Duration, least: f64) -> Self {
        let px_per_ns = FLIGHT / nanos(flight).max(1.0);
        let mut pieces: Vec<Piece> = Vec::new();
        let (mut from, mut x) = (window.from, MARGIN);
        let inside = times.iter().copied().filter(|at| *at > window.from && *at < window.to);
        for to in inside.chain([window.to]) {
            let width = nanos(to.since(from)) * px_per_ns;
            let broken = width > WIDEST_GAP;
            let end = x + if broken { BREAK } else { width };
            match pieces.last_mut() {
                Some(last) if !broken && !last.broken => (last.span.to, last.x.1) = (to, end),
                Some(_) | None => pieces.push(Piece { span: Span { from, to }, x: (x, end), broken }),
            }
            (from, x) = (to, end);
        }
        let mut axis = Self { pieces, width: x + MARGIN };
        axis.stretch(least);
        axis
    }

    fn stretch(&mut self, least: f64) {
        let drawn = self.width - 2.0 * MARGIN;
        if self.width >= least || drawn <= 0.0 {
            return;
        }
        let factor = (least - 2.0 * MARGIN) / drawn;
        for piece in &mut self.pieces {
            let stretched = |x: f64| MARGIN + (x - MARGIN) * factor;
            piece.x = (stretched(piece.x.0), stretched(piece.x.1));
        }
        self.width = least;
    }

    pub(super) const fn width(&self) -> f64 {
        self.width
    }

    /// Returns the position of `at`, clamped to the axis.
    pub(super) fn x(&self, at: Instant) -> f64 {
        let Some(piece) = self.pieces.iter().find(|piece| at <= piece.span.to) else {
            return self.width - MARGIN;
        };
        let within = nanos(at.since(piece.span.from)) / nanos(piece.time()).max(1.0);
        piece.x.0 + (piece.x.1 - piece.x.0) * within
    }

    pub(super) fn breaks(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().filter(|piece| piece.broken)
    }

    /// Returns the times to label: the start of each stretch, and round times.
    pub(super) fn labels(&self) -> Vec<(f64, String)> {
        let mut labels: Vec<(f64, String)> = Vec::new();
        for piece in self.pieces.iter().filter(|piece| !piece.broken) {
            let step = round_step(LABEL / piece.px_per_ns());
            let first = piece.span.from.as_nanos().div_ceil(step);
            let last = piece.span.to.as_nanos() / step;
            let round = (first..=last).map(|n| Instant::from_nanos(n * step));
            for at in [piece.span.from].into_iter().chain(round) {
                let x = self.x(at);
                let spacing = labels.last().is_none_or(|(last, _)| x - last >= LABEL && x + EDGE <= self.width);
                if spacing {
                    labels.push((x, seconds(at)));
                }
            }
        }
        labels
    }
}

fn nanos(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

/// Returns the smallest of 1, 2, 5, 10, 20, ... µs that is at least this many ns.
fn round_step(least: f64) -> u64 {
    let mut decade: u64 = 1_000;
    loop {
        for factor in [1, 2, 5] {
            if (decade * factor) as f64 >= least || decade >= 1_000_000_000_000_000 {
                return decade * factor;
            }
        }
        decade *= 10;
    }
}

/// Formats a time as a label, with millisecond precision.
pub(super) fn seconds(at: Instant) -> String {
    format!("{:.3} s", at.since(Instant::ZERO).as_secs_f64())
}

/// Formats a duration in few characters.
pub(super) fn length(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds >= 10.0 {
        format!("{seconds:.0} s")
    } else if seconds >= 1.0 {
        format!("{seconds:.1} s")
    } else if seconds >= 0.001 {
        format!("{:.0} ms", seconds * 1e3)
    } else {
        format!("{:.0} µs", seconds * 1e6)
    }
}

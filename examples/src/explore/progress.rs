//! A line on the terminal that tells how far a search is.

use core::fmt;
use core::time::Duration;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Instant;

use super::search::Tally;

const WIDTH: u64 = 24;

/// Rewrites one line of stderr, if that is a terminal.
pub(super) struct Progress {
    began: Instant,
    runs: u64,
    shown: bool,
}

impl Progress {
    pub(super) fn new(runs: u64) -> Self {
        Self { began: Instant::now(), runs, shown: false }
    }

    pub(super) fn show(&mut self, tally: &Tally) {
        let mut stderr = io::stderr();
        if stderr.is_terminal() {
            self.shown = true;
            let line = Line { tally, runs: self.runs, elapsed: self.began.elapsed() };
            let _ = write!(stderr, "\r\x1b[K{line}");
            let _ = stderr.flush();
        }
    }

    /// Says what takes long now.
    pub(super) fn say(&mut self, what: &str) {
        let mut stderr = io::stderr();
        if stderr.is_terminal() {
            self.shown = true;
            let _ = write!(stderr, "\r\x1b[K{what}");
            let _ = stderr.flush();
        }
    }

    /// Removes the line.
    pub(super) fn clear(&mut self) {
        if core::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

struct Line<'a> {
    tally: &'a Tally,
    runs: u64,
    elapsed: Duration,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { runs, grants, excused, .. } = *self.tally;
        let full = runs.saturating_mul(WIDTH).checked_div(self.runs).unwrap_or(WIDTH).min(WIDTH);
        f.write_str("[")?;
        for place in 0..WIDTH {
            f.write_str(if place < full { "#" } else { "." })?;
        }
        let rate = rate(runs, self.elapsed);
        write!(f, "] {runs}/{} runs, {rate}/min, {grants} grants, {excused} excused", self.runs)?;
        let left = self.runs.saturating_sub(runs).saturating_mul(60).checked_div(rate);
        left.map_or(Ok(()), |left| write!(f, ", {}m{:02}s left", left / 60, left % 60))
    }
}

/// Runs a minute.
pub(super) fn rate(runs: u64, elapsed: Duration) -> u64 {
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    runs.saturating_mul(60_000) / millis
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_how_far_it_is() {
        let tally = Tally { runs: 250, grants: 7, excused: 2, ..Tally::default() };
        let line = Line { tally: &tally, runs: 1_000, elapsed: Duration::from_secs(10) }.to_string();
        assert_eq!(line, "[######..................] 250/1000 runs, 1500/min, 7 grants, 2 excused, 0m30s left");
        let begun = Line { tally: &Tally::default(), runs: 10, elapsed: Duration::ZERO }.to_string();
        assert_eq!(begun, "[........................] 0/10 runs, 0/min, 0 grants, 0 excused");
    }
}

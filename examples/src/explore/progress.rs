//! Progress of a search, shown on stderr if that is a terminal.

use core::time::Duration;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use super::search::Tally;

const SEARCH: &str = "[{bar:24}] {pos}/{len} runs, {msg}, {eta} left";
const REFRESH: Duration = Duration::from_millis(100);

/// A bar for the runs of a search, and a spinner for what follows.
pub(super) struct Progress {
    began: Instant,
    bar: ProgressBar,
}

impl Progress {
    pub(super) fn new(runs: u64) -> Self {
        // Hidden unless stderr is a terminal.
        let bar = ProgressBar::new(runs);
        let style = ProgressStyle::with_template(SEARCH).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("#."));
        Self { began: Instant::now(), bar }
    }

    pub(super) fn show(&self, tally: &Tally) {
        self.bar.set_position(tally.runs);
        self.bar.set_message(figures(tally, self.began.elapsed()));
    }

    pub(super) fn spin(&mut self, what: &'static str) {
        self.clear();
        self.bar = ProgressBar::new_spinner().with_message(what);
        self.bar.enable_steady_tick(REFRESH);
    }

    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

fn figures(tally: &Tally, elapsed: Duration) -> String {
    let Tally { runs, grants, excused, .. } = *tally;
    format!("{}/min, {grants} grants, {excused} excused", rate(runs, elapsed))
}

pub(super) fn rate(runs: u64, elapsed: Duration) -> u64 {
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    runs.saturating_mul(60_000) / millis
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_line_shows_rate_grants_and_excused() {
        let tally = Tally { runs: 250, grants: 7, excused: 2, ..Tally::default() };
        assert_eq!(figures(&tally, Duration::from_secs(10)), "1500/min, 7 grants, 2 excused");
        assert_eq!(figures(&Tally::default(), Duration::ZERO), "0/min, 0 grants, 0 excused");
        assert!(ProgressStyle::with_template(SEARCH).is_ok());
    }
}

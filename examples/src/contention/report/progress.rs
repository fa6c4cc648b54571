//! Progress of the report: a bar on a terminal, lines elsewhere.

use std::io::{self, Write as _};

use indicatif::{ProgressBar, ProgressStyle};

pub(super) struct Progress {
    bar: ProgressBar,
    all: usize,
    started: usize,
}

impl Progress {
    pub(super) fn new(all: usize) -> Self {
        // Hidden unless stderr is a terminal.
        let bar = ProgressBar::new(all as u64);
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {wide_msg}  {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("█░"));
        Self { bar, all, started: 0 }
    }

    pub(super) fn begins(&mut self, what: &str) {
        self.show(what);
        self.started += 1;
    }

    pub(super) fn ends(&self) {
        self.show("done");
        self.bar.abandon();
    }

    fn show(&self, what: &str) {
        if self.bar.is_hidden() {
            let _ = writeln!(io::stderr(), "{}/{} {what}", self.started, self.all);
        } else {
            self.bar.set_position(self.started as u64);
            self.bar.set_message(what.to_owned());
        }
    }
}

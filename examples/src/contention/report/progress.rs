//! Tells how far it is: a bar on a terminal, lines elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Instant;

const WIDTH: usize = 30;

pub(super) struct Progress {
    all: usize,
    begun: usize,
    start: Instant,
    on_terminal: bool,
}

impl Progress {
    pub(super) fn new(all: usize) -> Self {
        Self { all, begun: 0, start: Instant::now(), on_terminal: io::stderr().is_terminal() }
    }

    /// The next one begins.
    pub(super) fn begins(&mut self, what: &str) {
        self.show(what);
        self.begun += 1;
    }

    /// All are done.
    pub(super) fn ends(&self) {
        self.show("done");
        if self.on_terminal {
            let _ = writeln!(io::stderr());
        }
    }

    fn show(&self, what: &str) {
        let Self { all, begun, .. } = *self;
        // Nobody may look: that is no error.
        let _ = if self.on_terminal {
            let full = WIDTH * begun / all.max(1);
            let left = match u32::try_from(begun) {
                Ok(done @ 1..) => {
                    let left = self.start.elapsed() / done * u32::try_from(all - begun).unwrap_or(u32::MAX);
                    format!("{} s left", left.as_secs())
                }
                Ok(0) | Err(_) => String::new(),
            };
            let (full, empty) = ("█".repeat(full), "░".repeat(WIDTH - full));
            // Back to the beginning, and nothing of what stood there.
            write!(io::stderr(), "\r\x1b[K{full}{empty} {begun}/{all}  {what}  {left}")
        } else {
            writeln!(io::stderr(), "{begun}/{all} {what}")
        };
        let _ = io::stderr().flush();
    }
}

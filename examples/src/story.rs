//! Log lines with timestamps, and whether all checks passed.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Instant;

/// Prints events line by line. Clones share one story.
#[derive(Clone, Debug)]
pub(crate) struct Story {
    start: Instant,
    broken: Arc<AtomicBool>,
}

impl Story {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), broken: Arc::new(AtomicBool::new(false)) }
    }

    pub(crate) fn tell(&self, line: &str) {
        println!("{:7.3} s  {line}", self.start.elapsed().as_secs_f64());
    }

    pub(crate) fn title(&self, line: &str) {
        println!();
        self.tell(line);
    }

    /// Reports something that must not happen.
    pub(crate) fn broken(&self, line: &str) {
        self.broken.store(true, Ordering::Relaxed);
        self.tell(&format!("!! {line}"));
    }

    /// Checks a promise and prints the result.
    pub(crate) fn check(&self, holds: bool, promise: &str) {
        if holds {
            self.tell(&format!("ok: {promise}"));
        } else {
            self.broken(&format!("not so: {promise}"));
        }
    }

    pub(crate) fn is_intact(&self) -> bool {
        !self.broken.load(Ordering::Relaxed)
    }
}

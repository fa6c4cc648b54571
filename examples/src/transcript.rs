//! Log lines with timestamps, and whether all checks passed.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Instant;

use crate::cli::print;

/// Prints timestamped lines. Clones share the result.
#[derive(Clone, Debug)]
pub(crate) struct Transcript {
    start: Instant,
    failed: Arc<AtomicBool>,
}

impl Transcript {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), failed: Arc::new(AtomicBool::new(false)) }
    }

    pub(crate) fn log(&self, line: &str) {
        print(&format_args!("{:7.3} s  {line}", self.start.elapsed().as_secs_f64()));
    }

    pub(crate) fn section(&self, line: &str) {
        print(&"");
        self.log(line);
    }

    /// Reports a failed check.
    pub(crate) fn fail(&self, line: &str) {
        self.failed.store(true, Ordering::Relaxed);
        self.log(&format!("!! {line}"));
    }

    pub(crate) fn check(&self, holds: bool, promise: &str) {
        if holds {
            self.log(&format!("ok: {promise}"));
        } else {
            self.fail(&format!("not so: {promise}"));
        }
    }

    pub(crate) fn passed(&self) -> bool {
        !self.failed.load(Ordering::Relaxed)
    }
}

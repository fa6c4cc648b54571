//! Allocations of the state machines, compared with their limits. Part of `make bench-check`.
//!
//! `cargo run -p lock-gauge --profile bench --bin allocations`; the argument `set` sets the limits.

use std::process::ExitCode;

use lock_gauge::ALL;
use lock_gauge::limits::{Measured, judge};

fn main() -> ExitCode {
    let mut measured = Vec::new();
    for work in &ALL {
        let mut run = (work.prepare)();
        // Buffers reach their size.
        run();
        let counted = allocation_counter::measure(&mut run);
        for (figure, count) in [("allocations", counted.count_total), ("bytes", counted.bytes_total)] {
            measured.push(Measured::new(work, figure, count));
        }
    }
    judge(&measured, std::env::args().nth(1).as_deref() == Some("set"))
}

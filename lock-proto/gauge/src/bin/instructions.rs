//! Instructions of the state machines, compared with their limits. Part of `make bench-check`.
//!
//! `cargo run -p lock-gauge --profile bench --bin instructions` runs each workload under callgrind.
//! The argument `set` sets the limits, and `run NAME` runs one workload alone, for a profiler.

use std::process::ExitCode;

use lock_gauge::limits::{Measured, judge};
use lock_gauge::{ALL, callgrind, find};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => check(false),
        ["set"] => check(true),
        ["run", name] => run(name),
        _ => {
            eprintln!("usage: instructions [set | run NAME]");
            ExitCode::FAILURE
        }
    }
}

fn check(set: bool) -> ExitCode {
    if !cfg!(target_arch = "x86_64") {
        println!("the limits are for x86_64: instructions are not compared here");
        return ExitCode::SUCCESS;
    }
    let mut measured = Vec::new();
    for work in &ALL {
        match callgrind::instructions(work.name, "*measured_section*") {
            Ok(count) => measured.push(Measured::new(work, "instructions", count)),
            Err(why) => {
                eprintln!("{}: {why}", work.name);
                return ExitCode::FAILURE;
            }
        }
    }
    judge(&measured, set)
}

fn run(name: &str) -> ExitCode {
    let Some(work) = find(name) else {
        eprintln!("there is no work called {name}");
        return ExitCode::FAILURE;
    };
    let mut run = (work.prepare)();
    // Buffers reach their size.
    run();
    measured_section(&mut *run);
    ExitCode::SUCCESS
}

/// The section that callgrind counts, which it finds by name.
#[inline(never)]
fn measured_section(run: &mut dyn FnMut()) {
    run();
    // Keeps the call from becoming a tail call.
    core::hint::black_box(());
}

//! Runs locks on simulated servers on loopback: `cargo run --bin demo`. Needs no installed server.

use std::env;
use std::process::ExitCode;

use clap::Parser;
use lock_examples::cli::args::parse_or_exit;
use lock_examples::cli::exit;

/// Shows a lock with fencing tokens on one server, then a quorum of five, on simulated servers.
#[derive(Debug, Parser)]
#[command(name = "demo", version)]
struct Options {}

fn main() -> ExitCode {
    match parse_or_exit::<Options>(env::args_os().skip(1), exit::USAGE) {
        Ok(_) => lock_examples::demo::main(),
        Err(code) => ExitCode::from(code),
    }
}

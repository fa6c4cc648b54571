//! Looks for broken promises in simulated worlds, and draws them. `explore --help` says more.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(lock_examples::explore::main(env::args_os().skip(1)))
}

//! Searches simulated worlds for broken rules and draws them. See `explore --help`.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(lock_examples::explore::main(env::args_os().skip(1)))
}

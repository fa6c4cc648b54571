//! `serve`: simulated Redis and etcd servers on loopback, with faults.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(lock_examples::serving::main(std::env::args_os().skip(1)))
}

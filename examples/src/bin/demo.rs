//! Shows what the locks do, with simulated servers on loopback: `cargo run --bin demo`. Nothing needs to be installed.

use std::process::ExitCode;

fn main() -> ExitCode {
    lock_examples::demo::main()
}

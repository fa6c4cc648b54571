//! Runs a command while holding a distributed lock, on any store: `with-lock NAME -- COMMAND`.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let backends = env::var_os("LOCK_BACKEND");
    ExitCode::from(lock_examples::with_lock::main(env::args_os().skip(1), backends.as_deref(), lock_tools::STORES))
}

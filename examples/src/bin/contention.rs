//! Measures locks on real servers under load: `contention --workload contended`, `contention
//! report`.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let backends = env::var("LOCK_BACKEND").ok();
    ExitCode::from(lock_examples::contention::main(env::args_os().skip(1), backends.as_deref(), &()))
}

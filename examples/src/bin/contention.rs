//! Measures locks on real servers under load: `contention --workload contended`, `contention
//! report`.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let backends = env::var_os("LOCK_BACKEND");
    ExitCode::from(lock_examples::contention::main(env::args_os().skip(1), backends.as_deref(), &()))
}

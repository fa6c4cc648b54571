//! Elections on etcd: plays one, stands in one, or observes one. `leader --help` says more.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let backends = env::var("LOCK_BACKEND").ok();
    ExitCode::from(lock_examples::leader::main(env::args_os().skip(1), backends.as_deref()))
}

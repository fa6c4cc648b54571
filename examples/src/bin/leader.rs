//! Elections on every store but Redis: demonstrates one, or takes part as a candidate or an
//! observer. See `leader --help`.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let backends = env::var_os("LOCK_BACKEND");
    ExitCode::from(lock_examples::leader::main(env::args_os().skip(1), backends.as_deref(), &[]))
}

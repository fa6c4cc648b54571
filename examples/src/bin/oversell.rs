//! A sale with more buyers than goods: `oversell`, under locks of this library in a folder of the
//! user; with `--backend`, on real servers. `oversell SEED` simulates it, with a naive lock beside.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let backends = env::var_os("LOCK_BACKEND");
    ExitCode::from(lock_examples::oversell::main(env::args_os().skip(1), backends.as_deref()))
}

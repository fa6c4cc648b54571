//! Shows how a naive lock oversells: `oversell [SEED]`, without a server. With `--backend`, sells
//! under this library's locks on real servers.

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(lock_examples::oversell::main(env::args_os().skip(1)))
}

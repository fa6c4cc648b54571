//! `leader`: elections on etcd. Demonstrates and checks a small election, or runs a candidate or an
//! observer, which also works together with `etcdctl elect`.

mod args;
mod office;
mod play;
mod stand;

use std::ffi::OsString;
use std::io::Write as _;

use lock_proto::driver::AcquireError;

use args::{Args, Parsed, Role, parse};

use crate::cli::{GOODBYE, exit};

/// Runs the program and returns its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>, default_backend: Option<&str>) -> u8 {
    let args = match parse(args, default_backend) {
        Ok(Parsed::Run(args)) => *args,
        Ok(Parsed::Print(text)) => {
            let _ = write!(std::io::stdout(), "{text}");
            return 0;
        }
        Err(error) => {
            say(&error);
            return exit::USAGE;
        }
    };
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(run(args)),
        Err(error) => {
            say(&format_args!("no tokio runtime: {error}"));
            exit::UNREACHABLE
        }
    }
}

async fn run(Args { config, role }: Args) -> u8 {
    let client = match lock_tokio::connect_with(config.clone()) {
        Ok(client) => client,
        Err(error) => {
            say(&error);
            return exit::USAGE;
        }
    };
    let code = match role {
        Role::Play => play::play(&client, &config).await,
        Role::Candidate { name, value } => stand::stand(&client, &name, &value).await,
        Role::Observer { name } => stand::observe(&client, &name).await,
    };
    // Clean up the store, including the session.
    client.shutdown(GOODBYE).await;
    code
}

/// Prints one line on stderr.
fn say(what: &dyn core::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "leader: {what}");
}

/// Prints the error and returns the exit code.
fn explain(error: &AcquireError) -> u8 {
    say(error);
    exit::of_failure(error.kind())
}

//! `leader`: elections on every store but Redis. Demonstrates and checks a small election, or runs a
//! candidate or an observer, which also works together with `etcdctl elect` or Curator's
//! `LeaderLatch`.

mod args;
mod campaign;
mod candidate;
mod demo;

use std::ffi::{OsStr, OsString};

use lock_driver::{AcquireError, Client};

use args::{Args, Parsed, Role, parse};

use crate::cli::backend::Backend;
use crate::cli::failed::Failed;
use crate::cli::log::show_log;
use crate::cli::output::print_text;
use crate::cli::register::StoreUrl;
use crate::cli::runtime::{block_on, tokio_runtime};
use crate::cli::stdio::{print_error, run_tool};
use crate::cli::{SHUTDOWN_TIMEOUT, exit};

/// Runs the program and returns its exit code. `default` is the value of `LOCK_BACKEND`, `stores`
/// are more than those of this package.
pub fn main(args: impl IntoIterator<Item = OsString>, default: Option<&OsStr>, stores: &'static [StoreUrl]) -> u8 {
    run_tool("leader", || start(args, default, stores))
}

fn start(args: impl IntoIterator<Item = OsString>, default: Option<&OsStr>, stores: &'static [StoreUrl]) -> u8 {
    let args = match parse(args, default, stores) {
        Ok(Parsed::Run(args)) => *args,
        Ok(Parsed::Print(text)) => return print_text("leader", &text),
        Err(error) => {
            print_error(&error);
            return exit::USAGE;
        }
    };
    if let Err(error) = show_log("leader") {
        print_error(&error);
        return exit::USAGE;
    }
    if let Some(notice) = &args.notice {
        print_error(notice);
    }
    match tokio_runtime() {
        Ok(runtime) => block_on(runtime, run(args)),
        Err(failed) => {
            print_error(&failed);
            failed.code
        }
    }
}

async fn run(Args { backend, ttl, role, .. }: Args) -> u8 {
    let client = match connect(&backend).await {
        Ok(client) => client,
        Err(failed) => {
            print_error(&failed);
            return failed.code;
        }
    };
    let code = match role {
        Role::Demo => demo::run_demo(&client, &backend, ttl).await,
        Role::Candidate { name, value } => campaign::campaign(&client, &name, ttl, &value).await,
        Role::Observer { name } => campaign::observe(&client, &name).await,
    };
    // Clean up the store, including the session.
    client.shutdown(SHUTDOWN_TIMEOUT).await;
    code
}

async fn connect(backend: &Backend) -> Result<Client, Failed> {
    backend.prepare().await?;
    backend.connect()
}

/// Prints the error and returns the exit code.
fn report_failure(error: &AcquireError) -> u8 {
    let failed = Failed::acquiring(error);
    print_error(&failed);
    failed.code
}

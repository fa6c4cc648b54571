//! `leader`: elections on etcd, on ZooKeeper, or in a folder. Demonstrates and checks a small
//! election, or runs a candidate or an observer, which also works together with `etcdctl elect` or
//! Curator's `LeaderLatch`.

mod args;
mod campaign;
mod candidate;
mod demo;

use std::ffi::{OsStr, OsString};

use lock_driver::{AcquireError, StoreSettings};

use args::{Args, Parsed, Role, parse};

use crate::cli::failed::Failed;
use crate::cli::log::show_log;
use crate::cli::output::print_text;
use crate::cli::runtime::{block_on, tokio_runtime};
use crate::cli::stdio::{print_error, run_tool};
use crate::cli::{SHUTDOWN_TIMEOUT, exit};

/// Runs the program and returns its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>, default: Option<&OsStr>) -> u8 {
    run_tool("leader", || start(args, default))
}

fn start(args: impl IntoIterator<Item = OsString>, default: Option<&OsStr>) -> u8 {
    let args = match parse(args, default) {
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

async fn run(Args { settings, ttl, role, .. }: Args) -> u8 {
    let client = match lock_tokio::connect_with(settings.clone()) {
        Ok(client) => client,
        Err(error) => {
            print_error(&error);
            return Failed::connecting(&error).code;
        }
    };
    let code = match role {
        Role::Demo => demo::run_demo(&client, &settings, ttl).await,
        Role::Candidate { name, value } => campaign::campaign(&client, &name, ttl, &value).await,
        Role::Observer { name } => campaign::observe(&client, &name).await,
    };
    // Clean up the store, including the session.
    client.shutdown(SHUTDOWN_TIMEOUT).await;
    code
}

/// The servers in these settings, or the folder.
fn members(settings: &StoreSettings) -> String {
    let members: Vec<String> = match settings {
        StoreSettings::Etcd(config) => config.endpoints().iter().map(ToString::to_string).collect(),
        StoreSettings::ZooKeeper(config) => config.servers().iter().map(ToString::to_string).collect(),
        StoreSettings::File(config) => vec![config.folder.display().to_string()],
        StoreSettings::Redis(_) | _ => Vec::new(),
    };
    members.join(", ")
}

/// Prints the error and returns the exit code.
fn report_failure(error: &AcquireError) -> u8 {
    print_error(error);
    exit::of_failure(error.kind())
}

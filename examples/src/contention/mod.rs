//! `contention`: measures locks on real servers under load. Runs one workload, or all of them with
//! `contention report`, which draws them.
//!
//! The same code measures every [`Contender`]: this library, and other libraries through [`Peers`].
//! The peers are in `examples/bench`, because they bring many dependencies.

mod args;
mod contender;
mod counters;
mod held;
mod job;
mod measure;
mod ours;
mod outcome;
mod process;
mod report;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;

use args::Parsed;
pub use contender::{Contender, Peer, Peers, Store};
pub use job::{Job, Workload};
pub use measure::{lock_names, measure};
pub use outcome::Outcome;

pub use crate::cli::failed::Failed;
use crate::cli::output::print_text;
use crate::cli::print;

/// Runs the tool and returns its exit code. `default_backends` is the value of `LOCK_BACKEND`.
pub fn main(args: impl IntoIterator<Item = OsString>, default_backends: Option<&OsStr>, peers: &dyn Peers) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    let done = match args::parse(args.iter().cloned(), default_backends, peers) {
        Ok(Parsed::Run(job, format)) => run(&job, peers).map(|text| print(&text.render(format))),
        Ok(Parsed::Report(settings)) => report::run(&settings, &args, peers),
        Ok(Parsed::Print(text)) => return print_text("contention", &text),
        Err(error) => Err(Failed::usage(error)),
    };
    match done {
        Ok(()) => 0,
        Err(failed) => {
            let _ = writeln!(std::io::stderr(), "contention: {failed}");
            failed.code
        }
    }
}

enum Measured {
    Locks(Box<Outcome>),
    Held(held::Held),
}

impl Measured {
    fn render(&self, format: args::Format) -> String {
        match (self, format) {
            (Self::Locks(outcome), args::Format::Json) => outcome.json(),
            (Self::Locks(outcome), args::Format::Table) => outcome.table(),
            (Self::Held(held), args::Format::Json) => held.json(),
            (Self::Held(held), args::Format::Table) => held.table(),
        }
    }
}

fn run(job: &Job, peers: &dyn Peers) -> Result<Measured, Failed> {
    process::raise_limits();
    match (&job.peer, job.workload) {
        (Some(peer), _) => peers.measure(peer, job).map(|outcome| Measured::Locks(Box::new(outcome))),
        (None, Workload::Held) => job.runtime.block_on(held::run(job))?.map(Measured::Held),
        (None, Workload::Uncontended | Workload::Contended | Workload::Quorum) => {
            ours::run(job).map(|outcome| Measured::Locks(Box::new(outcome)))
        }
    }
}

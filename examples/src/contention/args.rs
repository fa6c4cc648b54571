//! The command line.

use core::num::NonZeroUsize;
use core::str::FromStr;
use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::Arg::{Long, Short, Value};
use lock_proto::redis::Wake;

use super::contender::{Peers, Store};
use super::job::{Job, Workload};
use super::report;
use crate::cli::runtime::Runtime;
use crate::cli::{Usage, choice, text, time, usage};

const HELP: &str = "\
Measures locks on real servers under load.

usage: contention --workload WORKLOAD [OPTIONS]      one workload; prints what came of it
       contention report [--seconds S] [--clients C] [--out DIR]
                                                     many workloads on servers that it starts, drawn in DIR/report.html
                                                     and DIR/report.md [3, 10, the current directory]

WORKLOAD is one of
  uncontended        each task takes a lock of its own, again and again
  contended          all tasks want one lock
  quorum             as uncontended, on three servers or more
  held               many locks are held and renewed

  --backend URL      redis://[user:password@]host[:port][/database] once, or three or any larger odd number of times for
                     a quorum; or etcd://host[:port][,host[:port]...] once
                     Default: $LOCK_BACKEND (separated by blanks), else redis://127.0.0.1:6379
  --clients C        how many tasks [16]
  --seconds S        for how long [5]
  --hold TIME        how long a lock is held each time [0]
  --locks N          held: how many [10000]
  --ttl TIME         how long a lock outlives the last sign of life [10s]
  --poll TIME        how often a waiter tries; not used with etcd [50ms]
  --wake HOW         notify: a release wakes one waiter; poll: polling alone; not used with etcd [notify]
  --clients-per-connection K
                     how many tasks share a client, and so its connection or session; 1: each has its own, as
                     processes would have [all]
  --turns on|off     whether a lock is passed on among the tasks of a client without a word to the server [on]
  --fence on|off     whether a lock comes with a fencing token; not used with a quorum or etcd [on]
  --runtime NAME     tokio, smol or async-std [tokio]
  --peer NAME        another library in place of this one, PEERS
  --json             one line of JSON

A TIME is written like 500ms, 10s or 1m30s. What the fields of the JSON mean is told in docs/benchmarks.md.

exit code: 0, or 64 usage   65 the key is in use by something else   69 a server does not answer   77 refused by the server
";

/// What to say of peers where there are none.
const HOW_TO_GET_PEERS: &str = "peers (rslock, redis-rs, etcd-client) are in another build of this tool, since they bring many \
                                dependencies: cargo run --release --manifest-path examples/bench/Cargo.toml --bin contention -- …";

/// More would be a slip of the finger.
const MAX_TASKS: usize = 100_000;
const MAX_LOCKS: usize = 1_000_000;
const MAX_SECONDS: f64 = 86_400.0;

/// How the figures are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// What the command line asks for.
#[derive(Debug)]
pub(super) enum Parsed {
    /// One workload.
    Run(Box<Job>, Format),
    /// All of them.
    Report(report::Wanted),
    /// Print this and end well.
    Print(String),
}

/// Reads the command line (without the program's name).
pub(super) fn parse(
    args: impl IntoIterator<Item = OsString>,
    default_backends: Option<&str>,
    peers: &dyn Peers,
) -> Result<Parsed, Usage> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut job = Job::new(Workload::Contended, Vec::new());
    let (mut workload, mut format) = (None, Format::Table);
    while let Some(arg) = parser.next()? {
        match arg {
            Value(word) if word == "report" && workload.is_none() => return parse_report(parser),
            Long("workload") => workload = Some(choice("--workload", &text(&mut parser)?, &Workload::ALL)?),
            Long("backend") => job.backends.push(text(&mut parser)?),
            Long("clients") => job.clients = count("--clients", &text(&mut parser)?, MAX_TASKS)?,
            Long("seconds") => job.span = seconds(&text(&mut parser)?)?,
            Long("hold") => job.hold = time("--hold", &text(&mut parser)?)?,
            Long("locks") => job.locks = count("--locks", &text(&mut parser)?, MAX_LOCKS)?,
            Long("ttl") => job.ttl = time("--ttl", &text(&mut parser)?)?,
            Long("poll") => job.poll = time("--poll", &text(&mut parser)?)?,
            Long("wake") => {
                job.wake = choice("--wake", &text(&mut parser)?, &[("notify", Wake::Notify), ("poll", Wake::Poll)])?;
            }
            Long("clients-per-connection") => {
                job.per_connection = Some(count("--clients-per-connection", &text(&mut parser)?, MAX_TASKS)?);
            }
            Long("turns") => job.turns = choice("--turns", &text(&mut parser)?, &SWITCH)?,
            Long("fence") => job.fence = choice("--fence", &text(&mut parser)?, &SWITCH)?,
            Long("runtime") => job.runtime = choice("--runtime", &text(&mut parser)?, &Runtime::ALL)?,
            Long("peer") => job.peer = Some(text(&mut parser)?),
            Long("json") => format = Format::Json,
            Long("help") | Short('h') => return Ok(Parsed::Print(help(peers))),
            Long("version") | Short('V') => {
                return Ok(Parsed::Print(format!("contention {}\n", env!("CARGO_PKG_VERSION"))));
            }
            Long(_) | Short(_) | Value(_) => return Err(arg.unexpected().into()),
        }
    }
    let Some(workload) = workload else {
        return usage("--workload is missing: uncontended, contended, quorum or held; or `contention report`");
    };
    job.workload = workload;
    if job.backends.is_empty() {
        let default = default_backends.filter(|list| !list.trim().is_empty()).unwrap_or("redis://127.0.0.1:6379");
        job.backends.extend(default.split_whitespace().map(str::to_owned));
    }
    // Whether they can be used; they are made anew for each client.
    let _ = job.settings().map_err(|failed| Usage(failed.why))?;
    if workload == Workload::Quorum && job.backends.len() < 3 {
        return usage("--workload quorum needs three servers or more: give --backend redis://… several times");
    }
    if job.hold > job.ttl {
        return usage("--hold is longer than --ttl");
    }
    if let Some(peer) = &job.peer {
        check_peer(peer, &job, peers)?;
    }
    Ok(Parsed::Run(Box::new(job), format))
}

fn check_peer(name: &str, job: &Job, peers: &dyn Peers) -> Result<(), Usage> {
    let known = peers.list();
    let Some(peer) = known.iter().find(|peer| peer.name == name) else {
        return match known.is_empty() {
            true => usage(format!("--peer {name}: {HOW_TO_GET_PEERS}")),
            false => usage(format!("--peer: {name:?} is none of {}", names_of(peers))),
        };
    };
    if job.workload == Workload::Held {
        return usage("--peer: the workload held is for this library alone: the others renew nothing by themselves");
    }
    if job.runtime != Runtime::Tokio {
        return usage("--peer: the others are measured on tokio");
    }
    let on_etcd = job.backends.iter().any(|url| url.starts_with("etcd:"));
    match peer.store {
        Store::Etcd if !on_etcd => usage(format!("--peer {name} needs --backend etcd://…")),
        Store::Redis { .. } if on_etcd => usage(format!("--peer {name} needs --backend redis://…")),
        Store::Redis { quorum: false } if job.backends.len() > 1 => {
            usage(format!("--peer {name} knows no quorum: give one --backend"))
        }
        Store::Etcd | Store::Redis { .. } => Ok(()),
    }
}

fn parse_report(mut parser: lexopt::Parser) -> Result<Parsed, Usage> {
    let mut wanted = report::Wanted::default();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("seconds") => wanted.span = seconds(&text(&mut parser)?)?,
            // A hundred times as many are the most.
            Long("clients") => wanted.clients = count("--clients", &text(&mut parser)?, 100)?,
            Long("out") => wanted.out = PathBuf::from(parser.value()?),
            Long("help") | Short('h') => return Ok(Parsed::Print(help(&()))),
            Long(_) | Short(_) | Value(_) => return Err(arg.unexpected().into()),
        }
    }
    Ok(Parsed::Report(wanted))
}

const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];

fn names_of(peers: &dyn Peers) -> String {
    peers.list().iter().map(|peer| peer.name).collect::<Vec<_>>().join(", ")
}

fn help(peers: &dyn Peers) -> String {
    let names = names_of(peers);
    HELP.replace("PEERS", if names.is_empty() { "none in this build: see docs/benchmarks.md" } else { &names })
}

fn count(option: &str, value: &str, max: usize) -> Result<NonZeroUsize, Usage> {
    match NonZeroUsize::from_str(value) {
        Ok(number) if number.get() <= max => Ok(number),
        Ok(_) | Err(_) => usage(format!("{option}: {value:?} is no whole number from 1 to {max}")),
    }
}

/// A whole number or a decimal fraction.
fn seconds(value: &str) -> Result<Duration, Usage> {
    match f64::from_str(value) {
        Ok(number) if (0.01..=MAX_SECONDS).contains(&number) => Ok(Duration::from_secs_f64(number)),
        Ok(_) | Err(_) => usage(format!("--seconds: {value:?} is no number from 0.01 to {MAX_SECONDS}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::contention::{Failed, Outcome, Peer};

    struct Two;

    impl Peers for Two {
        fn list(&self) -> Vec<Peer> {
            let peer = |name, store| Peer { name, about: String::new(), store };
            vec![peer("single", Store::Redis { quorum: false }), peer("watcher", Store::Etcd)]
        }

        fn measure(&self, _: &str, _: &Job) -> Result<Outcome, Failed> {
            Err(Failed::unreachable("not here"))
        }
    }

    fn read(line: &str, peers: &dyn Peers) -> Result<Parsed, Usage> {
        parse(line.split_whitespace().map(OsString::from), None, peers)
    }

    fn job(line: &str) -> Job {
        match read(line, &()) {
            Ok(Parsed::Run(job, _)) => *job,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_option_is_read() {
        let job = job(
            "--workload held --backend redis://h:1 --clients 7 --seconds 0.5 --hold 2ms --locks 9 --ttl 3s --poll 20ms \
             --wake poll --clients-per-connection 3 --turns off --fence off --runtime smol --json",
        );
        assert_eq!((job.workload, job.clients.get(), job.locks.get()), (Workload::Held, 7, 9));
        assert_eq!((job.span, job.hold), (Duration::from_millis(500), Duration::from_millis(2)));
        assert_eq!((job.ttl, job.poll), (Duration::from_secs(3), Duration::from_millis(20)));
        assert_eq!((job.wake, job.turns, job.fence, job.runtime), (Wake::Poll, false, false, Runtime::Smol));
        assert_eq!(job.connections(), 3);
        assert_eq!([0, 2, 3, 6].map(|task| job.connection_of(task)), [0, 0, 1, 2]);
    }

    #[test]
    fn the_tasks_share_one_client_unless_told() {
        let job = job("--workload contended");
        assert_eq!((job.connections(), job.connection_of(15)), (1, 0));
        assert_eq!(job.backends, ["redis://127.0.0.1:6379"]);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (line, word) in [
            ("", "--workload"),
            ("--workload x", "uncontended, contended, quorum, held"),
            ("--workload contended --clients 0", "--clients"),
            ("--workload contended --clients 100001", "100000"),
            ("--workload contended --seconds 0", "--seconds"),
            ("--workload contended --seconds inf", "--seconds"),
            ("--workload contended --hold 5", "--hold"),
            ("--workload contended --hold 11s", "--ttl"),
            ("--workload contended --wake up", "notify, poll"),
            ("--workload contended --turns maybe", "on, off"),
            ("--workload contended --runtime glommio", "tokio, smol, async-std"),
            ("--workload contended --backend http://h", "--backend"),
            ("--workload quorum", "three"),
            ("--workload quorum --backend redis://a --backend redis://b", "odd"),
            ("--workload contended --peer rslock", "examples/bench/Cargo.toml"),
            ("--workload contended more", "more"),
            ("report --hold 1s", "--hold"),
            ("report --clients 101", "--clients"),
        ] {
            let error = read(line, &()).unwrap_err().to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn a_peer_is_asked_for_what_it_can() {
        for (line, word) in [
            ("--workload contended --peer other", "single, watcher"),
            ("--workload held --peer single", "held"),
            ("--workload contended --peer single --runtime smol", "tokio"),
            ("--workload contended --peer single --backend etcd://h", "redis://"),
            ("--workload contended --peer watcher", "etcd://"),
            ("--workload quorum --peer single --backend redis://a --backend redis://b --backend redis://c", "quorum"),
        ] {
            let error = read(line, &Two).unwrap_err().to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
        assert!(matches!(read("--workload contended --peer single", &Two), Ok(Parsed::Run(..))));
    }
}

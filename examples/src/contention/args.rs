//! Command line of `contention`.

use core::num::NonZeroUsize;
use core::str::FromStr;
use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{ArgAction, Args, CommandFactory as _, Parser, Subcommand};
use lock_driver::StoreSettings;
use lock_proto::Target;

use super::contender::{Peers, Store};
use super::job::{Job, Workload};
use super::report;
use crate::cli::args::{DEFAULT_BACKEND, Line, WakeMode, backends_or_default, count, parse_as, switch, time};
use crate::cli::runtime::Runtime;
use crate::cli::{Usage, usage};

/// Measures locks on real servers under load.
#[derive(Debug, Parser)]
#[command(
    name = "contention",
    version,
    override_usage = USAGE,
    after_help = AFTER_HELP,
    args_conflicts_with_subcommands = true
)]
struct Options {
    #[command(subcommand)]
    report: Option<Report>,

    /// uncontended: each task takes a lock of its own repeatedly; contended: all tasks take one
    /// lock; quorum: as uncontended, on three servers or more; held: many locks are held and
    /// renewed.
    #[arg(long, hide_possible_values = true)]
    workload: Option<Workload>,

    /// redis://[user:password@]host[:port][/database]: once for a single server, three or a larger
    /// odd number of times for a quorum. Or once etcd://host[:port][,host[:port]...] or
    /// zk://host[:port][,host[:port]...][/chroot][?tick_ms=MS] [default:
    /// $LOCK_BACKEND (separated by spaces), else redis://127.0.0.1:6379]
    #[arg(long = "backend", value_name = "URL")]
    backends: Vec<String>,

    /// Number of tasks.
    #[arg(long, value_name = "C", value_parser = count(MAX_TASKS), default_value = "16")]
    clients: NonZeroUsize,

    /// How long to measure.
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "5")]
    seconds: Duration,

    /// How long each lock is held.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time, default_value = "0")]
    hold: Duration,

    /// Workload held: number of locks.
    #[arg(long, value_name = "N", value_parser = count(MAX_LOCKS), default_value = "10000")]
    locks: NonZeroUsize,

    /// TTL of a lock after its last renewal; on ZooKeeper at least five ticks.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time, default_value = "10s")]
    ttl: Duration,

    /// Polling interval while waiting; for Redis.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time, default_value = "50ms")]
    poll: Duration,

    /// notify: wake one waiter on release; poll: rely on polling only; for Redis.
    #[arg(long, value_name = "MODE", hide_possible_values = true, default_value = "notify")]
    wake: WakeMode,

    /// Number of tasks that share a client, and so its connection or session; 1 behaves as separate
    /// processes would [default: all]
    #[arg(long, value_name = "K", value_parser = count(MAX_TASKS))]
    clients_per_connection: Option<NonZeroUsize>,

    /// Hand the lock over among the tasks of a client without a request to the server.
    #[arg(long, value_name = "on|off", value_parser = switch(), hide_possible_values = true)]
    #[arg(action = ArgAction::Set, default_value = "on")]
    turns: bool,

    /// Issue fencing tokens; for a single Redis server.
    #[arg(long, value_name = "on|off", value_parser = switch(), hide_possible_values = true)]
    #[arg(action = ArgAction::Set, default_value = "on")]
    fence: bool,

    /// tokio, smol or async-std.
    #[arg(long, value_name = "NAME", hide_possible_values = true, default_value = "tokio")]
    runtime: Runtime,

    // `help_of_peer` writes its help.
    #[arg(long, value_name = "NAME")]
    peer: Option<String>,

    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Report {
    Report(ReportOptions),
}

/// Measures many workloads on servers that it starts, and draws them in DIR/report.html and
/// DIR/report.md.
#[derive(Debug, Args)]
struct ReportOptions {
    /// How long to measure each workload.
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "3")]
    seconds: Duration,

    /// The smallest number of contending tasks; there are also runs with 10 and 100 times as many.
    #[arg(long, value_name = "C", value_parser = count(100), default_value = "10")]
    clients: NonZeroUsize,

    /// Where to write the report.
    #[arg(long, value_name = "DIR", allow_hyphen_values = true, default_value = ".")]
    out: PathBuf,
}

const USAGE: &str = "\
contention --workload WORKLOAD [OPTIONS]
       contention report [--seconds S] [--clients C] [--out DIR]";

const AFTER_HELP: &str = "\
Durations are written like 500ms, 10s or 1m30s. docs/benchmarks.md explains the fields of the JSON.

Exit code: 0, or
  64  usage error
  65  the key is in use by something else
  69  a server does not reply, or cannot be started
  74  the report could not be written
  77  a server rejected the login or denied permission";

/// What to say of peers in a build without them.
const HOW_TO_GET_PEERS: &str = "peers (rslock, redis-rs, etcd-client, zookeeper-client, kazoo) are in another build of this tool, since they bring many \
                                dependencies: cargo run --release --manifest-path examples/bench/Cargo.toml --bin contention -- …";

// Larger numbers are taken for typing errors.
const MAX_TASKS: u64 = 100_000;
const MAX_LOCKS: u64 = 1_000_000;
const MAX_SECONDS: f64 = 86_400.0;

/// How to print the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// What the command line requests.
#[derive(Debug)]
pub(super) enum Parsed {
    /// Measure one workload.
    Run(Box<Job>, Format),
    /// Measure all of them.
    Report(report::Wanted),
    /// Print this text and exit with code 0.
    Print(String),
}

/// Parses the command line without the program's name.
pub(super) fn parse(
    args: impl IntoIterator<Item = OsString>,
    default_backends: Option<&OsStr>,
    peers: &dyn Peers,
) -> Result<Parsed, Usage> {
    let command = Options::command().mut_arg("peer", |arg| arg.help(help_of_peer(peers)));
    let options: Options = match parse_as(command, args)? {
        Line::Run(options) => options,
        Line::Print(text) => return Ok(Parsed::Print(text)),
    };
    if let Some(Report::Report(ReportOptions { seconds: span, clients, out })) = options.report {
        return Ok(Parsed::Report(report::Wanted { span, clients, out }));
    }
    let Some(workload) = options.workload else {
        return usage("--workload is missing: uncontended, contended, quorum or held; or `contention report`");
    };
    let job = Job {
        backends: backends_or_default(options.backends, default_backends, DEFAULT_BACKEND)?,
        workload,
        clients: options.clients,
        span: options.seconds,
        hold: options.hold,
        locks: options.locks,
        ttl: options.ttl,
        poll: options.poll,
        wake: options.wake.into(),
        per_connection: options.clients_per_connection,
        turns: options.turns,
        fence: options.fence,
        runtime: options.runtime,
        peer: options.peer,
    };
    let (settings, _) = job.settings().map_err(|failed| Usage(failed.why))?;
    if workload == Workload::Quorum && job.backends.len() < 3 {
        return usage("--workload quorum needs three servers or more: give --backend redis://… several times");
    }
    if job.hold > job.ttl {
        return usage("--hold is longer than --ttl");
    }
    if let Some(peer) = &job.peer {
        check_peer(peer, &job, &settings, peers)?;
    }
    let format = if options.json { Format::Json } else { Format::Table };
    Ok(Parsed::Run(Box::new(job), format))
}

fn check_peer(name: &str, job: &Job, settings: &StoreSettings, peers: &dyn Peers) -> Result<(), Usage> {
    let known = peers.list();
    let Some(peer) = known.iter().find(|peer| peer.name == name) else {
        return match known.is_empty() {
            true => usage(format!("--peer {name}: {HOW_TO_GET_PEERS}")),
            false => usage(format!("--peer: unknown peer {name:?}; there are {}", names_of(peers))),
        };
    };
    if job.workload == Workload::Held {
        return usage("--peer: the workload held is for this library alone: the others renew nothing by themselves");
    }
    if job.runtime != Runtime::Tokio {
        return usage("--peer: the others are measured on tokio");
    }
    if let Some(most) = peer.max_clients.filter(|most| job.clients.get() > *most) {
        return usage(format!("--peer {name}: at most --clients {most}"));
    }
    let is_plain = |server: &Target| !matches!(server, Target::Tls { .. });
    match (peer.store, settings) {
        (Store::Redis { quorum: false }, StoreSettings::Redis(_)) if job.backends.len() > 1 => {
            usage(format!("--peer {name} knows no quorum: give one --backend"))
        }
        (Store::Redis { .. }, StoreSettings::Redis(_)) => Ok(()),
        (Store::Redis { .. }, _) => usage(format!("--peer {name} needs --backend redis://…")),
        (Store::Etcd, StoreSettings::Etcd(config)) if config.endpoints().iter().all(|at| is_plain(&at.target)) => {
            Ok(())
        }
        (Store::Etcd, _) => usage(format!("--peer {name} needs --backend etcd://…, without TLS")),
        (Store::ZooKeeper, StoreSettings::ZooKeeper(config)) if config.servers().iter().all(is_plain) => Ok(()),
        (Store::ZooKeeper, _) => usage(format!("--peer {name} needs --backend zk://…, without TLS")),
    }
}

fn names_of(peers: &dyn Peers) -> String {
    peers.list().iter().map(|peer| peer.name).collect::<Vec<_>>().join(", ")
}

fn help_of_peer(peers: &dyn Peers) -> String {
    let names = names_of(peers);
    let names = if names.is_empty() { "none in this build, see docs/benchmarks.md" } else { &names };
    format!("Measure another library instead of this one: {names}")
}

/// Parses a number of seconds, with or without a fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    match f64::from_str(text) {
        Ok(number) if (0.01..=MAX_SECONDS).contains(&number) => Ok(Duration::from_secs_f64(number)),
        Ok(_) | Err(_) => Err(format!("expected a number from 0.01 to {MAX_SECONDS}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use lock_proto::redis::Wake;

    use super::*;
    use crate::contention::{Failed, Outcome, Peer};

    struct Three;

    impl Peers for Three {
        fn list(&self) -> Vec<Peer> {
            let peer = |name, store| Peer {
                name,
                about: String::new(),
                store,
                max_clients: (name == "watcher").then_some(20),
            };
            vec![
                peer("single", Store::Redis { quorum: false }),
                peer("watcher", Store::Etcd),
                peer("keeper", Store::ZooKeeper),
            ]
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
    fn options_are_parsed() {
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
    fn tasks_share_one_client_by_default() {
        let job = job("--workload contended");
        assert_eq!((job.connections(), job.connection_of(15)), (1, 0));
        assert_eq!(job.backends, ["redis://127.0.0.1:6379"]);
    }

    #[test]
    fn usage_error_names_cause() {
        for (line, word) in [
            ("", "--workload"),
            ("--workload x", "uncontended, contended, quorum, held"),
            ("--workload contended --clients 0", "--clients"),
            ("--workload contended --clients 100001", "100000"),
            ("--workload contended --seconds 0", "--seconds"),
            ("--workload contended --seconds inf", "--seconds"),
            ("--workload contended --hold 5", "--hold"),
            ("--workload contended --hold 11s", "--ttl"),
            ("--workload contended --poll 0", "--poll: poll.every"),
            ("--workload contended --backend etcd://h --ttl 0", "--ttl: session_ttl"),
            ("--workload contended --wake up", "notify, poll"),
            ("--workload contended --turns maybe", "on, off"),
            ("--workload contended --runtime glommio", "tokio, smol, async-std"),
            ("--workload contended --backend mysql://h", "--backend"),
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
    fn peer_rejects_unsupported_jobs() {
        for (line, word) in [
            ("--workload contended --peer other", "single, watcher, keeper"),
            ("--workload held --peer single", "held"),
            ("--workload contended --peer single --runtime smol", "tokio"),
            ("--workload contended --peer single --backend etcd://h", "redis://"),
            ("--workload contended --peer single --backend http://h:2379", "redis://"),
            ("--workload contended --peer watcher", "etcd://"),
            ("--workload contended --peer watcher --backend etcds://h", "without TLS"),
            ("--workload contended --peer watcher --backend https://h:2379", "without TLS"),
            ("--workload contended --peer keeper --backend zks://h", "without TLS"),
            ("--workload contended --peer keeper --backend etcd://h", "zk://"),
            ("--workload contended --peer watcher --backend etcd://h --clients 21", "--clients 20"),
            ("--workload quorum --peer single --backend redis://a --backend redis://b --backend redis://c", "quorum"),
        ] {
            let error = read(line, &Three).unwrap_err().to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
        for line in ["--peer single", "--peer watcher --backend http://h:2379", "--peer keeper --backend zk://h"] {
            let line = format!("--workload contended {line}");
            assert!(matches!(read(&line, &Three), Ok(Parsed::Run(..))), "{line}");
        }
    }
}

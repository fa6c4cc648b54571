//! Command line of `leader`.

use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;

use clap::Parser;
use lock_driver::StoreSettings;

use crate::cli::args::{self, Line, time};
use crate::cli::backend::Backend;
use crate::cli::register::StoreUrl;
use crate::cli::{Usage, usage};

/// Elections on etcd, on ZooKeeper, on a database, or among the processes of this machine.
#[derive(Debug, Parser)]
#[command(name = "leader", version, override_usage = USAGE, after_help = AFTER_HELP)]
struct Options {
    /// etcd://[user:password@]host[:port][,host[:port]...] with the members of the cluster, or
    /// zk://[user:password@]host[:port][,host[:port]...][/chroot][?tick_ms=MS] with those of the
    /// ensemble, or file:///PATH, a folder for the processes of this machine, or sqlite:///PATH, a
    /// file of SQLite for them, or postgres://[user[:password]@]host[:port]/database, a table of
    /// Postgres; in a build of lock-tokio/stores/tools also s3://BUCKET/PREFIX,
    /// gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, kube://NAMESPACE or nats://HOST/BUCKET
    /// [default: $LOCK_BACKEND, else a folder of this user]
    #[arg(long = "backend", value_name = "URL")]
    backends: Vec<String>,

    /// Name of the election, as in `etcdctl elect NAME VALUE` and `etcdctl elect -l NAME`. On
    /// ZooKeeper the path of Curator's LeaderLatch, below the chroot.
    #[arg(long, allow_hyphen_values = true)]
    name: Option<OsString>,

    /// Value that observers see if the candidate is elected.
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    candidate: Option<OsString>,

    /// Observe the election.
    #[arg(long)]
    observe: bool,

    /// TTL of the leadership after its last renewal, on etcd rounded up to whole seconds, on
    /// ZooKeeper at least five ticks, on Kubernetes at least 3s [default: 10s, without --name 2s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    ttl: Option<Duration>,

    /// Creates the table on Postgres, if it is missing and the user may.
    #[arg(long)]
    create_table: bool,
}

const USAGE: &str = "\
leader [--backend URL] [--ttl TIME]
       leader [--backend URL] [--ttl TIME] --name NAME --candidate VALUE
       leader [--backend URL] --name NAME --observe";

const AFTER_HELP: &str = "\
Without --name, runs a small election and checks it. A candidate or an observer runs until SIGINT,
SIGTERM or SIGHUP, unless that was ignored at the start, such as SIGHUP under nohup.

A candidate prints `elected NAME key=... rev=... fence=...`. When interrupted it prints
`resigned NAME`; when it loses the election it prints `lost NAME cause` and campaigns again.
An observer prints `leader NAME key=... rev=... value=...`, `nobody NAME`, and
`disconnected NAME` while the server is unreachable. In both, rev is the revision of etcd, or the
transaction of ZooKeeper, that created the key; on other stores it is the number of the term.

Without --backend the elections are in $XDG_STATE_HOME/lock-proto, else in
~/.local/state/lock-proto, for the processes of this user on this machine.

If a line cannot be written to stdout, or if stdout is a pipe that nobody reads any more, leader says
so on stderr, resigns and ends.

leader does not wait for a reader of stdout or stderr, such as a full pipe or a terminal after
Ctrl-S. It keeps lines in memory, and at the end waits up to a second for each stream. If lines for
stdout do not fit into 4 MiB, it resigns and ends. It drops messages on stderr that do not fit; a
line counts them once stderr is read again.

If no server answers, leader waits up to 4 s for the end of its campaign, and reports on stderr that
the end is unconfirmed.

Warnings of the library are shown on stderr, with the words of the servers. LOCK_LOG=error or off
shows fewer lines, LOCK_LOG=info, debug or trace more.

Exit code: 0, or
  1   the small election did not go as promised
  64  usage error
  65  the name is in use by something else, or the numbers of its queue are used up
  69  the small election: no server replied (a candidate or an observer waits without a limit)
  74  stdout cannot be written, or nobody reads it, or it was not read up to the end
  77  a server refused: the login, a permission, the database, or the TTL (stderr has its words)
  126 the system has no thread or file descriptor left for this program";

const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// Short, so that the successor of a killed leader is elected soon.
const DEMO_TTL: Duration = Duration::from_secs(2);

/// The validated arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Args {
    pub(super) backend: Backend,
    pub(super) ttl: Duration,
    pub(super) role: Role,
    /// What to tell the user first.
    pub(super) notice: Option<String>,
}

/// A role in an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The demonstration, with all roles.
    Demo,
    Candidate {
        name: Vec<u8>,
        value: Vec<u8>,
    },
    Observer {
        name: Vec<u8>,
    },
}

/// What the command line requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// Take part in an election.
    Run(Box<Args>),
    Print(String),
}

/// Parses the command line without the program's name.
pub(super) fn parse(
    args: impl IntoIterator<Item = OsString>,
    default: Option<&OsStr>,
    stores: &'static [StoreUrl],
) -> Result<Parsed, Usage> {
    let Options { backends: given, name, candidate, observe, ttl, create_table } = match args::parse(args)? {
        Line::Run(options) => options,
        Line::Print(text) => return Ok(Parsed::Print(text)),
    };
    if given.len() > 1 {
        return usage("--backend: one URL names all members of the cluster");
    }
    let (name, candidate) = (name.map(OsString::into_vec), candidate.map(OsString::into_vec));
    let role = match (name, candidate, observe) {
        (None, None, false) => Role::Demo,
        (Some(name), Some(value), false) => Role::Candidate { name, value },
        (Some(name), None, true) => Role::Observer { name },
        (None, ..) => return usage("--name is missing: the election to take part in"),
        (Some(_), Some(_), true) => return usage("--candidate and --observe: one at a time"),
        (Some(_), None, false) => return usage("--candidate VALUE or --observe is missing: how to take part"),
    };
    if ttl.is_some() && matches!(role, Role::Observer { .. }) {
        return usage("--ttl is for candidates: an observer has no leadership");
    }
    let (backend, notice) = Backend::choose(given, default, stores, "elections")?;
    if matches!(backend, Backend::Store(StoreSettings::Redis(_))) {
        return usage("Redis has no elections: they need another store, such as etcd://host[:port]... or file:///PATH");
    }
    let default_ttl = if role == Role::Demo { DEMO_TTL } else { DEFAULT_TTL };
    let (backend, ttl, raised) = backend.create_table(create_table)?.with_ttl(ttl, default_ttl)?;
    Ok(Parsed::Run(Box::new(Args { backend, ttl, role, notice: notice.or(raised) })))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn read(line: &[&str], default: Option<&str>) -> Result<Parsed, Usage> {
        parse(line.iter().map(OsString::from), default.map(OsStr::new), &[])
    }

    const MEMBER: &str = "etcd://127.0.0.1:2379";

    fn run(line: &[&str], default: Option<&str>) -> Args {
        match read(line, default) {
            Ok(Parsed::Run(args)) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn roles_are_parsed() {
        assert_eq!(run(&[], Some(MEMBER)).role, Role::Demo);
        let candidate = run(&["--name", "board", "--candidate", "me", "--ttl", "3s"], Some(MEMBER));
        assert_eq!(candidate.role, Role::Candidate { name: b"board".to_vec(), value: b"me".to_vec() });
        let config = lock_proto::etcd::Config::parse(MEMBER).unwrap().session_ttl(Duration::from_secs(3));
        assert_eq!(candidate.backend, Backend::Store(StoreSettings::Etcd(config)));
        let url = "zk://a,b/x?tick_ms=300";
        let config = |ttl| lock_proto::zookeeper::Config::parse(url).unwrap().session_ttl(Duration::from_millis(ttl));
        let zookeeper = |ttl| Backend::Store(StoreSettings::ZooKeeper(config(ttl)));
        assert_eq!(run(&["--backend", url], None).backend, zookeeper(2_000));
        let observer = run(&["--backend", url, "--name", "n", "--observe"], None);
        assert_eq!(observer.backend, zookeeper(10_000));
        assert_eq!(
            run(&["--name", "board", "--observe"], Some(MEMBER)).role,
            Role::Observer { name: b"board".to_vec() }
        );
    }

    #[test]
    fn user_is_told_of_ttl_that_became_longer() {
        let notice = |ttl| run(&["--backend", "zk://a", "--name", "n", "--candidate", "me", "--ttl", ttl], None).notice;
        assert!(notice("4s").unwrap().starts_with("--ttl 4s became 15s: "), "{:?}", notice("4s"));
        assert_eq!(notice("15s"), None);
        assert_eq!(run(&["--backend", "zk://a"], None).notice, None);
    }

    #[test]
    fn backend_option_overrides_environment() {
        let members = |args: Args| args.backend.to_string();
        assert_eq!(members(run(&[], Some(" etcd://a,b:1 "))), "a:2379, b:1");
        assert_eq!(members(run(&["--backend", "etcd://c"], Some("etcd://a"))), "c:2379");
    }

    #[test]
    fn usage_error_names_cause() {
        for (line, part) in [
            (&["--name", "n"][..], "--candidate"),
            (&["--candidate", "v"], "--name"),
            (&["--observe"], "--name"),
            (&["--name", "n", "--observe", "--candidate", "v"], "one at a time"),
            (&["--backend", "redis://a"], "file:///PATH"),
            (&["--backend", "etcd://a", "--backend", "etcd://b"], "one URL"),
            (&["--backend", "etcd://u:hunter2@a:99999"], "--backend"),
            (&["--backend", "etcd://a", "--ttl", "0"], "--ttl: session_ttl"),
            (&["--backend", "kube://a"], "tools with the feature `kubernetes`"),
            (&["--backend", "etcd://a", "--create-table"], "postgres://"),
            (&["--name", "n", "--observe", "--ttl", "5s"], "--ttl"),
            (&["--ttl", "soon"], "soon"),
            (&["board"], "board"),
        ] {
            let Err(Usage(message)) = read(line, None) else { panic!("{line:?} was understood") };
            assert!(message.contains(part) && !message.contains("hunter2"), "{line:?}: {message}");
        }
        for (list, part) in [
            ("redis://a redis://b redis://c", "Redis has no elections"),
            ("etcd://a etcd://b", "LOCK_BACKEND: "),
            ("etcd://a:99999", "LOCK_BACKEND: "),
            ("nats://a/b", "LOCK_BACKEND: "),
        ] {
            let Err(Usage(message)) = read(&[], Some(list)) else { panic!("{list:?} was understood") };
            assert!(message.contains(part) && !message.contains("--backend"), "{list:?}: {message}");
        }
    }
}

//! Command line of `leader`.

use core::time::Duration;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use clap::Parser;
use lock_proto::driver::StoreSettings;
use lock_proto::etcd::Config;

use crate::cli::args::{self, Line, parse_backends, time};
use crate::cli::{Usage, usage, whole_seconds};

/// Elections on etcd.
#[derive(Debug, Parser)]
#[command(name = "leader", version, override_usage = USAGE, after_help = AFTER_HELP)]
struct Options {
    /// etcd://[user:password@]host[:port][,host[:port]...] with the members of the cluster
    /// [default: $LOCK_BACKEND, else etcd://127.0.0.1:2379]
    #[arg(long = "backend", value_name = "URL")]
    backends: Vec<String>,

    /// Name of the election, as in `etcdctl elect NAME VALUE` and `etcdctl elect -l NAME`.
    #[arg(long, allow_hyphen_values = true)]
    name: Option<OsString>,

    /// Value that observers see if the candidate is elected.
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    candidate: Option<OsString>,

    /// Observe the election.
    #[arg(long)]
    observe: bool,

    /// TTL of the leadership after its last renewal, rounded up to whole seconds
    /// [default: 10s, without --name 2s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    ttl: Option<Duration>,
}

const USAGE: &str = "\
leader [--backend URL] [--ttl TIME]
       leader [--backend URL] [--ttl TIME] --name NAME --candidate VALUE
       leader [--backend URL] --name NAME --observe";

const AFTER_HELP: &str = "\
Without --name, runs a small election and checks it. A candidate or an observer runs until
interrupted.

A candidate prints `elected NAME key=... rev=... fence=...`. When interrupted it prints
`resigned NAME`; when it loses the election it prints `lost NAME cause` and campaigns again.
An observer prints `leader NAME key=... rev=... value=...`, `nobody NAME`, and
`disconnected NAME` while the server is unreachable.

Exit code: 0, or
  1   the small election did not go as promised
  64  usage error
  65  the name is in use by something else
  69  no server replied
  77  a server rejected the login or denied permission";

const DEFAULT_BACKEND: &str = "etcd://127.0.0.1:2379";
/// Short, so that the successor of a killed leader is elected soon.
const DEMO_TTL: Duration = Duration::from_secs(2);

/// The validated arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Args {
    pub(super) config: Config,
    pub(super) role: Role,
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
pub(super) fn parse(args: impl IntoIterator<Item = OsString>, default_backend: Option<&str>) -> Result<Parsed, Usage> {
    let Options { backends, name, candidate, observe, ttl } = match args::parse(args)? {
        Line::Run(options) => options,
        Line::Print(text) => return Ok(Parsed::Print(text)),
    };
    if backends.len() > 1 {
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
    let default = default_backend.map(str::trim).filter(|url| !url.is_empty()).unwrap_or(DEFAULT_BACKEND);
    let url = backends.first().map_or(default, String::as_str);
    let StoreSettings::Etcd(mut config) = parse_backends(&[url.to_owned()])? else {
        return usage("--backend: elections need etcd: etcd://host[:port][,host[:port]...]");
    };
    if let Some(ttl) = ttl.or_else(|| (role == Role::Demo).then_some(DEMO_TTL)) {
        config = config.session_ttl(whole_seconds(ttl));
    }
    config.check().map_err(|error| Usage(error.to_string()))?;
    Ok(Parsed::Run(Box::new(Args { config, role })))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn read(line: &[&str], default: Option<&str>) -> Result<Parsed, Usage> {
        parse(line.iter().map(OsString::from), default)
    }

    fn run(line: &[&str], default: Option<&str>) -> Args {
        match read(line, default) {
            Ok(Parsed::Run(args)) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn roles_are_parsed() {
        assert_eq!(run(&[], None).role, Role::Demo);
        let candidate = run(&["--name", "board", "--candidate", "me", "--ttl", "3s"], None);
        assert_eq!(candidate.role, Role::Candidate { name: b"board".to_vec(), value: b"me".to_vec() });
        assert_eq!(candidate.config, Config::parse(DEFAULT_BACKEND).unwrap().session_ttl(Duration::from_secs(3)));
        assert_eq!(run(&["--name", "board", "--observe"], None).role, Role::Observer { name: b"board".to_vec() });
    }

    #[test]
    fn backend_option_overrides_environment() {
        let members = |args: Args| args.config.endpoints().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(members(run(&[], Some(" etcd://a,b:1 "))), ["a:2379", "b:1"]);
        assert_eq!(members(run(&["--backend", "etcd://c"], Some("etcd://a"))), ["c:2379"]);
    }

    #[test]
    fn usage_error_names_cause() {
        for (line, part) in [
            (&["--name", "n"][..], "--candidate"),
            (&["--candidate", "v"], "--name"),
            (&["--observe"], "--name"),
            (&["--name", "n", "--observe", "--candidate", "v"], "one at a time"),
            (&["--backend", "redis://a"], "etcd://"),
            (&["--backend", "etcd://a", "--backend", "etcd://b"], "one URL"),
            (&["--backend", "etcd://u:hunter2@a:99999"], "--backend"),
            (&["--ttl", "0"], "session_ttl"),
            (&["--ttl", "soon"], "soon"),
            (&["board"], "board"),
        ] {
            let Err(Usage(message)) = read(line, None) else { panic!("{line:?} was understood") };
            assert!(message.contains(part) && !message.contains("hunter2"), "{line:?}: {message}");
        }
    }
}

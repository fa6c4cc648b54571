//! The command line.

use core::time::Duration;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use lexopt::Arg::{Long, Short, Value};
use lock_proto::etcd::Config;

use crate::cli::{Usage, text, time, usage, whole_seconds};

const HELP: &str = "\
Elections on etcd.

usage: leader [--backend URL] [--ttl TIME]                                  plays a small election, and checks it
       leader [--backend URL] [--ttl TIME] --name NAME --candidate VALUE    stands until it is interrupted
       leader [--backend URL] --name NAME --observe                         observes until it is interrupted

  --backend URL      etcd://[user:password@]host[:port][,host[:port]...]
                     Default: $LOCK_BACKEND, else etcd://127.0.0.1:2379
  --name NAME        the election, as in `etcdctl elect NAME VALUE` and `etcdctl elect -l NAME`
  --candidate VALUE  what observers see if it is elected
  --ttl TIME         how long the office outlives the last sign of life: whole seconds, rounded up [10s; 2s for the play]

A candidate prints `elected NAME key=... rev=... fence=...`, then `resigned NAME` when it is interrupted, or `lost NAME cause`
and stands again. An observer prints `leader NAME key=... rev=... value=...`, `nobody NAME`, and `disconnected NAME` while
the server is not heard.

exit code: 0, or 64 usage   65 the name is in use by something else   69 no server answered   77 refused by the server
           1 the play did not go as promised
";

const DEFAULT_BACKEND: &str = "etcd://127.0.0.1:2379";
/// So short that nobody has to wait long for the successor of a leader that was killed.
const TTL_OF_PLAY: Duration = Duration::from_secs(2);

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Args {
    /// The cluster.
    pub(super) config: Config,
    /// As what.
    pub(super) role: Role,
}

/// The part to play.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// All parts.
    Play,
    /// A candidate.
    Candidate { name: Vec<u8>, value: Vec<u8> },
    /// An observer.
    Observer { name: Vec<u8> },
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// Take part.
    Run(Box<Args>),
    /// Print this and end well.
    Print(String),
}

/// Reads the command line (without the program's name).
pub(super) fn parse(args: impl IntoIterator<Item = OsString>, default_backend: Option<&str>) -> Result<Parsed, Usage> {
    let mut parser = lexopt::Parser::from_args(args);
    let (mut backend, mut name, mut candidate, mut ttl, mut observe) = (None, None, None, None, false);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("backend") if backend.is_some() => {
                return usage("--backend: one URL names all members of the cluster");
            }
            Long("backend") => backend = Some(text(&mut parser)?),
            Long("name") => name = Some(parser.value()?.into_vec()),
            Long("candidate") => candidate = Some(parser.value()?.into_vec()),
            Long("observe") => observe = true,
            Long("ttl") => ttl = Some(time("--ttl", &text(&mut parser)?)?),
            Long("help") | Short('h') => return Ok(Parsed::Print(HELP.to_owned())),
            Long("version") | Short('V') => {
                return Ok(Parsed::Print(format!("leader {}\n", env!("CARGO_PKG_VERSION"))));
            }
            Long(_) | Short(_) | Value(_) => return Err(arg.unexpected().into()),
        }
    }
    let role = match (name, candidate, observe) {
        (None, None, false) => Role::Play,
        (Some(name), Some(value), false) => Role::Candidate { name, value },
        (Some(name), None, true) => Role::Observer { name },
        (None, ..) => return usage("--name is missing: the election to take part in"),
        (Some(_), Some(_), true) => return usage("--candidate and --observe: one at a time"),
        (Some(_), None, false) => return usage("--candidate VALUE or --observe is missing: how to take part"),
    };
    let default = default_backend.map(str::trim).filter(|url| !url.is_empty()).unwrap_or(DEFAULT_BACKEND);
    let mut config =
        Config::parse(backend.as_deref().unwrap_or(default)).map_err(|error| Usage(format!("--backend: {error}")))?;
    if let Some(ttl) = ttl.or_else(|| (role == Role::Play).then_some(TTL_OF_PLAY)) {
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
    fn the_parts_to_play() {
        assert_eq!(run(&[], None).role, Role::Play);
        let candidate = run(&["--name", "board", "--candidate", "me", "--ttl", "3s"], None);
        assert_eq!(candidate.role, Role::Candidate { name: b"board".to_vec(), value: b"me".to_vec() });
        assert_eq!(candidate.config, Config::parse(DEFAULT_BACKEND).unwrap().session_ttl(Duration::from_secs(3)));
        assert_eq!(run(&["--name", "board", "--observe"], None).role, Role::Observer { name: b"board".to_vec() });
    }

    #[test]
    fn the_environment_names_the_backend_unless_the_line_does() {
        let members = |args: Args| args.config.endpoints().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(members(run(&[], Some(" etcd://a,b:1 "))), ["a:2379", "b:1"]);
        assert_eq!(members(run(&["--backend", "etcd://c"], Some("etcd://a"))), ["c:2379"]);
    }

    #[test]
    fn a_bad_line_says_what_is_wrong() {
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

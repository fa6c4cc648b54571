//! The command line.

use core::time::Duration;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use lexopt::Arg::{Long, Short, Value};
use lock_proto::driver::Settings;
use lock_proto::etcd;
use lock_proto::redis::{self, Backoff, DEFAULT_TTL, Endpoint, Wait, Wake};

use crate::cli::runtime::Runtime;
use crate::cli::{Usage, choice, text, time, usage, whole_seconds};

/// What `--help` prints.
pub const HELP: &str = "\
Runs a command while holding a distributed lock, as flock(1) does on one machine.

usage: with-lock [OPTIONS] NAME [-- COMMAND ARGS...]

Without COMMAND it holds the lock until it is interrupted.

  --backend URL      redis://[user:password@]host[:port][/database]; once for one server, three or any larger odd number
                     of times for a quorum. Or once etcd://[user:password@]host[:port][,host[:port]...], the members of
                     a cluster. Default: $LOCK_BACKEND (separated by blanks), else redis://127.0.0.1:6379
  --ttl TIME         how long the lock outlives the last sign of life; etcd: in whole seconds, rounded up [10s]
  --wait TIME        how long to wait for it: forever, 0 for one try, or a time [forever]
  --poll TIME        how often to try while waiting; not used with etcd, which tells the next in the queue [50ms]
  --wake HOW         notify: a release wakes one waiter; poll: polling alone; not used with etcd [notify]
  --runtime NAME     tokio, smol, async-std or blocking (not with etcd) [tokio]
  --grace TIME       time for the command to end itself before it is killed, at most half the TTL [ttl/3]
  --quarantine TIME  quorum: how long a restarted server does not count; the longest TTL in use [10s, at least --ttl]

The command finds LOCK_NAME, LOCK_TOKEN and LOCK_FENCE (not with a quorum) in its environment, and with etcd the key of
the lock and the revision that it is held since as ETCD_LOCK_KEY and ETCD_LOCK_REV, as etcdctl lock gives them.
A TIME is written like 500ms, 10s or 1m30s.

exit code: that of the command (128+n if a signal ended it), or
  64 usage   65 the key is in use by something else   69 too few servers answered   75 somebody else has the lock
  76 the lock was lost before the command's end, or was about to be and the command was asked to end (whatever its own code)
  77 refused by the server   126, 127 the command cannot be run, is not found
";

/// Which code drives the machine, and with which settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driven {
    /// A task on an async runtime.
    ByTask(Runtime, Settings),
    /// Threads and `std::net`, see [`crate::blocking`]: Redis alone, since HTTP/2 belongs to the host.
    ByThreads(redis::Config),
}

/// A program and its arguments.
pub type CommandLine = (OsString, Vec<OsString>);

/// What to do.
#[derive(Clone, Debug)]
pub struct Args {
    /// The lock.
    pub name: Vec<u8>,
    /// How long it outlives the last sign of life.
    pub ttl: Duration,
    /// How long to wait for it.
    pub wait: Wait,
    /// What drives it, and where it is.
    pub driven: Driven,
    /// Time between the request to end and the kill.
    pub grace: Duration,
    /// The command; `None` to hold until interrupted.
    pub command: Option<CommandLine>,
}

/// What the command line asks for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Parsed {
    /// Take the lock.
    Run(Box<Args>),
    /// Print this and end well.
    Print(String),
    /// Internal: become this command, bound to the life of the process `parent` (see [`super::child`]).
    Become {
        /// The process that holds the lock.
        parent: i32,
        /// The command.
        command: CommandLine,
    },
}

/// Reads the command line (without the program's name); `default_backends` is the value of `LOCK_BACKEND`.
///
/// # Errors
///
/// [`Usage`] names the first value that cannot be used, and what is allowed.
pub fn parse(args: impl IntoIterator<Item = OsString>, default_backends: Option<&str>) -> Result<Parsed, Usage> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut backends: Vec<String> = Vec::new();
    let mut name: Option<Vec<u8>> = None;
    let mut command: Option<CommandLine> = None;
    let (mut ttl, mut wait, mut poll) = (DEFAULT_TTL, Wait::Forever, Duration::from_millis(50));
    let (mut wake, mut runtime) = (Wake::Notify, Some(Runtime::Tokio));
    let (mut grace, mut quarantine) = (None, None);
    loop {
        // Whatever follows `--` is the command, also what looks like an option.
        if let Some(mut raw) = parser.try_raw_args()
            && raw.peek().is_some_and(|next| next == "--")
        {
            raw.next();
            let Some(program) = raw.next() else { return usage("no command after --") };
            command = Some((program, raw.collect()));
            break;
        }
        let Some(arg) = parser.next()? else { break };
        match arg {
            Long("backend") => backends.push(text(&mut parser)?),
            Long("ttl") => ttl = time("--ttl", &text(&mut parser)?)?,
            Long("wait") => {
                wait = match text(&mut parser)?.as_str() {
                    "forever" => Wait::Forever,
                    other => match time("--wait", other) {
                        Ok(Duration::ZERO) => Wait::Try,
                        Ok(limit) => Wait::For(limit),
                        Err(Usage(message)) => return usage(format!("{message}, or forever")),
                    },
                }
            }
            Long("poll") => poll = time("--poll", &text(&mut parser)?)?,
            Long("wake") => {
                wake = choice("--wake", &text(&mut parser)?, &[("notify", Wake::Notify), ("poll", Wake::Poll)])?
            }
            Long("runtime") => runtime = choice("--runtime", &text(&mut parser)?, &RUNTIMES)?,
            Long("grace") => grace = Some(text(&mut parser)?),
            Long("quarantine") => quarantine = Some(time("--quarantine", &text(&mut parser)?)?),
            Long("help") | Short('h') => return Ok(Parsed::Print(HELP.to_owned())),
            Long("version") | Short('V') => {
                return Ok(Parsed::Print(format!("with-lock {}\n", env!("CARGO_PKG_VERSION"))));
            }
            Long(super::child::BECOME) => {
                let parent = text(&mut parser)?.parse().map_err(|_| Usage("an internal option".into()))?;
                let mut rest = parser.raw_args()?;
                let Some(program) = rest.next() else { return usage("an internal option") };
                return Ok(Parsed::Become { parent, command: (program, rest.collect()) });
            }
            Value(value) if name.is_none() => name = Some(value.into_vec()),
            Value(value) => {
                return usage(format!("{value:?} is one argument too many: the command comes after `--`"));
            }
            Long(_) | Short(_) => return Err(arg.unexpected().into()),
        }
    }
    let Some(name) = name else { return usage("the name of the lock is missing") };
    if backends.is_empty() {
        let default = default_backends.filter(|list| !list.trim().is_empty()).unwrap_or("redis://127.0.0.1:6379");
        backends.extend(default.split_whitespace().map(str::to_owned));
    }
    let is_etcd = is_etcd(&backends)?;
    if is_etcd {
        ttl = whole_seconds(ttl);
    }
    let grace = match grace {
        Some(text) => read_grace(&text, ttl)?,
        None => ttl / 3,
    };
    let driven = match (is_etcd, runtime) {
        (true, None) => {
            return usage(
                "--runtime: blocking is for redis:// alone: etcd speaks HTTP/2, which this program has only on \
                 tokio, smol and async-std: use one of these",
            );
        }
        (true, Some(runtime)) => Driven::ByTask(runtime, etcd_settings(&backends, ttl)?.into()),
        (false, runtime) => {
            let quarantine = quarantine.unwrap_or_else(|| ttl.clamp(DEFAULT_TTL, redis::MAX_TTL));
            let config = redis_settings(&backends)?.poll(Backoff::fixed(poll)).wake(wake).quarantine(quarantine);
            config.check().map_err(|error| Usage(error.to_string()))?;
            match runtime {
                Some(runtime) => Driven::ByTask(runtime, config.into()),
                None => Driven::ByThreads(config),
            }
        }
    };
    Ok(Parsed::Run(Box::new(Args { name, ttl, wait, driven, grace, command })))
}

/// `None` for threads.
const RUNTIMES: [(&str, Option<Runtime>); 4] = {
    let [(tokio, a), (smol, b), (async_std, c)] = Runtime::ALL;
    [(tokio, Some(a)), (smol, Some(b)), (async_std, Some(c)), ("blocking", None)]
};

/// The grace: a time, or a fraction of the TTL. More than half of the TTL would end the command before the first renewal is
/// due.
fn read_grace(value: &str, ttl: Duration) -> Result<Duration, Usage> {
    let grace = match value.strip_prefix("ttl/").map(str::parse::<u32>) {
        Some(Ok(divisor)) if divisor > 0 => ttl / divisor,
        Some(_) => return usage(format!("--grace: {value:?} is no fraction of the TTL: write it like ttl/3")),
        None => time("--grace", value)?,
    };
    if grace > ttl / 2 {
        return usage(format!("--grace must be between 0s and half the TTL ({:?}), it is {grace:?}", ttl / 2));
    }
    Ok(grace)
}

/// Whether the lock is one of etcd: then there is one URL.
fn is_etcd(backends: &[String]) -> Result<bool, Usage> {
    let is_etcd = |url: &&String| {
        url.split_once("://")
            .is_some_and(|(scheme, _)| ["etcd", "etcds"].iter().any(|s| s.eq_ignore_ascii_case(scheme)))
    };
    match backends.iter().filter(is_etcd).count() {
        0 => Ok(false),
        n if n < backends.len() => usage("--backend: redis:// and etcd:// cannot be mixed"),
        1 => Ok(true),
        _ => usage("--backend: etcd:// may be given once, with its members separated by commas"),
    }
}

// What is wrong with a URL is told without its password.

fn redis_settings(backends: &[String]) -> Result<redis::Config, Usage> {
    let parse = |url: &String| Endpoint::parse(url).map_err(|error| Usage(format!("--backend: {error}")));
    Ok(redis::Config::new(backends.iter().map(parse).collect::<Result<Vec<_>, _>>()?))
}

/// The lock's TTL is the session's: its one lease is all that is left behind by a process that is killed.
fn etcd_settings(backends: &[String], ttl: Duration) -> Result<etcd::Config, Usage> {
    let url = backends.first().map_or("", String::as_str);
    let config = etcd::Config::parse(url).map_err(|error| Usage(format!("--backend: {error}")))?.session_ttl(ttl);
    config.check().map_err(|error| Usage(error.to_string()))?;
    Ok(config)
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;

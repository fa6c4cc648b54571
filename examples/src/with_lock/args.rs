//! Command line of `with-lock`.

use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;

use clap::{Parser, ValueEnum};
use lock_driver::StoreSettings;
use lock_proto::redis::Wake;
use lock_proto::{Backoff, DEFAULT_TTL, Wait};

use super::child::{self, Parent};
use crate::cli::args::{self, Line, WakeMode, invalid_option, time};
use crate::cli::backend::Backend;
use crate::cli::register::{POLL, StoreUrl};
use crate::cli::runtime::Runtime;
use crate::cli::{Usage, usage};

/// Runs a command while holding a distributed lock, as flock(1) does on one machine.
#[derive(Debug, Parser)]
#[command(name = "with-lock", version, after_help = AFTER_HELP)]
struct Options {
    /// Name of the lock. It cannot begin with a dash: what begins with one is an option, and what
    /// follows -- is the command.
    name: OsString,

    /// Command to run while holding the lock, and its arguments; without it, holds the lock until
    /// interrupted.
    #[arg(last = true)]
    command: Vec<OsString>,

    /// redis://[user:password@]host[:port][/database]: once for a single server, three or a larger
    /// odd number of times for a quorum. Or once
    /// etcd://[user:password@]host[:port][,host[:port]...] with the members of a cluster, or
    /// zk://[user:password@]host[:port][,host[:port]...][/chroot], with ?tick_ms=MS if tickTime of
    /// the servers is more than 3 s. With TLS rediss://, etcds:// and zks://, and the parameters
    /// ?ca=FILE&cert=FILE&key=FILE. A password may also be in a file, ?password_file=FILE, or in
    /// $LOCK_PASSWORD, which the command inherits, with ?user=NAME for the user. Or once
    /// file:///PATH, a folder for the processes of this machine, or sqlite:///PATH, a file of
    /// SQLite for them, or postgres://[user[:password]@]host[:port]/database, a table of Postgres;
    /// in a build of lock-tokio/stores/tools also s3://BUCKET/PREFIX, gs://BUCKET/PREFIX,
    /// az://CONTAINER/PREFIX, kube://NAMESPACE or nats://HOST/BUCKET [default: $LOCK_BACKEND
    /// (separated by spaces), else a folder of this user]
    #[arg(long = "backend", value_name = "URL")]
    backends: Vec<String>,

    /// TTL of the lock after its last renewal; etcd rounds it up to whole seconds, on ZooKeeper it
    /// is at least five ticks, and on Kubernetes 3s [default: 10s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    ttl: Option<Duration>,

    /// How long to wait for the lock: forever, 0 for a single attempt, or a duration.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = read_wait, default_value = "forever")]
    wait: Wait,

    /// Creates the table on Postgres, if it is missing and the user may.
    #[arg(long)]
    create_table: bool,

    /// Polling interval while waiting, but on etcd and ZooKeeper, which notify the next waiter
    /// [default: 50ms; object stores, Kubernetes and NATS: 1s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    poll: Option<Duration>,

    /// notify: wake one waiter on release; poll: rely on polling only; for Redis.
    #[arg(long, value_name = "MODE", hide_possible_values = true, default_value = "notify")]
    wake: WakeMode,

    /// tokio, smol, async-std or blocking (threads without async); Redis, etcd, ZooKeeper and a
    /// folder work on all, other stores on tokio.
    #[arg(long, value_name = "NAME", hide_possible_values = true, default_value = "tokio")]
    runtime: RuntimeName,

    /// Time between SIGTERM and SIGKILL for the command when the lock is lost; at most half the
    /// TTL, and half of the time that the lock is valid.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = read_grace, default_value = "ttl/3")]
    grace: Grace,

    /// Quorum: how long a restarted server does not count; the longest TTL in use
    /// [default: 10s, at least --ttl]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    quarantine: Option<Duration>,
}

const AFTER_HELP: &str = "\
Durations are written like 500ms, 10s or 1m30s.

Environment of the command:
  LOCK_NAME, LOCK_TOKEN          the lock and the token of this hold
  LOCK_FENCE                     the fencing token (not with a quorum)
  ETCD_LOCK_KEY, ETCD_LOCK_REV   etcd: the key of the lock and its revision, as in etcdctl lock

Without --backend the locks are in $XDG_STATE_HOME/lock-proto, else in ~/.local/state/lock-proto, for
the processes of this user on this machine. If a process is killed, others get its lock at once.

Without a command, prints `held NAME fence=N ttl=MS` (fence=- without a token) and holds the lock
until a signal. If it is lost, prints `lost NAME CAUSE` and exits with 76. CAUSE is
expired, gone, taken, or equal-nodes (a quorum).

Signals: HUP, INT, QUIT, TERM, USR1, USR2, ALRM and WINCH are forwarded to the command, and all but
WINCH end the wait for the lock. INT, QUIT and WINCH are not forwarded in the foreground of a
terminal, whose Ctrl-C reaches the command anyway. A signal that somebody sends to the whole process
group, or a service manager to all processes of a service, reaches the command twice: send it to
with-lock alone, in systemd by KillMode=mixed. A signal that was ignored at the start stays ignored,
such as HUP under nohup, or (on Linux) PIPE under systemd. As the first process of a container,
with-lock reaps the children that others leave behind (Linux). The command is signalled, but not its descendants: let a shell
script exec its long work. A command that changes its user cannot be signalled, and so not ended:
use `sudo with-lock ...`, not `with-lock ... -- sudo ...`.

Without a command stdout is the only interface: if a line cannot be written, or if stdout is a pipe
that nobody reads any more, with-lock says so on stderr and releases the lock. With one, it prints
nothing on stdout.

with-lock does not wait for a reader of stdout or stderr, such as a full pipe or a terminal after
Ctrl-S. It keeps lines in memory, and at the end waits up to a second for each stream. It drops
messages on stderr that do not fit into 4 MiB; a line counts them once stderr is read again.

Warnings of the library are shown on stderr, with the words of the servers. LOCK_LOG=error or off
shows fewer lines, LOCK_LOG=info, debug or trace more.

If no server answers, with-lock waits up to 4 s for the release before it exits, and reports on
stderr that the release is unconfirmed. A second signal, more than a second after the first and
after the end of the command, ends the wait for the release.

Exit code: that of the command (128+n if signal n ended it, or ended the wait for the lock), or
  0         without a command: released after a signal
  64        usage error
  65        the name cannot be used: its key is in use by something else, or the numbers of its
            queue are used up
  69        too few servers replied
  74        without a command: stdout cannot be written, or nobody reads it, or it was not read up to
            the end; with --help, it cannot be written
  75        another client holds the lock
  76        the lock was lost before the command ended, or the command was terminated because the
            lock was about to expire (whatever its own exit code)
  77        a server refused: the login, a permission, the database, or the TTL (stderr has its
            words)
  126       the command could not be run; or the system has no thread, process or file descriptor
            left for with-lock, which then holds no lock
  127       the command was not found";

/// The value of `--runtime`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum RuntimeName {
    Tokio,
    Smol,
    AsyncStd,
    Blocking,
}

impl RuntimeName {
    /// The async runtime; `None` for threads.
    const fn of_tasks(self) -> Option<Runtime> {
        match self {
            Self::Tokio => Some(Runtime::Tokio),
            Self::Smol => Some(Runtime::Smol),
            Self::AsyncStd => Some(Runtime::AsyncStd),
            Self::Blocking => None,
        }
    }
}

/// The value of `--grace`.
#[derive(Clone, Copy, Debug)]
enum Grace {
    Time(Duration),
    /// The TTL divided by this.
    Fraction(u32),
}

/// A program and its arguments.
pub type CommandLine = (OsString, Vec<OsString>);

/// The validated arguments.
#[derive(Clone, Debug)]
pub struct Args {
    /// Name of the lock.
    pub name: Vec<u8>,
    /// TTL of the lock.
    pub ttl: Duration,
    /// How long to wait for the lock.
    pub wait: Wait,
    /// Where the lock is.
    pub backend: Backend,
    /// The async runtime; `None` for threads.
    pub runtime: Option<Runtime>,
    /// Time between SIGTERM and SIGKILL for the command.
    pub grace: Duration,
    /// The command; `None` to hold the lock until interrupted.
    pub command: Option<CommandLine>,
    /// What to tell the user first.
    pub notice: Option<String>,
}

/// What the command line requests.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Parsed {
    /// Take the lock.
    Run(Box<Args>),
    /// Print this text and exit with code 0.
    Print(String),
    /// Internal: exec this command, bound to the life of the process `parent` (see
    /// [`super::child`]).
    Become {
        /// What the parent says about itself.
        parent: Parent,
        /// The command.
        command: CommandLine,
    },
}

/// Parses the command line without the program's name; `default_backends` is the value of
/// `LOCK_BACKEND`, `stores` are more than those of this package.
///
/// # Errors
///
/// [`Usage`] names the first invalid value and what is allowed.
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
    default_backends: Option<&OsStr>,
    stores: &'static [StoreUrl],
) -> Result<Parsed, Usage> {
    let args: Vec<OsString> = args.into_iter().collect();
    if let Some((parent, command)) = child::requested(&args) {
        return Ok(Parsed::Become { parent, command });
    }
    let ends_with_dashes = args.last().is_some_and(|last| last == "--");
    let options: Options = match args::parse(args)? {
        Line::Run(options) => options,
        Line::Print(text) => return Ok(Parsed::Print(text)),
    };
    let mut words = options.command.into_iter();
    let command = words.next().map(|program| (program, words.collect()));
    if command.is_none() && ends_with_dashes {
        return usage("no command after --");
    }
    let (backend, notice) = Backend::choose(options.backends, default_backends, stores, "locks")?;
    let backend = backend.create_table(options.create_table)?;
    let (backend, ttl, raised) = backend.with_ttl(options.ttl, DEFAULT_TTL)?;
    let quarantine = options.quarantine.unwrap_or_else(|| ttl.clamp(DEFAULT_TTL, lock_proto::MAX_TTL));
    let backend = with_options(backend, options.poll.map(Backoff::fixed), options.wake.into(), quarantine)?;
    let notice = notice.or(raised);
    let grace = match options.grace {
        Grace::Time(time) => time,
        Grace::Fraction(divisor) => ttl / divisor,
    };
    // A longer grace would end the command before the first renewal is due.
    if grace > ttl / 2 {
        return usage(format!("--grace must be between 0s and half the TTL ({:?}), it is {grace:?}", ttl / 2));
    }
    let (name, runtime) = (options.name.into_vec(), options.runtime.of_tasks());
    Ok(Parsed::Run(Box::new(Args { name, ttl, wait: options.wait, backend, runtime, grace, command, notice })))
}

/// Without `poll`, each store has an interval of its own.
fn with_options(backend: Backend, poll: Option<Backoff>, wake: Wake, quarantine: Duration) -> Result<Backend, Usage> {
    Ok(match backend {
        Backend::Store(StoreSettings::Redis(config)) => {
            let config = config.poll(poll.unwrap_or(POLL)).wake(wake).quarantine(quarantine);
            config.check().map_err(invalid_option)?;
            Backend::Store(StoreSettings::Redis(config))
        }
        Backend::Store(StoreSettings::File(mut file)) => {
            file.config = file.config.poll(poll.unwrap_or(POLL));
            file.config.check().map_err(invalid_option)?;
            Backend::Store(StoreSettings::File(file))
        }
        Backend::Register(register) => {
            let register = if let Some(poll) = poll { register.poll(poll) } else { register };
            register.settings().check().map_err(invalid_option)?;
            Backend::Register(register)
        }
        other @ Backend::Store(StoreSettings::Etcd(_) | StoreSettings::ZooKeeper(_) | _) => other,
    })
}

fn read_wait(text: &str) -> Result<Wait, String> {
    match (text, time(text)) {
        ("forever", _) => Ok(Wait::Forever),
        (_, Ok(Duration::ZERO)) => Ok(Wait::Try),
        (_, Ok(limit)) => Ok(Wait::For(limit)),
        (_, Err(message)) => Err(format!("{message}, or forever")),
    }
}

fn read_grace(text: &str) -> Result<Grace, String> {
    match text.strip_prefix("ttl/").map(str::parse::<u32>) {
        Some(Ok(divisor)) if divisor > 0 => Ok(Grace::Fraction(divisor)),
        Some(_) => Err("expected a fraction of the TTL such as ttl/3".to_owned()),
        None => time(text).map(Grace::Time),
    }
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;

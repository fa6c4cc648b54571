//! The child process that runs the command. On Linux it is killed if this process is, unless it
//! changes its user, as `sudo` does.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::SIGCHLD;

use super::args::CommandLine;
use super::event::MainEvent;
use crate::cli::exit;
use crate::cli::signals::sigpipe_was_ignored;
use crate::cli::stdio::print_error;

/// Internal option by which this program starts itself, binds itself to the life of its parent and
/// then becomes the command: `--become-command-of=PARENT PROGRAM ARGS...`. PARENT is its PID, after
/// [`NO_SIGPIPE`] if SIGPIPE is to be ignored.
const BECOME_OPTION: &str = "--become-command-of=";
const NO_SIGPIPE: &str = "no-sigpipe-";
const THIS_PROGRAM: &str = "/proc/self/exe";

/// What a process says to its child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The process that holds the lock.
    pid: i32,
    /// It was started with SIGPIPE ignored, and so is the command.
    ignores_sigpipe: bool,
}

/// Returns the parent and the command if `args` are those of [`become_command`].
pub(super) fn requested(args: &[OsString]) -> Option<(Parent, CommandLine)> {
    let (first, rest) = args.split_first()?;
    let first = first.to_str()?.strip_prefix(BECOME_OPTION)?;
    let pid = first.strip_prefix(NO_SIGPIPE);
    let parent = Parent { pid: pid.unwrap_or(first).parse().ok()?, ignores_sigpipe: pid.is_some() };
    let (program, args) = rest.split_first()?;
    Some((parent, (program.clone(), args.to_vec())))
}

/// A thread that waits for the end of the command. It exists before the command: without it, the
/// command could not be supervised.
#[derive(Debug)]
pub struct Waiter(Sender<Pid>);

impl Waiter {
    /// Starts the thread, which reports the end as [`MainEvent::CommandEnded`].
    ///
    /// # Errors
    ///
    /// The system has no thread.
    pub fn start(events: Sender<MainEvent>) -> io::Result<Self> {
        let (sender, started) = channel();
        let wait = move || {
            // Closed if no command is started.
            let Ok(pid) = started.recv() else { return };
            wait_for_end(pid);
            let _ = events.send(MainEvent::CommandEnded);
        };
        thread::Builder::new().name("waiter".into()).spawn(wait)?;
        Ok(Self(sender))
    }
}

/// Leaves the zombie of the command until `wait`, so that its PID is not reused while signals may be
/// sent to it. Reaps all other children: as the first process of a container, this process is the
/// parent of every orphan.
#[cfg(target_os = "linux")]
fn wait_for_end(command: Pid) {
    use nix::errno::Errno;
    use nix::sys::wait::{Id, WaitPidFlag, waitid};

    loop {
        match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).map(|status| status.pid()) {
            Ok(Some(child)) if child.as_raw() == command.as_raw_pid() => return,
            Ok(Some(child)) => drop(waitid(Id::Pid(child), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG)),
            Ok(None) | Err(Errno::EINTR) => {}
            // No child is left.
            Err(_) => return,
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn wait_for_end(pid: Pid) {
    use rustix::process::{WaitId, WaitIdOptions, waitid};

    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while waitid(WaitId::Pid(pid), ended).is_err_and(|error| error == Errno::INTR) {}
}

/// A running command.
#[derive(Debug)]
pub struct Running {
    child: Child,
    pid: Pid,
}

impl Running {
    /// Starts the command with `env` added to its environment; `None` removes a variable. `waiter`
    /// reports its end.
    ///
    /// Must be called on the main thread: Linux sends the parent death signal when the *thread*
    /// that forked ends.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot be started.
    pub fn start(command: &CommandLine, env: &[(&str, Option<Vec<u8>>)], waiter: &Waiter) -> io::Result<Self> {
        use std::os::unix::ffi::OsStringExt as _;

        let mut prepared = prepare(command);
        for (name, value) in env {
            match value {
                Some(value) => prepared.env(name, OsString::from_vec(value.clone())),
                None => prepared.env_remove(name),
            };
        }
        // A SIGCHLD that is ignored, as the parent may have left it, would hide the exit code.
        signal_hook::flag::register(SIGCHLD, Arc::default())?;
        let child = prepared.spawn().map_err(not_spawned)?;
        let pid = Pid::from_child(&child);
        // The thread waits for it.
        let _ = waiter.0.send(pid);
        Ok(Self { child, pid })
    }

    /// Sends a signal. A process that has ended needs none; `CommandEnded` reports its end.
    ///
    /// # Errors
    ///
    /// Fails if the process runs as another user.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        sent(kill_process(self.pid, signal))
    }

    /// Waits for its end and returns the exit code.
    ///
    /// # Errors
    ///
    /// Fails as `wait` does.
    pub fn wait(mut self) -> io::Result<u8> {
        self.child.wait().map(code)
    }
}

fn sent(result: Result<(), Errno>) -> io::Result<()> {
    match result {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// On Linux the program that was not started is this one, not the command.
fn not_spawned(error: io::Error) -> io::Error {
    if cfg!(target_os = "linux") { io::Error::other(format!("{THIS_PROGRAM}: {error}")) } else { error }
}

/// Returns the exit code of a command as a shell does.
fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code.to_le_bytes()[0],
        (None, Some(signal)) => exit::by_signal(signal),
        (None, None) => u8::MAX,
    }
}

/// Returns the exit code and the message for a command that could not be executed.
#[must_use]
pub fn spawn_failure(command: &CommandLine, error: &io::Error) -> (u8, String) {
    let code = if error.kind() == io::ErrorKind::NotFound { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE };
    (code, format!("{:?}: {error}", command.0))
}

#[cfg(target_os = "linux")]
fn prepare((program, args): &CommandLine) -> Command {
    let mut command = Command::new(THIS_PROGRAM);
    let no_sigpipe = if sigpipe_was_ignored() { NO_SIGPIPE } else { "" };
    let pid = rustix::process::getpid().as_raw_nonzero();
    command.arg0("with-lock").arg(format!("{BECOME_OPTION}{no_sigpipe}{pid}"));
    command.arg(program).args(args);
    command
}

#[cfg(not(target_os = "linux"))]
fn prepare((program, args): &CommandLine) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// Executes the command with the signals of this process, which ignores SIGPIPE. Returns the error.
#[cfg(target_os = "linux")]
fn execute((program, args): &CommandLine) -> Option<io::Error> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt as _;

    let line = [program].into_iter().chain(args).map(|word| CString::new(word.as_bytes()));
    let line: Result<Vec<CString>, _> = line.collect();
    Some(match line {
        Ok(line) => match nix::unistd::execvp(line.first()?, &line) {
            Ok(never) => match never {},
            Err(error) => error.into(),
        },
        Err(error) => error.into(),
    })
}

#[cfg(not(target_os = "linux"))]
fn execute(_: &CommandLine) -> Option<io::Error> {
    None
}

/// Executes the command, and returns the exit code if that fails. The command is killed when
/// `parent` ends, unless it changes its user.
pub fn become_command(parent: Parent, command: &CommandLine) -> u8 {
    #[cfg(target_os = "linux")]
    {
        let armed = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        // If the parent ended before the call, the lock is no longer held.
        if armed.is_err() || rustix::process::getppid().map(Pid::as_raw_pid) != Some(parent.pid) {
            return exit::LOST;
        }
    }
    let error = if parent.ignores_sigpipe { execute(command) } else { None };
    // Resets SIGPIPE, which Rust's runtime ignores.
    let error = error.unwrap_or_else(|| Command::new(&command.0).args(&command.1).exec());
    let (code, message) = spawn_failure(command, &error);
    print_error(&message);
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_to_ended_command_is_no_error_and_forbidden_one_is() {
        assert!(sent(Err(Errno::SRCH)).is_ok());
        assert!(sent(Err(Errno::PERM)).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn missing_proc_is_not_a_missing_command() {
        let command = ("job".into(), Vec::new());
        let (code, message) = spawn_failure(&command, &not_spawned(Errno::NOENT.into()));
        assert!(code == exit::NOT_EXECUTABLE && message.contains("/proc/self/exe"), "{code}: {message}");
    }
}

//! The child process that runs the command. It cannot outlive this process.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::Sender;
use std::thread;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::args::CommandLine;
use super::news::News;
use crate::cli::exit;

/// Internal option by which this program starts itself, binds itself to the life of its parent and
/// then becomes the command: `--become-command-of=PARENT PROGRAM ARGS...`.
const BECOME: &str = "--become-command-of=";

/// Returns the parent and the command if `args` are those of [`become_command`].
pub(super) fn requested(args: &[OsString]) -> Option<(i32, CommandLine)> {
    let (first, rest) = args.split_first()?;
    let parent = first.to_str()?.strip_prefix(BECOME)?.parse().ok()?;
    let (program, args) = rest.split_first()?;
    Some((parent, (program.clone(), args.to_vec())))
}

/// A running command.
#[derive(Debug)]
pub struct Running {
    child: Child,
    pid: Pid,
}

impl Running {
    /// Starts the command with `env` on top of the environment, where `None` removes a variable. Its end is told as
    /// [`News::CommandEnded`].
    ///
    /// Must be called on the main thread: Linux sends the parent's death signal when the *thread* that forked ends.
    ///
    /// # Errors
    ///
    /// If no process can be started.
    pub fn start(command: &CommandLine, env: &[(&str, Option<Vec<u8>>)], news: Sender<News>) -> io::Result<Self> {
        use std::os::unix::ffi::OsStringExt as _;

        let mut prepared = prepare(command);
        for (name, value) in env {
            match value {
                Some(value) => prepared.env(name, OsString::from_vec(value.clone())),
                None => prepared.env_remove(name),
            };
        }
        let child = prepared.spawn()?;
        let pid = Pid::from_child(&child);
        thread::spawn(move || {
            // It stays a zombie, so that its number names nobody else while somebody may still send it a signal.
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while waitid(WaitId::Pid(pid), ended).is_err_and(|error| error == Errno::INTR) {}
            let _ = news.send(News::CommandEnded);
        });
        Ok(Self { child, pid })
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        // It fails only if the process has ended, which is told elsewhere.
        let _ = kill_process(self.pid, signal);
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// Those of `wait`.
    pub fn wait(mut self) -> io::Result<u8> {
        self.child.wait().map(code)
    }
}

/// The exit code of a command, as a shell gives it.
fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code.to_le_bytes()[0],
        (None, Some(signal)) => exit::by_signal(signal),
        (None, None) => u8::MAX,
    }
}

/// The code and the words for a command that could not be executed.
#[must_use]
pub fn explain(command: &CommandLine, error: &io::Error) -> (u8, String) {
    let code = if error.kind() == io::ErrorKind::NotFound { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE };
    (code, format!("{:?}: {error}", command.0))
}

#[cfg(target_os = "linux")]
fn prepare((program, args): &CommandLine) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("with-lock").arg(format!("{BECOME}{}", rustix::process::getpid().as_raw_nonzero()));
    command.arg(program).args(args);
    command
}

#[cfg(not(target_os = "linux"))]
fn prepare((program, args): &CommandLine) -> Command {
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// Becomes the command, after arranging to be killed when `parent` ends. Returns only if that fails, with the exit code.
pub fn become_command(parent: i32, command: &CommandLine) -> u8 {
    #[cfg(target_os = "linux")]
    {
        let asked = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        // The parent may have ended before the signal was asked for; then nobody holds the lock any more.
        if asked.is_err() || rustix::process::getppid().map(Pid::as_raw_pid) != Some(parent) {
            return exit::LOST;
        }
    }
    let _ = parent;
    let error = Command::new(&command.0).args(&command.1).exec();
    let (code, words) = explain(command, &error);
    eprintln!("with-lock: {words}");
    code
}

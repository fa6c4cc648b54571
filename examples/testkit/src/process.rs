//! The process of a server, and its port.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::spawn::spawn;
use crate::{TIMEOUT, wait_until};

/// Returns the program that servers are started with: the one named by the environment variable
/// `variable`, or else `program` from the path.
#[must_use]
pub fn program_of(variable: &str, program: &str) -> OsString {
    env::var_os(variable).unwrap_or_else(|| program.into())
}

/// A process that may be running. Killed on drop.
#[derive(Debug, Default)]
pub struct Process {
    child: Option<Child>,
}

impl Process {
    /// Starts the program that [`program_of`] returns.
    ///
    /// # Panics
    ///
    /// If it is not installed: a missing server is a failed test.
    pub fn start(&mut self, variable: &str, program: &str, package: &str, args: impl FnOnce(&mut Command)) {
        self.run(&program_of(variable, program), package, args);
    }

    /// Starts a program.
    ///
    /// # Panics
    ///
    /// If it is not installed: a missing server is a failed test.
    pub fn run(&mut self, program: &OsStr, package: &str, args: impl FnOnce(&mut Command)) {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        args(&mut command);
        match spawn(command) {
            Ok(child) => self.child = Some(child),
            Err(e) if e.kind() == io::ErrorKind::NotFound => panic!(
                "{} is not installed, and this test needs it: run `make servers`, or install the package {package}",
                program.display(),
            ),
            Err(e) => panic!("{} does not run: {e}", program.display()),
        }
    }

    /// The ends of its input and output, of a process that was started with pipes.
    ///
    /// # Panics
    ///
    /// If it was not.
    pub fn pipes(&mut self) -> (ChildStdin, ChildStdout) {
        let child = self.child.as_mut().expect("the process runs");
        child.stdin.take().zip(child.stdout.take()).expect("it has pipes")
    }

    /// The process id.
    ///
    /// # Panics
    ///
    /// If it was killed.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child().id()
    }

    /// Returns true if it was started, and neither killed nor [found ended](Self::ended).
    #[must_use]
    pub const fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// The exit status, if the process ended without being killed.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        if status.is_some() {
            self.child = None;
        }
        status
    }

    /// Kills the process with SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the process with SIGSTOP, and waits until none of its threads runs any more.
    ///
    /// # Panics
    ///
    /// If it was killed.
    pub fn pause(&self) {
        let child = WaitId::Pid(self.signal(Signal::STOP));
        // Keep the state waitable, so that a second `pause` returns too.
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        retry_on_intr(|| waitid(child.clone(), stopped)).expect("one's own child");
    }

    /// Sends SIGQUIT, and waits until the process is gone: for servers that free shared memory when they end.
    pub fn quit(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = kill_process(Pid::from_child(&child), Signal::QUIT);
            let _ = child.wait();
        }
    }

    /// Resumes the process after `pause`.
    ///
    /// # Panics
    ///
    /// If it was killed.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) -> Pid {
        let child = Pid::from_child(self.child());
        kill_process(child, signal).expect("a signal to one's own child");
        child
    }

    fn child(&self) -> &Child {
        self.child.as_ref().expect("the server runs")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Ports below those of outgoing connections, which begin at 32 768 on Linux. A connection of
/// another test could otherwise occupy the port of a server that is to restart.
const PORTS: Range<u16> = 10_000..32_768;

/// The ports of this process so far. A server that is to restart must find its port free.
static USED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port on which no socket listens at present, and that was not returned before.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    let random = || (RandomState::new().build_hasher().finish() % PORTS.len() as u64) as u16;
    let is_new = |port: &u16| USED.lock().unwrap_or_else(PoisonError::into_inner).insert(*port);
    let mut ports = std::iter::repeat_with(|| PORTS.start + random()).take(PORTS.len()).filter(is_new);
    ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).expect("a free port on loopback")
}

/// Waits until a server that was started is ready, and kills it if that takes longer than [`TIMEOUT`].
///
/// # Errors
///
/// How its process ended, or that it was not ready in time.
pub fn wait_until_ready<S>(
    server: &mut S,
    ended: impl Fn(&mut S) -> Option<ExitStatus>,
    is_ready: impl Fn(&S) -> bool,
    kill: impl FnOnce(&mut S),
) -> Result<(), String> {
    let mut status = None;
    let is_over = wait_until(TIMEOUT, || {
        status = ended(server);
        status.is_some() || is_ready(server)
    });
    match status {
        Some(status) => Err(format!("it ended with {status}")),
        None if is_over => Ok(()),
        None => {
            kill(server);
            Err(format!("no answer within {TIMEOUT:?}"))
        }
    }
}

/// Launches a server on its port again, until that succeeds: an old connection may occupy the port for a
/// moment.
///
/// # Panics
///
/// If it does not succeed within [`TIMEOUT`]: with the server's name and the end of its log.
pub fn launch_again<S>(
    name: &str,
    server: &mut S,
    launch: impl Fn(&mut S) -> Result<(), String>,
    log_end: impl Fn(&S) -> String,
) {
    let end = Instant::now() + TIMEOUT;
    while let Err(error) = launch(server) {
        assert!(Instant::now() < end, "{name} does not start again: {error}\n{}", log_end(server));
        thread::sleep(Duration::from_millis(20));
    }
}

/// The last lines of a log.
#[must_use]
pub fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member of an ensemble could not restart: an outgoing connection had its port. Nor may the
    /// server of another test.
    #[test]
    fn only_one_server_gets_port() {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("Linux");
        let first: u16 = range.split_whitespace().next().expect("two numbers").parse().expect("a number");
        let mut ports = BTreeSet::new();
        for _ in 0..1_000 {
            let port = free_port();
            assert!(port < first, "{port} is one of {range}");
            assert!(ports.insert(port), "{port} was returned before");
        }
    }
}

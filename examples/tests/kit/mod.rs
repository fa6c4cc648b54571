//! Runs programs and captures their output.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod stores;

use core::time::Duration;
use std::fs;
use std::io::{Read, Write as _};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use lock_testkit::wait_until;
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Longer than any step takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Starts the rest of a line with the default reaction to signals, some of which the program that
/// runs these tests may ignore.
pub(crate) const WITH_SIGNALS: &[&str] =
    if cfg!(target_os = "linux") { &["env", "--default-signal=HUP,INT,TERM"] } else { &[] };

/// A program and what starts it, such as `nohup`.
pub(crate) fn started_by(starter: &[&str], program: &str) -> Command {
    let mut words = starter.iter().chain([&program]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words);
    command
}

pub(crate) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A running program. Killed when dropped.
pub(crate) struct Tool {
    child: Child,
    /// `None` if the test gave it another stdout or stderr.
    out: Option<Pipe>,
    err: Option<Pipe>,
    started: Instant,
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) took: Duration,
}

impl Tool {
    pub(crate) fn spawn(command: Command) -> Self {
        Self::spawn_with(command, Stdio::null())
    }

    pub(crate) fn spawn_with(mut command: Command, input: Stdio) -> Self {
        command.stdin(input);
        Self::spawn_between(command, Stdio::piped())
    }

    /// `output` takes its stdout.
    pub(crate) fn spawn_to(mut command: Command, output: impl Into<Stdio>) -> Self {
        command.stdin(Stdio::null());
        Self::spawn_between(command, output)
    }

    /// These take its stdout and stderr.
    pub(crate) fn spawn_to_both(mut command: Command, output: impl Into<Stdio>, errors: impl Into<Stdio>) -> Self {
        command.stdin(Stdio::null()).stderr(errors);
        Self::spawn_streams(command, output)
    }

    fn spawn_between(mut command: Command, output: impl Into<Stdio>) -> Self {
        command.stderr(Stdio::piped());
        Self::spawn_streams(command, output)
    }

    fn spawn_streams(mut command: Command, output: impl Into<Stdio>) -> Self {
        let mut child = command.stdout(output).spawn().unwrap();
        let out = child.stdout.take().map(Pipe::new);
        let err = child.stderr.take().map(Pipe::new);
        Self { child, out, err, started: Instant::now() }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn out(&self) -> String {
        self.out.as_ref().map(Pipe::text).unwrap_or_default()
    }

    pub(crate) fn err(&self) -> String {
        self.err.as_ref().map(Pipe::text).unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn wait_for_out(&self, part: &str) {
        assert!(
            wait_until(LONG, || self.out().contains(part)),
            "no {part:?} on stdout: {} / {}",
            self.out(),
            self.err()
        );
    }

    #[track_caller]
    pub(crate) fn wait_for_err(&self, part: &str) {
        assert!(
            wait_until(LONG, || self.err().contains(part)),
            "no {part:?} on stderr: {} / {}",
            self.out(),
            self.err()
        );
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        // Drain the pipes, because a full one would block the program.
        let _ = (self.out(), self.err());
        self.child.try_wait().unwrap().is_some()
    }

    #[track_caller]
    pub(crate) fn end(self) -> Ended {
        self.end_within(LONG)
    }

    #[track_caller]
    pub(crate) fn end_within(mut self, limit: Duration) -> Ended {
        assert!(wait_until(limit, || self.has_ended()), "it does not end: {} / {}", self.out(), self.err());
        let took = self.started.elapsed();
        let status = self.child.wait().unwrap();
        Ended { code: status.code().unwrap_or(-1), out: self.out(), err: self.err(), took }
    }

    /// Sends SIGTERM and waits for the end.
    #[track_caller]
    pub(crate) fn terminate(self) -> Ended {
        self.signal(Signal::TERM);
        self.end()
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = kill_process(self.pid(), Signal::CONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pipe that is full. It is read when the test asks for its text.
pub(crate) fn full_pipe() -> (Pipe, Stdio) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    ioctl_fionbio(&writer, true).unwrap();
    for part in [&[b' '; 4096][..], b" "] {
        while writer.write(part).is_ok() {}
    }
    ioctl_fionbio(&writer, false).unwrap();
    (Pipe::new(reader), writer.into())
}

/// The output of a program so far. Never reads to the end, because a command that outlives the
/// program keeps the pipe open.
pub(crate) struct Pipe(Mutex<(Box<dyn Read + Send>, Vec<u8>)>);

impl Pipe {
    fn new(from: impl Read + AsFd + Send + 'static) -> Self {
        ioctl_fionbio(&from, true).unwrap();
        Self(Mutex::new((Box::new(from), Vec::new())))
    }

    /// Returns the complete lines.
    pub(crate) fn text(&self) -> String {
        let (from, read) = &mut *self.0.lock().unwrap();
        // An error means that no more output is available yet.
        let whole = from.read_to_end(read).is_ok();
        let lines = read.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        String::from_utf8_lossy(&read[..if whole { read.len() } else { lines }]).into_owned()
    }
}

/// A file that takes nothing.
pub(crate) fn full() -> Stdio {
    fs::File::options().write(true).open("/dev/full").unwrap().into()
}

/// A pipe that nobody reads.
pub(crate) fn unread() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

/// A directory for the files that commands write.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.path().join(name)).unwrap_or_default()
    }

    /// Waits for the first line of a file and returns it.
    #[track_caller]
    pub(crate) fn line(&self, name: &str) -> String {
        assert!(wait_until(LONG, || self.read(name).contains('\n')), "nothing was written to {name}");
        self.read(name).lines().next().unwrap().to_owned()
    }
}

pub(crate) fn is_alive(pid: &str) -> bool {
    test_kill_process(Pid::from_raw(pid.trim().parse().unwrap()).unwrap()).is_ok()
}

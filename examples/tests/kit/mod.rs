//! Starts programs, listens to them, and ends them.
#![allow(dead_code, reason = "each test program uses a part of it")]

use core::time::Duration;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use lock_testkit::wait_until;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Longer than anything here takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A running program. Killed when dropped.
pub(crate) struct Tool {
    child: Child,
    out: Arc<Mutex<String>>,
    err: Arc<Mutex<String>>,
    started: Instant,
}

/// The end of a program.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) took: Duration,
}

impl Tool {
    /// Starts a program without an input.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = collect(child.stdout.take().unwrap());
        let err = collect(child.stderr.take().unwrap());
        Self { child, out, err, started: Instant::now() }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn out(&self) -> String {
        self.out.lock().unwrap().clone()
    }

    pub(crate) fn err(&self) -> String {
        self.err.lock().unwrap().clone()
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
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn end(self) -> Ended {
        self.end_within(LONG)
    }

    /// Waits for its end for this long.
    #[track_caller]
    pub(crate) fn end_within(mut self, limit: Duration) -> Ended {
        assert!(wait_until(limit, || self.has_ended()), "it does not end: {} / {}", self.out(), self.err());
        let took = self.started.elapsed();
        let status = self.child.wait().unwrap();
        // The pipes may be read a little later, but a command that outlives the program keeps them open: do not wait for their end.
        thread::sleep(Duration::from_millis(20));
        Ended { code: status.code().unwrap_or(-1), out: self.out(), err: self.err(), took }
    }

    /// As by a terminal or a service manager: asks it to end, and waits.
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

fn collect(pipe: impl std::io::Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let sink = Arc::clone(&text);
    thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            sink.lock().unwrap().push_str(&String::from_utf8_lossy(&line));
            line.clear();
        }
    });
    text
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

    /// Waits until a command has written a line into a file, and returns it.
    #[track_caller]
    pub(crate) fn line(&self, name: &str) -> String {
        assert!(wait_until(LONG, || self.read(name).contains('\n')), "nothing was written to {name}");
        self.read(name).lines().next().unwrap().to_owned()
    }
}

/// Whether there is such a process.
pub(crate) fn is_alive(pid: &str) -> bool {
    test_kill_process(Pid::from_raw(pid.trim().parse().unwrap()).unwrap()).is_ok()
}

//! stdout and stderr of the tools that hold locks. A pipe that nobody reads blocks its writers once
//! it is full, and so does a terminal after Ctrl-S. Threads write to them, so that nothing that
//! decides about a lock waits for a reader.

use core::fmt;
use core::mem::{replace, take};
use core::time::Duration;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::exit;
use super::output::not_written;

/// Bytes that may wait for a stream: a few lines with the largest values of etcd.
const LIMIT: usize = 4 << 20;

/// Limit for writing what still waits for a stream when the program ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Name of the tool, with which its messages begin.
static TOOL: OnceLock<&str> = OnceLock::new();
static STDOUT: Queue = Queue::new(write_stdout);
static STDERR: Queue = Queue::new(write_stderr);
static FAILURE: Mutex<Failure> = Mutex::new(Failure { failed: false, line_lost: false, why: None, then: None });

/// Runs a tool and writes what it printed, for a limited time. Returns its exit code; if a line for
/// stdout is lost, that for this in place of 0.
pub(crate) fn run_tool(name: &'static str, run: impl FnOnce() -> u8) -> u8 {
    let _ = TOOL.set(name);
    let code = run();
    if !STDOUT.flush() {
        lose_line("nobody reads stdout: its last lines are lost");
    }
    let line_lost = locked(&FAILURE).line_lost;
    if line_lost && let Some(why) = stdout_failure() {
        print_error(&why);
    }
    STDERR.flush();
    if code == exit::SUCCESS && line_lost { exit::NOT_WRITTEN } else { code }
}

/// Prints one line on stdout.
pub(crate) fn print_line(what: &dyn fmt::Display) {
    if !STDOUT.push(format!("{what}\n").as_bytes()) {
        lose_line("nobody reads stdout: too many lines wait for it");
    }
}

/// Prints one line of the tool on stderr.
pub(crate) fn print_error(what: &dyn fmt::Display) {
    STDERR.push(format!("{}: {what}\n", tool()).as_bytes());
}

/// Calls `then` once if stdout fails: a line cannot be written, too many wait, or it is a pipe that
/// nobody reads any more.
pub(crate) fn on_stdout_failure(then: impl FnOnce() + Send + 'static) {
    locked(&FAILURE).then = Some(Box::new(then));
    thread::spawn(|| {
        let stdout = io::stdout();
        loop {
            // Errors and the end are reported without being asked for.
            let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
            match poll(&mut watched, None) {
                Err(Errno::INTR) => {}
                Ok(_) if watched[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) => return fail(UNREAD),
                Ok(_) | Err(_) => return,
            }
        }
    });
}

/// Returns why stdout has failed, once.
pub(crate) fn stdout_failure() -> Option<String> {
    locked(&FAILURE).why.take()
}

/// stderr for the log. One write is one message.
pub(super) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        STDERR.push(message);
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const UNREAD: &str = "nobody reads stdout any more";

fn tool() -> &'static str {
    TOOL.get().copied().unwrap_or_default()
}

/// The first failure of stdout.
struct Failure {
    failed: bool,
    /// A line is lost. If the reader is gone, that need not be so.
    line_lost: bool,
    /// The message, until somebody takes it.
    why: Option<String>,
    then: Option<Box<dyn FnOnce() + Send>>,
}

fn fail(why: &str) {
    let mut failure = locked(&FAILURE);
    if replace(&mut failure.failed, true) {
        return;
    }
    failure.why = Some(why.to_owned());
    let then = failure.then.take();
    drop(failure);
    if let Some(then) = then {
        then();
    }
}

fn lose_line(why: &str) {
    locked(&FAILURE).line_lost = true;
    fail(why);
}

fn write_stdout(lines: &[u8], _missing: u64) {
    let mut failure = locked(&FAILURE);
    // These would come after a line that is lost.
    if failure.failed {
        failure.line_lost = true;
        return;
    }
    drop(failure);
    let mut stdout = io::stdout().lock();
    match stdout.write_all(lines).and_then(|()| stdout.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => lose_line(UNREAD),
        Err(error) => lose_line(&not_written(&error)),
    }
}

fn write_stderr(lines: &[u8], missing: u64) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(lines);
    if missing > 0 {
        let line = format!("{}: {missing} lines are missing here: nobody read stderr\n", tool());
        let _ = stderr.write_all(line.as_bytes());
    }
}

/// Lines that wait for a thread, which writes them.
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// Writes lines, after which a number of others is missing.
    write: fn(&[u8], u64),
}

struct State {
    lines: Vec<u8>,
    missing: u64,
    has_thread: bool,
    /// The thread has taken lines that may not be written yet.
    writing: bool,
}

impl Queue {
    const fn new(write: fn(&[u8], u64)) -> Self {
        let state = State { lines: Vec::new(), missing: 0, has_thread: false, writing: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), write }
    }

    /// Appends lines, or returns false if there is no room. Does not block.
    fn push(&'static self, lines: &[u8]) -> bool {
        let mut state = locked(&self.state);
        let is_full = !state.lines.is_empty() && state.lines.len() + lines.len() > LIMIT;
        // A short line might still fit, but would come before the report of those that are missing.
        if is_full || state.missing > 0 {
            state.missing += 1;
            return false;
        }
        state.lines.extend_from_slice(lines);
        if !state.has_thread {
            // If that fails, the next line tries it again.
            state.has_thread = thread::Builder::new().spawn(|| self.write_lines()).is_ok();
        }
        drop(state);
        self.changed.notify_all();
        true
    }

    fn write_lines(&self) {
        let mut state = locked(&self.state);
        loop {
            state.writing = !state.lines.is_empty();
            if state.writing {
                let (lines, missing) = (take(&mut state.lines), take(&mut state.missing));
                drop(state);
                (self.write)(&lines, missing);
                state = locked(&self.state);
            } else {
                self.changed.notify_all();
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Waits until all lines are written. Returns false if that takes too long.
    fn flush(&self) -> bool {
        let waits = |state: &mut State| state.writing || !state.lines.is_empty();
        let waited = self.changed.wait_timeout_while(locked(&self.state), FLUSH_TIMEOUT, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{LIMIT, Mutex, Queue, locked, thread};

    static GATE: Mutex<()> = Mutex::new(());
    static WRITTEN: Mutex<Vec<(usize, u64)>> = Mutex::new(Vec::new());
    static QUEUE: Queue = Queue::new(|lines, missing| {
        let _open = locked(&GATE);
        locked(&WRITTEN).push((lines.len(), missing));
    });

    #[test]
    fn unread_stream_delays_nothing_and_counts_what_is_missing() {
        let closed = locked(&GATE);
        assert!(QUEUE.push(b"taken\n"));
        while !locked(&QUEUE.state).writing {
            thread::yield_now();
        }
        let half = &*vec![b'x'; LIMIT / 2];
        assert!(QUEUE.push(half) && QUEUE.push(half));
        assert!(!QUEUE.push(b"dropped\n") && !QUEUE.push(half));
        assert!(!QUEUE.flush(), "it does not wait for long");
        drop(closed);
        assert!(QUEUE.flush());
        assert!(QUEUE.push(b"late\n") && QUEUE.flush());
        assert_eq!(*locked(&WRITTEN), [(6, 0), (LIMIT, 2), (5, 0)]);
    }
}

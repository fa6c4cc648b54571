//! stdout and stderr of the tools that hold locks. A pipe that nobody reads blocks its writers once
//! it is full, and so does a terminal after Ctrl-S. Threads write to them, so that nothing that
//! decides about a lock waits for a reader.

use core::fmt;
use core::mem::{replace, take};
use core::time::Duration;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::exit;
use super::output::not_written;

/// Bytes that may wait for a stream: a few lines with the largest values of etcd.
const LIMIT: usize = 4 << 20;

/// Limit for writing what still waits for a stream when the program ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Name of the tool, with which its messages begin.
static TOOL: OnceLock<&str> = OnceLock::new();
static STDOUT: Queue = Queue::new(write_stdout, |limit| takes_bytes(&io::stdout(), limit));
static STDERR: Queue = Queue::new(write_stderr, |limit| takes_bytes(&io::stderr(), limit));
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

/// Starts the thread for stderr. Without it, lines wait until there is a thread, or for the end.
///
/// # Errors
///
/// The system has no thread.
pub(crate) fn start_stderr() -> io::Result<()> {
    STDERR.start()
}

/// Calls `then` once if stdout fails: a line cannot be written, too many wait, or it is a pipe that
/// nobody reads any more. Lines for stdout need no further thread.
///
/// # Errors
///
/// The system has no thread.
pub(crate) fn on_stdout_failure(then: impl FnOnce() + Send + 'static) -> io::Result<()> {
    locked(&FAILURE).then = Some(Box::new(then));
    STDOUT.start()?;
    let watch = || {
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
    };
    thread::Builder::new().name("stdout".into()).spawn(watch).map(drop)
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

/// Waits until the stream takes [`CHUNK`] bytes without blocking. False if it does not in time.
fn takes_bytes(stream: &impl AsFd, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).ok();
    let mut watched = [PollFd::new(stream, PollFlags::OUT)];
    poll(&mut watched, limit.as_ref()).is_ok_and(|ready| ready > 0)
}

/// What a pipe that is ready takes at once, on every system (`PIPE_BUF`).
const CHUNK: usize = 512;

/// Lines that wait for a thread, which writes them.
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// Writes lines, after which a number of others is missing.
    write: fn(&[u8], u64),
    /// Waits until the stream takes bytes.
    ready: fn(Duration) -> bool,
}

struct State {
    lines: Vec<u8>,
    missing: u64,
    has_thread: bool,
    /// The thread has taken lines that may not be written yet.
    writing: bool,
}

impl Queue {
    const fn new(write: fn(&[u8], u64), ready: fn(Duration) -> bool) -> Self {
        let state = State { lines: Vec::new(), missing: 0, has_thread: false, writing: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), write, ready }
    }

    /// Starts the thread, unless there is one.
    fn start(&'static self) -> io::Result<()> {
        self.start_thread(&mut locked(&self.state))
    }

    fn start_thread(&'static self, state: &mut State) -> io::Result<()> {
        if !state.has_thread {
            thread::Builder::new().name("writer".into()).spawn(|| self.write_lines())?;
            state.has_thread = true;
        }
        Ok(())
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
        // If that fails, the next line tries it again, and the last one is `flush`.
        let _ = self.start_thread(&mut state);
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

    /// Writes on this thread, as far as the stream takes bytes. Returns false if it does not.
    fn write_without_thread(&self, state: &mut State) -> bool {
        let (lines, missing) = (take(&mut state.lines), take(&mut state.missing));
        let chunks = lines.len().div_ceil(CHUNK);
        (1..).zip(lines.chunks(CHUNK)).all(|(number, chunk)| {
            let takes = (self.ready)(FLUSH_TIMEOUT);
            if takes {
                (self.write)(chunk, if number == chunks { missing } else { 0 });
            }
            takes
        })
    }

    /// Waits until all lines are written. Returns false if that takes too long.
    fn flush(&'static self) -> bool {
        let waits = |state: &mut State| state.writing || !state.lines.is_empty();
        let mut state = locked(&self.state);
        if waits(&mut state) && self.start_thread(&mut state).is_err() {
            return self.write_without_thread(&mut state);
        }
        let waited = self.changed.wait_timeout_while(state, FLUSH_TIMEOUT, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, LIMIT, Mutex, Queue, locked, thread};

    static GATE: Mutex<()> = Mutex::new(());
    static WRITTEN: Mutex<Vec<(usize, u64)>> = Mutex::new(Vec::new());
    static QUEUE: Queue = Queue::new(
        |lines, missing| {
            let _open = locked(&GATE);
            locked(&WRITTEN).push((lines.len(), missing));
        },
        |_| true,
    );

    /// A process that may have no thread still says why it ends.
    #[test]
    fn lines_are_written_without_a_thread_while_the_stream_takes_them() {
        static WRITTEN: Mutex<Vec<(usize, u64)>> = Mutex::new(Vec::new());
        static LEFT: Mutex<u32> = Mutex::new(3);
        static QUEUE: Queue = Queue::new(
            |lines, missing| locked(&WRITTEN).push((lines.len(), missing)),
            |_| {
                let mut left = locked(&LEFT);
                let takes = *left > 0;
                *left = left.saturating_sub(1);
                takes
            },
        );
        let mut state = locked(&QUEUE.state);
        state.lines = vec![b'x'; CHUNK + 1];
        state.missing = 4;
        assert!(QUEUE.write_without_thread(&mut state));
        assert_eq!(*locked(&WRITTEN), [(CHUNK, 0), (1, 4)]);
        assert!(state.lines.is_empty());
        state.lines = vec![b'x'; CHUNK + 1];
        assert!(!QUEUE.write_without_thread(&mut state), "the stream takes no more");
        assert_eq!(locked(&WRITTEN).len(), 3);
    }

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

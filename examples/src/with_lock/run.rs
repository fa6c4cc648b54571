//! Main thread: waits for the lock, starts the command, and ends it when the lock ends.

use core::cell::Cell;
use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use lock_driver::BootClock;
use lock_proto::{Instant, Loss, Release};
use rustix::process::{Signal, getpgrp};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;

use super::args::{Args, CommandLine, Parsed, parse};
use super::child::{self, Running, Waiter};
use super::event::{Held, LockHandle, MainEvent, Stopped};
use super::{tasks, threads};
use crate::cli::failed::Failed;
use crate::cli::log::show_log;
use crate::cli::name::{DisplayName, ShortName};
use crate::cli::output::print_text;
use crate::cli::register::StoreUrl;
use crate::cli::signals::is_ignored;
use crate::cli::stdio::{on_stdout_failure, print_error, print_line, run_tool, start_stderr, stdout_failure};
use crate::cli::{SHUTDOWN_TIMEOUT, exit};

/// The longest sleep: system timers may stop while the computer is suspended.
// T4
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// The signals that a service is told things with. All but the last end a process that does not
/// handle them.
const FORWARDED: [i32; 8] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGWINCH];

/// Returns true for requests to stop, whatever a command makes of the others.
fn is_stop(signal: Signal) -> bool {
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal)
}

/// Returns true if a terminal sends this signal to all processes in its foreground.
fn is_of_terminal(signal: Signal) -> bool {
    [Signal::INT, Signal::QUIT, Signal::WINCH].contains(&signal)
}

/// Signals this soon after the first are one request to stop. systemd can send SIGHUP right after
/// SIGTERM (`SendSIGHUP=`).
const SAME_STOP: Duration = Duration::from_secs(1);

const UNCONFIRMED_WAIT: &str = "the end of the wait is unconfirmed; what it left on the server ends with its TTL";

/// Runs the tool and returns its exit code. Call it on the main thread, see [`Running::start`].
///
/// `default_backends` is the value of `LOCK_BACKEND`, `stores` are more than those of this package.
pub fn main(
    args: impl IntoIterator<Item = OsString>,
    default_backends: Option<&OsStr>,
    stores: &'static [StoreUrl],
) -> u8 {
    run_tool("with-lock", || run(args, default_backends, stores))
}

fn run(args: impl IntoIterator<Item = OsString>, default_backends: Option<&OsStr>, stores: &'static [StoreUrl]) -> u8 {
    let args = match parse(args, default_backends, stores) {
        Ok(Parsed::Run(args)) => *args,
        Ok(Parsed::Print(text)) => return print_text("with-lock", &text),
        Ok(Parsed::Become { parent, command }) => return child::become_command(parent, &command),
        Err(error) => {
            print_error(&error);
            return exit::USAGE;
        }
    };
    if let Err(error) = show_log("with-lock") {
        print_error(&error);
        return exit::USAGE;
    }
    if let Some(notice) = &args.notice {
        print_error(notice);
    }
    let main = match Main::start(args) {
        Ok(main) => main,
        Err(failed) => return report_failure(&failed),
    };
    main.run()
}

fn forward_signals(events: Sender<MainEvent>) -> io::Result<()> {
    let mut signals = Signals::new(FORWARDED.into_iter().filter(|signal| !is_ignored(*signal)))?;
    let forward = move || {
        for signal in signals.forever().filter_map(Signal::from_named_raw) {
            if events.send(MainEvent::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(forward).map(drop)
}

/// Returns true if the process group of this process and its command is the foreground group of its
/// controlling terminal, which sends SIGINT to all of them.
fn is_in_foreground() -> bool {
    File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

pub(super) fn no_thread(error: io::Error) -> Failed {
    Failed::system(format_args!("no thread: {error}"))
}

/// Reports why the lock was not acquired. Returns the exit code.
fn report_failure(failed: &Failed) -> u8 {
    print_error(failed);
    failed.code
}

struct Main {
    args: Args,
    handle: Box<dyn LockHandle>,
    events: Receiver<MainEvent>,
    /// Waits for the command. Without one, nothing is waited for.
    waiter: Option<Waiter>,
    clock: BootClock,
    /// The driver of the lock has ended by itself: nothing renews the lock, and no reply follows.
    driver_ended: Cell<bool>,
}

impl Main {
    /// Starts all threads that are needed later, before there is a lock or a command to lose.
    // D8
    fn start(args: Args) -> Result<Self, Failed> {
        let (sender, events) = channel();
        let watched = forward_signals(sender.clone());
        watched.map_err(|error| Failed::system(format_args!("signals cannot be watched: {error}")))?;
        start_stderr().map_err(no_thread)?;
        let waiter = if args.command.is_some() {
            Some(Waiter::start(sender.clone()).map_err(no_thread)?)
        } else {
            let sender = sender.clone();
            on_stdout_failure(move || drop(sender.send(MainEvent::NotWritten))).map_err(no_thread)?;
            None
        };
        let handle = match args.runtime {
            Some(runtime) => tasks::start(runtime, &args, sender).map_err(no_thread)?,
            None => threads::start(&args, sender)?,
        };
        Ok(Self { args, handle, events, waiter, clock: BootClock::new(), driver_ended: Cell::new(false) })
    }

    fn run(self) -> u8 {
        let held = match self.wait() {
            Ok(held) => held,
            Err(code) => return code,
        };
        let mut hold = Hold::new(held, self.clock);
        match (&self.args.command, &self.waiter) {
            (Some(command), Some(waiter)) => self.run_command(command, waiter, &mut hold),
            (None, _) | (_, None) => self.hold_until_signal(&mut hold),
        }
    }

    fn print_error(&self, what: &dyn core::fmt::Display) {
        print_error(&format_args!("{}: {what}", ShortName(&self.args.name)));
    }

    /// Waits for the lock. Fails with the exit code.
    fn wait(&self) -> Result<Held, u8> {
        loop {
            match self.next(MAX_SLEEP) {
                Some(MainEvent::Held(held)) => return Ok(held),
                Some(MainEvent::Blocked(why)) => self.print_error(&format_args!("waiting: {why}")),
                Some(MainEvent::Failed(failed)) => return Err(report_failure(&failed)),
                Some(MainEvent::Signal(Signal::WINCH)) => {}
                Some(MainEvent::Signal(signal)) => {
                    self.end_wait(true);
                    return Err(exit::by_signal(signal.as_raw()));
                }
                Some(MainEvent::NotWritten) => {
                    if let Some(why) = stdout_failure() {
                        self.print_error(&why);
                    }
                    self.end_wait(false);
                    return Err(exit::NOT_WRITTEN);
                }
                Some(MainEvent::Stopped(Stopped { unconfirmed, .. })) => {
                    self.print_error(&"the driver of the lock has ended");
                    if unconfirmed {
                        self.print_error(&UNCONFIRMED_WAIT);
                    }
                    return Err(exit::UNREACHABLE);
                }
                Some(MainEvent::Lost(_) | MainEvent::CommandEnded) | None => {}
            }
        }
    }

    fn end_wait(&self, signalled: bool) {
        if self.stop_and_wait(signalled).unconfirmed {
            self.print_error(&UNCONFIRMED_WAIT);
        }
    }

    /// Holds the lock until a signal or its loss, or until stdout fails.
    fn hold_until_signal(&self, hold: &mut Hold) -> u8 {
        let name = DisplayName(&self.args.name);
        let fence = hold.held.fence.map_or_else(|| "-".to_owned(), |fence| fence.to_string());
        print_line(&format_args!("held {name} fence={fence} ttl={}", hold.held.ttl.as_millis()));
        let lost = loop {
            let left = hold.check();
            match self.next(left) {
                Some(MainEvent::Lost(loss)) => break Some(loss),
                Some(MainEvent::Signal(Signal::WINCH)) => {}
                Some(MainEvent::Signal(_)) => {
                    // After a pause, the lock may have been lost before the signal.
                    // T2
                    hold.check();
                    break hold.lost;
                }
                Some(MainEvent::NotWritten) => {
                    // Nobody learns from stdout that it is held.
                    if let Some(why) = stdout_failure() {
                        self.print_error(&format_args!("{why}; releasing the lock"));
                    }
                    self.release(false);
                    return exit::NOT_WRITTEN;
                }
                Some(MainEvent::Failed(_) | MainEvent::Stopped(_)) => break Some(self.lose_driver(hold)),
                Some(MainEvent::Blocked(_) | MainEvent::Held(_) | MainEvent::CommandEnded) | None => {}
            }
            hold.check();
            if let Some(loss) = hold.lost {
                break Some(loss);
            }
        };
        let report = |loss| {
            print_line(&format_args!("lost {name} {}", exit::loss_name(loss)));
            self.print_error(&format_args!("lost: {loss}"));
            exit::LOST
        };
        if let Some(loss) = lost {
            // At once: the release may take a while.
            let code = report(loss);
            self.release(false);
            return code;
        }
        hold.loss_at_release(self.release(true)).map_or(exit::SUCCESS, report)
    }

    /// Runs the command, no longer than the lock is held.
    fn run_command(&self, command: &CommandLine, waiter: &Waiter, hold: &mut Hold) -> u8 {
        // After a pause of this process, another client may hold the lock.
        // T2
        hold.check();
        if let Some(loss) = hold.lost {
            self.print_error(&format_args!("lost: {loss}; the command was not started"));
            self.release(false);
            return exit::LOST;
        }
        let Held { token, fence, owner, .. } = &hold.held;
        // `None` removes variables inherited from an outer lock.
        let env = [
            ("LOCK_NAME", Some(self.args.name.clone())),
            ("LOCK_TOKEN", Some(token.clone().into_bytes())),
            ("LOCK_FENCE", fence.map(|fence| fence.to_string().into_bytes())),
            ("ETCD_LOCK_KEY", owner.as_ref().map(|owner| owner.key.to_vec())),
            ("ETCD_LOCK_REV", owner.as_ref().map(|owner| owner.revision.to_string().into_bytes())),
        ];
        let running = match Running::start(command, &env, waiter) {
            Ok(running) => running,
            Err(error) => {
                let (code, message) = child::spawn_failure(command, &error);
                print_error(&message);
                self.release(false);
                return code;
            }
        };
        let Supervised { terminated, signalled } = self.supervise(&running, hold);
        let code = running.wait().unwrap_or_else(|error| {
            self.print_error(&format_args!("the command's end is not known: {error}"));
            exit::NOT_EXECUTABLE
        });
        let lost_before = hold.lost;
        let release = self.release(signalled);
        match lost_before.or_else(|| hold.loss_at_release(release)) {
            // The command was terminated, so it must not look finished, whatever its exit code.
            None if terminated => exit::LOST,
            None => code,
            Some(loss) => {
                if lost_before.is_none() {
                    self.print_error(&format_args!("lost: {loss}, which was noticed only at the release"));
                }
                exit::LOST
            }
        }
    }

    /// Waits for the end of the command, and ends it when the lock ends.
    fn supervise(&self, running: &Running, hold: &mut Hold) -> Supervised {
        let mut terminated = false;
        let mut signalled = false;
        let mut kill_at = None;
        let mut reported = false;
        let mut send = |signal| {
            let sent = running.signal(signal);
            if let Err(error) = sent
                && !core::mem::replace(&mut reported, true)
            {
                self.print_error(&format_args!("the command cannot be signalled: {error}"));
            }
        };
        loop {
            // Check the clock first: after a pause of this process, earlier events are stale.
            // T2
            let left = hold.check();
            let grace = hold.limit_grace(self.args.grace);
            let now = self.clock.now();
            if hold.lost == Some(Loss::Expired) {
                if kill_at.is_none_or(|at| at > now) {
                    self.print_error(&format_args!("lost: {}; sending SIGKILL to the command", Loss::Expired));
                }
                kill_at = Some(now);
            } else if left <= grace && !terminated {
                self.print_error(&"renewals are failing and the lock expires soon; sending SIGTERM to the command");
                send(Signal::TERM);
                terminated = true;
            }
            if kill_at.is_some_and(|at| at <= now) {
                send(Signal::KILL);
            }
            let next = match kill_at {
                Some(at) if at > now => at.since(now),
                // It cannot end yet, for example because a disk does not answer.
                Some(_) => MAX_SLEEP,
                None if terminated => left,
                None => left.saturating_sub(grace),
            };
            let lost = match self.next(next.max(Duration::from_millis(1))) {
                Some(MainEvent::CommandEnded) => {
                    let known = hold.lost;
                    hold.check();
                    if let (None, Some(loss)) = (known, hold.lost) {
                        self.print_error(&format_args!("lost: {loss}"));
                    }
                    return Supervised { terminated, signalled };
                }
                Some(MainEvent::Lost(loss)) => Some(*hold.lost.get_or_insert(loss)),
                Some(MainEvent::Failed(_) | MainEvent::Stopped(_)) => Some(self.lose_driver(hold)),
                Some(MainEvent::Signal(signal)) => {
                    signalled |= is_stop(signal);
                    // Ctrl-C of the terminal has reached the command already.
                    if !is_of_terminal(signal) || !is_in_foreground() {
                        send(signal);
                    }
                    None
                }
                Some(MainEvent::Blocked(_) | MainEvent::Held(_) | MainEvent::NotWritten) | None => None,
            };
            if let Some(loss) = lost.filter(|loss| *loss != Loss::Expired && kill_at.is_none()) {
                self.print_error(&format_args!("lost: {loss}; sending SIGTERM to the command"));
                send(Signal::TERM);
                terminated = true;
                kill_at = Some(self.clock.now() + grace);
            }
        }
    }

    /// The driver has ended by itself while the lock was held, so the lock is lost.
    fn lose_driver(&self, hold: &mut Hold) -> Loss {
        self.driver_ended.set(true);
        *hold.lost.get_or_insert(Loss::ShutDown)
    }

    /// Waits for the next event, at most `limit` and at most a nap.
    fn next(&self, limit: Duration) -> Option<MainEvent> {
        self.events.recv_timeout(limit.min(MAX_SLEEP)).ok()
    }

    /// Releases the lock, even if it is lost: its key may exist. Reports a release that is
    /// unconfirmed.
    fn release(&self, signalled: bool) -> Option<Release> {
        let Stopped { release, unconfirmed } = self.stop_and_wait(signalled);
        if unconfirmed {
            self.print_error(&"the release is unconfirmed; the lock ends with its TTL");
        }
        release
    }

    /// Releases the lock or stops waiting for it, and waits for the reply: for a limited time, and
    /// until a second signal. `signalled`: the first one came before. It counts from now on:
    /// the signal that ended the command may arrive late, after signals that did not end it. Call
    /// this once, because there is one reply.
    fn stop_and_wait(&self, signalled: bool) -> Stopped {
        const GIVEN_UP: Stopped = Stopped { release: None, unconfirmed: true };
        if self.driver_ended.get() {
            return GIVEN_UP;
        }
        self.handle.stop();
        let start = self.clock.now();
        // The release and the shutdown have their own timeouts.
        let end = start + SHUTDOWN_TIMEOUT * 4;
        let mut first = signalled.then_some(start);
        loop {
            let now = self.clock.now();
            match self.next(end.since(now)) {
                Some(MainEvent::Stopped(stopped)) => return stopped,
                Some(MainEvent::Failed(_)) => return Stopped { release: None, unconfirmed: false },
                // Ctrl-C may end the command before this process learns of the signal.
                Some(MainEvent::Signal(signal)) if is_stop(signal) => {
                    let now = self.clock.now();
                    if now > *first.get_or_insert(now) + SAME_STOP {
                        return GIVEN_UP;
                    }
                }
                Some(
                    MainEvent::Blocked(_)
                    | MainEvent::Held(_)
                    | MainEvent::Lost(_)
                    | MainEvent::Signal(_)
                    | MainEvent::CommandEnded
                    | MainEvent::NotWritten,
                ) => {}
                None if now >= end => return GIVEN_UP,
                None => {}
            }
        }
    }
}

/// How the command ended.
struct Supervised {
    /// It was terminated because of the lock.
    terminated: bool,
    /// This process received a signal before.
    signalled: bool,
}

/// The held lock, as seen by the main thread.
struct Hold {
    held: Held,
    clock: BootClock,
    /// End of the validity when last checked.
    valid_until: Instant,
    /// The longest validity that was left at a check.
    longest: Duration,
    lost: Option<Loss>,
}

impl Hold {
    fn new(held: Held, clock: BootClock) -> Self {
        Self { valid_until: clock.now(), longest: Duration::ZERO, held, clock, lost: None }
    }

    /// Checks the lock and the clock. Returns how long the lock is certainly held from now on. At
    /// the end of its validity the lock counts as lost, even without an event.
    fn check(&mut self) -> Duration {
        if self.lost.is_some() {
            return Duration::ZERO;
        }
        let now = self.clock.now();
        match (self.held.remaining)() {
            Ok(left) => self.valid_until = now + left,
            // Lost before the first check. Later, a loss within the validity comes as an event.
            Err(loss) if self.longest.is_zero() => self.lost = Some(loss),
            Err(_) if self.valid_until <= now => self.lost = Some(Loss::Expired),
            Err(_) => {}
        }
        let left = self.valid_until.since(now);
        self.longest = self.longest.max(left);
        left
    }

    /// Returns the grace, but at most half of the validity: a server may grant less than `--ttl`.
    /// A longer grace would end the command before the first renewal is due.
    fn limit_grace(&self, grace: Duration) -> Duration {
        grace.min(self.longest / 2)
    }

    /// Returns the loss that the release revealed: the key was gone or taken while the lock was
    /// still valid by the clock.
    fn loss_at_release(&self, release: Option<Release>) -> Option<Loss> {
        let early = self.clock.now() < self.valid_until;
        match release {
            Some(Release::Expired) if early => Some(Loss::Gone),
            Some(Release::Taken) if early => Some(Loss::Taken),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    struct FakeHandle(Sender<MainEvent>);

    impl LockHandle for FakeHandle {
        fn stop(&self) {
            let stopped = Stopped { release: Some(Release::Expired), unconfirmed: false };
            self.0.send(MainEvent::Stopped(stopped)).unwrap();
        }
    }

    /// The process may pause between the acquisition and the start.
    #[test]
    fn command_is_not_started_without_the_lock() {
        let Ok(Parsed::Run(args)) = parse(["job"].map(OsString::from), None, &[]) else { panic!() };
        let (sender, events) = channel();
        let waiter = Waiter::start(sender.clone()).unwrap();
        let (handle, driver_ended) = (Box::new(FakeHandle(sender)), Cell::new(false));
        let main = Main { args: *args, handle, events, waiter: None, clock: BootClock::new(), driver_ended };
        for lost in [Loss::Expired, Loss::Gone] {
            let remaining = Box::new(move || Err(lost));
            let held = Held { token: String::new(), fence: None, owner: None, ttl: Duration::MAX, remaining };
            let mut hold = Hold::new(held, main.clock);
            // An attempt to start it would fail.
            assert_eq!(main.run_command(&("\0".into(), Vec::new()), &waiter, &mut hold), exit::LOST);
            assert_eq!(hold.lost, Some(lost));
        }
    }
}

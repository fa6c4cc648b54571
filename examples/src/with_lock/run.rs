//! Main thread: waits for the lock, starts the command, and ends it when the lock ends.

use core::time::Duration;
use std::ffi::OsString;
use std::io::Write as _;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use lock_proto::Instant;
use lock_proto::driver::BootClock;
use lock_proto::redis::{Blocked, Loss, Release};
use rustix::process::Signal;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::args::{Args, CommandLine, Driven, Parsed, parse};
use super::child::{self, Running};
use super::news::{Held, Holder, News};
use super::{tasks, threads};
use crate::cli::failed::Failed;
use crate::cli::name::Shown;
use crate::cli::{GOODBYE, exit, print};

/// The longest sleep: system timers may stop while the computer is suspended.
// T4
const NAP: Duration = Duration::from_secs(1);

/// Runs the tool and returns its exit code. Call it on the main thread, see [`Running::start`].
pub fn main(args: impl IntoIterator<Item = OsString>, default_backends: Option<&str>) -> u8 {
    let args = match parse(args, default_backends) {
        Ok(Parsed::Run(args)) => *args,
        Ok(Parsed::Print(text)) => {
            let _ = write!(std::io::stdout(), "{text}");
            return 0;
        }
        Ok(Parsed::Become { parent, command }) => return child::become_command(parent, &command),
        Err(error) => {
            say(&error);
            return exit::USAGE;
        }
    };
    let (sender, news) = channel();
    if let Err(error) = watch_signals(sender.clone()) {
        say(&format_args!("signals cannot be watched: {error}"));
        return exit::NOT_EXECUTABLE;
    }
    let started = match args.driven.clone() {
        Driven::ByThreads(config) => threads::start(config, &args, sender.clone()),
        Driven::ByTask(runtime, settings) => Ok(tasks::start(runtime, settings, &args, sender.clone())),
    };
    let holder = match started {
        Ok(holder) => holder,
        Err(failed) => return explain(&failed),
    };
    Main { args, holder, news, sender, clock: BootClock::new() }.run()
}

/// Prints one line on stderr.
fn say(what: &dyn core::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "with-lock: {what}");
}

fn watch_signals(news: Sender<News>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if news.send(News::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Reports why the lock was not acquired. Returns the exit code.
fn explain(failed: &Failed) -> u8 {
    say(failed);
    failed.code
}

struct Main {
    args: Args,
    holder: Box<dyn Holder>,
    news: Receiver<News>,
    sender: Sender<News>,
    clock: BootClock,
}

impl Main {
    fn run(self) -> u8 {
        let held = match self.wait() {
            Ok(held) => held,
            Err(code) => return code,
        };
        let mut hold = Hold { until: self.clock.now(), held, clock: self.clock, lost: None };
        match &self.args.command {
            None => self.stay(&mut hold),
            Some(command) => self.run_command(command, &mut hold),
        }
    }

    fn say(&self, what: &dyn core::fmt::Display) {
        say(&format_args!("{}: {what}", Shown(&self.args.name)));
    }

    /// Waits for the lock. Fails with the exit code.
    fn wait(&self) -> Result<Held, u8> {
        let mut reported: Vec<Blocked> = Vec::new();
        loop {
            match self.next(NAP) {
                Some(News::Held(held)) => return Ok(held),
                Some(News::Blocked(why)) => {
                    if !reported.contains(&why) {
                        self.say(&format_args!("waiting: {why}"));
                        reported.push(why);
                    }
                }
                Some(News::Failed(failed)) => return Err(explain(&failed)),
                Some(News::Signal(signal)) => {
                    self.stop();
                    return Err(exit::by_signal(signal));
                }
                Some(News::Stopped(_) | News::Lost(_) | News::CommandEnded) | None => {}
            }
        }
    }

    /// Holds the lock until a signal or its loss.
    fn stay(&self, hold: &mut Hold) -> u8 {
        let name = Shown(&self.args.name);
        let fence = hold.held.fence.map_or_else(|| "-".to_owned(), |fence| fence.to_string());
        print(&format_args!("held {name} fence={fence} ttl={}", hold.held.ttl.as_millis()));
        let loss = loop {
            let left = hold.look();
            match self.next(left) {
                Some(News::Lost(loss)) => break Some(loss),
                Some(News::Signal(_)) => break hold.loss_at_release(self.stop()),
                Some(News::Blocked(_) | News::Held(_) | News::Failed(_) | News::Stopped(_) | News::CommandEnded)
                | None => {}
            }
            hold.look();
            if let Some(loss) = hold.lost {
                break Some(loss);
            }
        };
        let Some(loss) = loss else { return 0 };
        print(&format_args!("lost {name} {}", exit::word(loss)));
        self.say(&format_args!("lost: {loss}"));
        self.stop();
        exit::LOST
    }

    /// Runs the command, no longer than the lock is held.
    fn run_command(&self, command: &CommandLine, hold: &mut Hold) -> u8 {
        let Held { token, fence, owner, .. } = &hold.held;
        // `None` removes variables inherited from an outer lock.
        let env = [
            ("LOCK_NAME", Some(self.args.name.clone())),
            ("LOCK_TOKEN", Some(token.clone().into_bytes())),
            ("LOCK_FENCE", fence.map(|fence| fence.to_string().into_bytes())),
            ("ETCD_LOCK_KEY", owner.as_ref().map(|owner| owner.key.to_vec())),
            ("ETCD_LOCK_REV", owner.as_ref().map(|owner| owner.revision.to_string().into_bytes())),
        ];
        let running = match Running::start(command, &env, self.sender.clone()) {
            Ok(running) => running,
            Err(error) => {
                let (code, words) = child::explain(command, &error);
                say(&words);
                self.stop();
                return code;
            }
        };
        let asked = self.supervise(&running, hold);
        let code = running.wait().unwrap_or_else(|error| {
            self.say(&format_args!("the command's end is not known: {error}"));
            exit::NOT_EXECUTABLE
        });
        let lost_before = hold.lost;
        let release = self.stop();
        match lost_before.or_else(|| hold.loss_at_release(release)) {
            // The command was terminated, so it must not look finished, whatever its exit code.
            None if asked => exit::LOST,
            None => code,
            Some(loss) => {
                if lost_before.is_none() {
                    self.say(&format_args!("lost: {loss}, which was noticed only at the release"));
                }
                exit::LOST
            }
        }
    }

    /// Waits for the end of the command. Returns true if it was terminated because of the lock.
    fn supervise(&self, running: &Running, hold: &mut Hold) -> bool {
        let mut asked = false;
        let mut kill_at = None;
        loop {
            // Check the clock first: after a pause of this process, earlier events are stale.
            // T2
            let left = hold.look();
            let now = self.clock.now();
            if hold.lost == Some(Loss::Expired) {
                if kill_at.is_none_or(|at| at > now) {
                    self.say(&format_args!("lost: {}; killing the command", Loss::Expired));
                }
                kill_at = Some(now);
            } else if left <= self.args.grace && !asked {
                self.say(&"no renewal is confirmed, and the lock ends soon: asking the command to end");
                running.signal(Signal::TERM);
                asked = true;
            }
            if kill_at.is_some_and(|at| at <= now) {
                running.signal(Signal::KILL);
            }
            let next = match kill_at {
                Some(at) => at.since(now),
                None if asked => left,
                None => left.saturating_sub(self.args.grace),
            };
            match self.next(next.max(Duration::from_millis(1))) {
                Some(News::CommandEnded) => {
                    hold.look();
                    return asked;
                }
                Some(News::Lost(loss)) => {
                    hold.lost.get_or_insert(loss);
                    if loss != Loss::Expired && kill_at.is_none() {
                        self.say(&format_args!("lost: {loss}; asking the command to end"));
                        running.signal(Signal::TERM);
                        asked = true;
                        kill_at = Some(self.clock.now() + self.args.grace);
                    }
                }
                Some(News::Signal(signal)) => {
                    running.signal(if signal == SIGINT { Signal::INT } else { Signal::TERM });
                }
                Some(News::Blocked(_) | News::Held(_) | News::Failed(_) | News::Stopped(_)) | None => {}
            }
        }
    }

    /// Waits for the next event, at most `limit` and at most a nap.
    fn next(&self, limit: Duration) -> Option<News> {
        self.news.recv_timeout(limit.min(NAP)).ok()
    }

    /// Releases the lock or stops waiting for it. Waits for the reply, with a limit.
    fn stop(&self) -> Option<Release> {
        self.holder.stop();
        // The release and the shutdown have their own timeouts.
        let end = self.clock.now() + GOODBYE * 4;
        loop {
            let left = end.since(self.clock.now());
            match self.next(left) {
                Some(News::Stopped(release)) => return release,
                Some(News::Failed(_)) => return None,
                // A second signal: do not wait for the reply.
                Some(News::Signal(_)) => return None,
                Some(News::Blocked(_) | News::Held(_) | News::Lost(_) | News::CommandEnded) => {}
                None if left.is_zero() => return None,
                None => {}
            }
        }
    }
}

/// The held lock, as seen by the main thread.
struct Hold {
    held: Held,
    clock: BootClock,
    /// End of the validity when last checked.
    until: Instant,
    lost: Option<Loss>,
}

impl Hold {
    /// Checks the lock and the clock. Returns how long the lock is certainly held from now on. At
    /// the end of its validity the lock counts as lost, even without an event.
    fn look(&mut self) -> Duration {
        if self.lost.is_some() {
            return Duration::ZERO;
        }
        let now = self.clock.now();
        if let Some(left) = (self.held.remaining)() {
            self.until = now + left;
        } else if self.until <= now {
            self.lost = Some(Loss::Expired);
        }
        self.until.since(now)
    }

    /// Returns the loss that the release revealed: the key was gone or taken while the lock was
    /// still valid by the clock.
    fn loss_at_release(&self, release: Option<Release>) -> Option<Loss> {
        let early = self.clock.now() < self.until;
        match release {
            Some(Release::Expired) if early => Some(Loss::Gone),
            Some(Release::Taken) if early => Some(Loss::Taken),
            _ => None,
        }
    }
}

//! Events for the main thread, and its handle to the driver of the lock.

use core::fmt;
use core::time::Duration;
use std::sync::mpsc::Sender;

use futures_util::FutureExt as _;
use lock_driver::{AcquireError, AcquireErrorKind, Acquiring, Client, Guard, OwnerKeyExt as _, Shutdown};
use lock_proto::etcd::OwnerKey;
use lock_proto::{Blocked, Fence, Loss, Release, Wait};
use rustix::process::Signal;

use super::args::Args;
use crate::cli::failed::Failed;

/// An event for the main thread.
#[derive(Debug)]
pub enum MainEvent {
    /// Still waiting, for this reason.
    Blocked(Blocked),
    /// The lock is held.
    Held(Held),
    /// The lock was lost.
    Lost(Loss),
    /// The lock was not acquired. No event follows.
    Failed(Failed),
    /// Reply to [`LockHandle::stop`]. No event follows.
    Stopped(Stopped),
    /// This process received a signal.
    Signal(Signal),
    /// The command has ended.
    CommandEnded,
    /// A line cannot be written to stdout, or nobody reads it any more.
    NotWritten,
}

impl MainEvent {
    /// The last event, after the shutdown of the client.
    pub(super) fn last(end: Result<Option<Release>, AcquireError>, shutdown: Shutdown) -> Self {
        match end {
            Ok(release) => Self::Stopped(Stopped::after(release, shutdown)),
            Err(error) if *error.kind() != AcquireErrorKind::ShutDown => Self::Failed(Failed::acquiring(&error)),
            Err(_) => Self::Stopped(Stopped::after(None, shutdown)),
        }
    }
}

/// How a hold or a wait ended.
#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    /// The result of the release; `None` without a held lock.
    pub release: Option<Release>,
    /// The lock, or what the wait left, may still exist on the servers.
    pub unconfirmed: bool,
}

impl Stopped {
    fn after(release: Option<Release>, shutdown: Shutdown) -> Self {
        let unconfirmed = match release {
            Some(Release::Released | Release::Taken) => false,
            Some(Release::Unknown) => true,
            // The client's clock may say so, while the session exists.
            Some(Release::Expired | _) | None => shutdown.unreleased > 0,
        };
        Self { release, unconfirmed }
    }
}

/// A held lock.
pub struct Held {
    /// Unique token of this hold. On Redis it is the value of the key.
    pub token: String,
    /// The fencing token.
    pub fence: Option<Fence>,
    /// The key on etcd, unless the lock is already lost.
    pub owner: Option<OwnerKey>,
    /// The TTL of the key.
    pub ttl: Duration,
    /// Returns how long the lock is certainly held from now on, or how it was lost. Reads the clock
    /// when called.
    pub remaining: Box<dyn Fn() -> Result<Duration, Loss> + Send>,
}

impl Held {
    pub(super) fn of(guard: &Guard) -> Self {
        let observer = guard.observer();
        let remaining = Box::new(move || match observer.remaining() {
            Duration::ZERO => Err(observer.lost().now_or_never().flatten().unwrap_or(Loss::Expired)),
            left => Ok(left),
        });
        let (token, owner) = (guard.token().to_string(), guard.owner_key());
        Self { token, fence: guard.fence(), owner, ttl: guard.ttl(), remaining }
    }
}

/// The acquisition that the command line requests. The main thread learns what it waits for.
pub(super) fn acquiring(client: &Client, args: &Args, events: &Sender<MainEvent>) -> Acquiring {
    let lock = client.lock(&args.name).ttl(args.ttl);
    let acquiring = match args.wait {
        Wait::Try => lock.try_acquire(),
        Wait::For(limit) => lock.wait(limit).acquire(),
        Wait::Forever => lock.acquire(),
    };
    let events = events.clone();
    acquiring.on_blocked(move |why| {
        let _ = events.send(MainEvent::Blocked(why));
    })
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("fence", &self.fence).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

/// Handle to the driver of the lock, which runs on other threads.
pub trait LockHandle {
    /// Stops waiting or releases the lock. The reply is [`MainEvent::Stopped`], unless
    /// [`MainEvent::Failed`] is already in flight.
    fn stop(&self);
}

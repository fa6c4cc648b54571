//! The lock without async: methods that block threads.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use futures_util::FutureExt as _;
use lock_driver::{AcquireError, Acquiring, Client, Guard, Observer};
use lock_proto::Release;

use super::args::Args;
use super::event::{Held, LockHandle, MainEvent, acquiring};
use super::run::no_thread;
use crate::cli::SHUTDOWN_TIMEOUT;
use crate::cli::failed::Failed;

struct ThreadHandle {
    client: Client,
    stop: Sender<()>,
    is_held: Arc<AtomicBool>,
}

/// # Errors
///
/// A value is invalid, or the system has no thread.
pub(super) fn start(args: &Args, events: Sender<MainEvent>) -> Result<Box<dyn LockHandle>, Failed> {
    let settings = args.backend.on_any_runtime()?.clone();
    let connected = lock_tokio::blocking::connect_with(settings);
    let client = connected.map_err(|error| Failed::connecting(&error))?;
    let acquiring = acquiring(&client, args, &events);
    let (stop, stopped) = channel();
    let is_held = Arc::new(AtomicBool::new(false));
    let handle = ThreadHandle { client: client.clone(), stop, is_held: Arc::clone(&is_held) };
    let observe = start_observer(events.clone()).map_err(no_thread)?;
    let drive = move || {
        let end = acquire_and_hold(acquiring, &is_held, &observe, &events, &stopped);
        // Clean up the servers before the process ends.
        let shutdown = client.shutdown_blocking(SHUTDOWN_TIMEOUT);
        let _ = events.send(MainEvent::last(end.map(Some), shutdown));
    };
    thread::Builder::new().name("lock".into()).spawn(drive).map_err(no_thread)?;
    Ok(Box::new(handle))
}

/// Starts the thread that reports the loss of the lock, before there is one.
fn start_observer(events: Sender<MainEvent>) -> io::Result<Sender<Observer>> {
    let (sender, held) = channel::<Observer>();
    let observe = move || {
        // Closed if the lock is not acquired.
        if let Some(loss) = held.recv().ok().and_then(|observer| observer.lost_blocking()) {
            let _ = events.send(MainEvent::Lost(loss));
        }
    };
    thread::Builder::new().name("observer".into()).spawn(observe)?;
    Ok(sender)
}

impl LockHandle for ThreadHandle {
    fn stop(&self) {
        // Closed if the thread has ended.
        let _ = self.stop.send(());
        // Ends the wait. If the lock is acquired at this moment, the shutdown releases it. The first
        // poll begins it, and the other thread waits for its end.
        if !self.is_held.load(Ordering::Acquire) {
            let _ = self.client.shutdown(SHUTDOWN_TIMEOUT).now_or_never();
        }
    }
}

/// Acquires the lock and holds it until `stop`.
fn acquire_and_hold(
    acquiring: Acquiring,
    is_held: &AtomicBool,
    observe: &Sender<Observer>,
    events: &Sender<MainEvent>,
    stop: &Receiver<()>,
) -> Result<Release, AcquireError> {
    let guard: Guard = acquiring.acquire_blocking()?;
    is_held.store(true, Ordering::Release);
    let _ = events.send(MainEvent::Held(Held::of(&guard)));
    let _ = observe.send(guard.observer());
    // After a loss too: release only once the command has ended, the key may keep others out.
    let _ = stop.recv();
    Ok(guard.release_blocking())
}

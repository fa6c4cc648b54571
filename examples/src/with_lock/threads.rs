//! The lock without async: methods that block threads.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use lock_driver::{AcquireError, Acquiring, Client, Guard};
use lock_proto::Release;

use super::args::Args;
use super::event::{Held, LockHandle, MainEvent, acquiring};
use crate::cli::SHUTDOWN_TIMEOUT;
use crate::cli::failed::Failed;

struct ThreadHandle {
    client: Client,
    stop: Sender<()>,
    is_held: Arc<AtomicBool>,
}

/// # Errors
///
/// Returns a value that is invalid.
pub(super) fn start(args: &Args, events: Sender<MainEvent>) -> Result<Box<dyn LockHandle>, Failed> {
    let client = lock_tokio::blocking::connect_with(args.settings.clone()).map_err(Failed::usage)?;
    let acquiring = acquiring(&client, args, &events);
    let (stop, stopped) = channel();
    let is_held = Arc::new(AtomicBool::new(false));
    let handle = ThreadHandle { client: client.clone(), stop, is_held: Arc::clone(&is_held) };
    thread::spawn(move || {
        let end = acquire_and_hold(acquiring, &is_held, &events, &stopped);
        // Clean up the servers before the process ends.
        let shutdown = client.shutdown_blocking(SHUTDOWN_TIMEOUT);
        let _ = events.send(MainEvent::last(end.map(Some), shutdown));
    });
    Ok(Box::new(handle))
}

impl LockHandle for ThreadHandle {
    fn stop(&self) {
        // Closed if the thread has ended.
        let _ = self.stop.send(());
        // Ends the wait. If the lock is acquired at this moment, the shutdown releases it.
        if !self.is_held.load(Ordering::Acquire) {
            let client = self.client.clone();
            thread::spawn(move || client.shutdown_blocking(SHUTDOWN_TIMEOUT));
        }
    }
}

/// Acquires the lock and holds it until `stop`.
fn acquire_and_hold(
    acquiring: Acquiring,
    is_held: &AtomicBool,
    events: &Sender<MainEvent>,
    stop: &Receiver<()>,
) -> Result<Release, AcquireError> {
    let guard: Guard = acquiring.acquire_blocking()?;
    is_held.store(true, Ordering::Release);
    let _ = events.send(MainEvent::Held(Held::of(&guard)));
    let (observer, events) = (guard.observer(), events.clone());
    thread::spawn(move || {
        if let Some(loss) = observer.lost_blocking() {
            let _ = events.send(MainEvent::Lost(loss));
        }
    });
    // After a loss too: release only once the command has ended, the key may keep others out.
    let _ = stop.recv();
    Ok(guard.release_blocking())
}

//! The lock driven by an async runtime on its own thread. All runtimes use the same handles.

use std::io;
use std::sync::mpsc::Sender;
use std::thread;

use lock_driver::{Client, Guard, start_or_error};
use lock_proto::Release;
use smol::channel::{Receiver, bounded};
use smol::future::or;

use super::args::Args;
use super::event::{Held, LockHandle, MainEvent, acquiring};
use crate::cli::SHUTDOWN_TIMEOUT;
use crate::cli::failed::Failed;
use crate::cli::runtime::{Runtime, block_on, tokio_runtime};

struct TaskHandle {
    stop: smol::channel::Sender<()>,
}

impl LockHandle for TaskHandle {
    fn stop(&self) {
        // Full if already requested, closed if the task has ended.
        let _ = self.stop.try_send(());
    }
}

/// # Errors
///
/// The system has no thread.
pub(super) fn start(runtime: Runtime, args: &Args, events: Sender<MainEvent>) -> io::Result<Box<dyn LockHandle>> {
    let (stop, stopped) = bounded(1);
    let args = args.clone();
    let drive = move || {
        // A runtime may panic for lack of threads or descriptors. The main thread must learn of it.
        let end = start_or_error(|| run(runtime, &args, &events, &stopped));
        let _ = events.send(end.unwrap_or_else(|error| MainEvent::Failed(Failed::system(error))));
    };
    thread::Builder::new().name("lock".into()).spawn(drive)?;
    Ok(Box::new(TaskHandle { stop }))
}

fn run(runtime: Runtime, args: &Args, events: &Sender<MainEvent>, stop: &Receiver<()>) -> MainEvent {
    let client = || {
        let settings = args.backend.on_any_runtime()?.clone();
        runtime.client(settings.into()).map_err(|error| Failed::connecting(&error))
    };
    let on_tokio = async {
        args.backend.prepare().await?;
        Ok(acquire_and_hold(args.backend.connect()?, args, events, stop).await)
    };
    let ended = match runtime {
        Runtime::Tokio => tokio_runtime().and_then(|runtime| block_on(runtime, on_tokio)),
        // The client first: it starts the reactor, without which `block_on` may end the process.
        Runtime::Smol => client().map(|client| smol::block_on(acquire_and_hold(client, args, events, stop))),
        Runtime::AsyncStd => {
            client().map(|client| async_std::task::block_on(acquire_and_hold(client, args, events, stop)))
        }
    };
    ended.unwrap_or_else(MainEvent::Failed)
}

/// Acquires the lock and holds it until `stop`. Returns the final event.
async fn acquire_and_hold(client: Client, args: &Args, events: &Sender<MainEvent>, stop: &Receiver<()>) -> MainEvent {
    let acquiring = acquiring(&client, args, events);
    let waiting = async { Some(acquiring.await) };
    let stopped = async {
        let _ = stop.recv().await;
        None
    };
    let end = match or(waiting, stopped).await {
        Some(Ok(guard)) => Ok(Some(hold_until_stopped(guard, events, stop).await)),
        Some(Err(error)) => Err(error),
        None => Ok(None),
    };
    // Clean up the servers before the process ends.
    MainEvent::last(end, client.shutdown(SHUTDOWN_TIMEOUT).await)
}

async fn hold_until_stopped(guard: Guard, events: &Sender<MainEvent>, stop: &Receiver<()>) -> Release {
    let _ = events.send(MainEvent::Held(Held::of(&guard)));
    let lost = async {
        let loss = guard.lost().await;
        let _ = events.send(MainEvent::Lost(loss));
        // Release only after the command has ended: until then the key may keep others out.
        let _ = stop.recv().await;
    };
    let stop_requested = async {
        let _ = stop.recv().await;
    };
    or(lost, stop_requested).await;
    guard.release().await
}

//! The lock driven by an async runtime on its own thread. All runtimes use the same handles.

use std::sync::mpsc::Sender;
use std::thread;

use lock_driver::{Client, ConnectError, Guard};
use lock_proto::Release;
use smol::channel::{Receiver, bounded};
use smol::future::or;

use super::args::Args;
use super::event::{Held, LockHandle, MainEvent, acquiring};
use crate::cli::SHUTDOWN_TIMEOUT;
use crate::cli::failed::Failed;
use crate::cli::runtime::{Runtime, block_on};

struct TaskHandle {
    stop: smol::channel::Sender<()>,
}

impl LockHandle for TaskHandle {
    fn stop(&self) {
        // Full if already requested, closed if the task has ended.
        let _ = self.stop.try_send(());
    }
}

pub(super) fn start(runtime: Runtime, args: &Args, events: Sender<MainEvent>) -> Box<dyn LockHandle> {
    let (stop, stopped) = bounded(1);
    let args = args.clone();
    thread::spawn(move || {
        let client = || runtime.client(args.settings.clone().into());
        let session = async { acquire_and_hold(client(), &args, &events, &stopped).await };
        let end = match runtime {
            Runtime::Tokio => match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => block_on(runtime, session),
                Err(error) => MainEvent::Failed(Failed::unreachable(format_args!("no tokio runtime: {error}"))),
            },
            Runtime::Smol => smol::block_on(session),
            Runtime::AsyncStd => async_std::task::block_on(session),
        };
        let _ = events.send(end);
    });
    Box::new(TaskHandle { stop })
}

/// Acquires the lock and holds it until `stop`. Returns the final event.
async fn acquire_and_hold(
    client: Result<Client, ConnectError>,
    args: &Args,
    events: &Sender<MainEvent>,
    stop: &Receiver<()>,
) -> MainEvent {
    let client = match client {
        Ok(client) => client,
        Err(error) => return MainEvent::Failed(Failed::usage(error)),
    };
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

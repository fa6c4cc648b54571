//! The lock driven by an async runtime on its own thread. All runtimes use the same handles.

use std::sync::mpsc::Sender;
use std::thread;

use lock_proto::driver::etcd::OwnerKeyExt as _;
use lock_proto::driver::{Client, ConnectError, Guard, Settings};
use lock_proto::redis::{Release, Wait};
use smol::channel::{Receiver, bounded};
use smol::future::or;

use super::args::Args;
use super::news::{Held, Holder, News};
use crate::cli::GOODBYE;
use crate::cli::failed::Failed;
use crate::cli::runtime::Runtime;

struct Tasks {
    stop: smol::channel::Sender<()>,
}

impl Holder for Tasks {
    fn stop(&self) {
        // Full if already requested, closed if the task has ended.
        let _ = self.stop.try_send(());
    }
}

/// Requests the lock.
pub(super) fn start(runtime: Runtime, settings: Settings, args: &Args, news: Sender<News>) -> Box<dyn Holder> {
    let (stop, stopped) = bounded(1);
    let args = args.clone();
    thread::spawn(move || {
        let held = async { hold(runtime.client(settings), &args, &news, &stopped).await };
        let end = match runtime {
            Runtime::Tokio => match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(held),
                Err(error) => News::Failed(Failed::usage(format_args!("no tokio runtime: {error}"))),
            },
            Runtime::Smol => smol::block_on(held),
            Runtime::AsyncStd => async_std::task::block_on(held),
        };
        let _ = news.send(end);
    });
    Box::new(Tasks { stop })
}

/// Acquires the lock and holds it until `stop`. Returns the final event.
async fn hold(client: Result<Client, ConnectError>, args: &Args, news: &Sender<News>, stop: &Receiver<()>) -> News {
    let client = match client {
        Ok(client) => client,
        Err(error) => return News::Failed(Failed::usage(error)),
    };
    let lock = client.lock(&args.name).ttl(args.ttl);
    let acquiring = match args.wait {
        Wait::Try => lock.try_acquire(),
        Wait::For(limit) => lock.wait(limit).acquire(),
        Wait::Forever | _ => lock.acquire(),
    };
    let blocked = {
        let news = news.clone();
        move |why| drop(news.send(News::Blocked(why)))
    };
    let waiting = async { Some(acquiring.on_blocked(blocked).await) };
    let stopped = async {
        let _ = stop.recv().await;
        None
    };
    let last = match or(waiting, stopped).await {
        Some(Ok(guard)) => News::Stopped(Some(keep(guard, news, stop).await)),
        Some(Err(error)) => News::Failed(Failed::acquiring(&error)),
        None => News::Stopped(None),
    };
    // Clean up the servers before the process ends.
    client.shutdown(GOODBYE).await;
    last
}

async fn keep(guard: Guard, news: &Sender<News>, stop: &Receiver<()>) -> Release {
    let observer = guard.observer();
    let remaining = Box::new(move || Some(observer.remaining()).filter(|left| !left.is_zero()));
    let (token, owner) = (guard.token().to_string(), guard.owner());
    let _ = news.send(News::Held(Held { token, fence: guard.fence(), owner, ttl: guard.ttl(), remaining }));
    let lost = async {
        let loss = guard.lost().await;
        let _ = news.send(News::Lost(loss));
        // Release only after the command has ended: until then the key may keep others out.
        let _ = stop.recv().await;
    };
    let told = async {
        let _ = stop.recv().await;
    };
    or(lost, told).await;
    guard.release().await
}

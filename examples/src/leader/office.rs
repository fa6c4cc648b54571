//! A candidate of the play: a client of its own on a thread of its own, as if it were another process.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use lock_proto::driver::Observer;
use lock_proto::driver::etcd::{LeadershipEnd, ResignHandle, StopSignal};
use lock_proto::etcd::Config;
use lock_proto::redis::Fence;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::{select, time};

use super::play::Broken;
use crate::cli::GOODBYE;

/// How long one piece of a leader's work takes.
const PIECE: Duration = Duration::from_millis(50);
/// How long it takes to finish, once it is asked to stop.
const WINDING_DOWN: Duration = Duration::from_millis(300);

/// What a candidate tells.
#[derive(Debug)]
pub(super) struct News {
    pub(super) who: &'static str,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// It leads.
    Elected(Fence),
    /// It has proclaimed this, and works.
    AtWork { value: String, resign_handle: ResignHandle, observer: Observer },
    /// Its work came to its end, while it was still in office or not.
    Finished { in_office: bool },
    /// It leads no more.
    Left(LeadershipEnd<()>),
    /// Something went wrong.
    Failed(Broken),
}

/// What only one may use at a time.
#[derive(Debug, Default)]
pub(super) struct Desk {
    inside: AtomicU32,
    most: AtomicU32,
}

impl Desk {
    /// The most that were inside at one moment.
    pub(super) fn most(&self) -> u32 {
        self.most.load(Ordering::SeqCst)
    }

    fn sit(&self) -> Seat<'_> {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        Seat(self)
    }
}

struct Seat<'a>(&'a Desk);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A candidate that lives on its thread.
pub(super) struct Candidate {
    thread: JoinHandle<()>,
    kill: oneshot::Sender<()>,
}

impl Candidate {
    /// Stands for the election `name`, and works when elected.
    pub(super) fn start(
        who: &'static str,
        name: &str,
        config: Config,
        desk: Arc<Desk>,
        news: UnboundedSender<News>,
    ) -> Self {
        let (kill, mut killed) = oneshot::channel();
        let name = name.to_owned();
        let thread = thread::spawn(move || {
            let tell = |what| drop(news.send(News { who, what }));
            let life = async {
                select! {
                    end = live(who, &name, config, &desk, &tell) => end,
                    _ = &mut killed => Ok(()),
                }
            };
            // When the runtime ends, so do the driver and its connection, wherever they are: a candidate that was killed gives
            // nothing back, as a process that was killed.
            let end = match time_and_io() {
                Ok(runtime) => runtime.block_on(life),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = end {
                tell(What::Failed(error));
            }
        });
        Self { thread, kill }
    }

    /// Kills it, and waits until it is gone.
    pub(super) fn kill(self) {
        let Self { thread, kill } = self;
        // It may have ended by itself.
        let _ = kill.send(());
        let _ = thread.join();
    }

    /// Waits for its end.
    pub(super) fn join(self) {
        // A panic was printed, and the news that do not come are noticed.
        let _ = self.thread.join();
    }
}

fn time_and_io() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

async fn live(who: &'static str, name: &str, config: Config, desk: &Desk, tell: &impl Fn(What)) -> Result<(), Broken> {
    let client = lock_tokio::connect_with(config)?;
    let mut leadership = client.election(name).campaign(who).await?;
    tell(What::Elected(leadership.fence().ok_or("an office on etcd has a fencing token")?));
    let value = format!("{who}, at work");
    leadership.proclaim(value.clone()).await?;
    tell(What::AtWork { value, resign_handle: leadership.resign_handle(), observer: leadership.observer() });
    let observer = leadership.observer();
    // In two steps (requirement E10): asked to stop, the work comes to its end, and only then the office is given up.
    let led = leadership
        .lead(|stop| async {
            work(stop, desk).await;
            tell(What::Finished { in_office: observer.is_held() });
        })
        .await;
    tell(What::Left(led));
    client.shutdown(GOODBYE).await;
    Ok(())
}

/// Piece after piece, until asked to stop; then what is begun is finished.
async fn work(stop: StopSignal, desk: &Desk) {
    let _seat = desk.sit();
    while !stop.is_raised() {
        time::sleep(PIECE).await;
    }
    time::sleep(WINDING_DOWN).await;
}

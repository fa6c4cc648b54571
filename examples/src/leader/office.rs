//! A candidate of the demonstration: its own client on its own thread, like a separate process.

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

/// Duration of one piece of a leader's work.
const PIECE: Duration = Duration::from_millis(50);
/// Time to finish the work after a request to stop.
const WINDING_DOWN: Duration = Duration::from_millis(300);

/// Reports of a candidate.
#[derive(Debug)]
pub(super) struct News {
    pub(super) who: &'static str,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// The candidate leads.
    Elected(Fence),
    /// The candidate has proclaimed this value and works.
    AtWork { value: String, resign_handle: ResignHandle, observer: Observer },
    /// The work ended, while the candidate was still leading or not.
    Finished { in_office: bool },
    /// The candidate no longer leads.
    Left(LeadershipEnd<()>),
    /// Something went wrong.
    Failed(Broken),
}

/// A resource that only one leader may use at a time.
#[derive(Debug, Default)]
pub(super) struct Desk {
    inside: AtomicU32,
    most: AtomicU32,
}

impl Desk {
    /// The largest number of concurrent users so far.
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

/// A candidate on its thread.
pub(super) struct Candidate {
    thread: JoinHandle<()>,
    kill: oneshot::Sender<()>,
}

impl Candidate {
    /// Campaigns in the election `name`, and works when elected.
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
            // Dropping the runtime drops the driver and its connection, so a killed candidate
            // cleans nothing up, like a killed process.
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

    /// Kills the candidate and waits until it is gone.
    pub(super) fn kill(self) {
        let Self { thread, kill } = self;
        // Fails if the candidate has already ended.
        let _ = kill.send(());
        let _ = thread.join();
    }

    /// Waits for the candidate to end.
    pub(super) fn join(self) {
        // A panic was printed, and its missing reports are noticed.
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
    // Two steps: the work ends first, and then the leader resigns.
    // E10
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

/// Works piece by piece until the stop request, then finishes the current piece.
async fn work(stop: StopSignal, desk: &Desk) {
    let _seat = desk.sit();
    while !stop.is_raised() {
        time::sleep(PIECE).await;
    }
    time::sleep(WINDING_DOWN).await;
}

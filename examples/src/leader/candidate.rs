//! A candidate of the demonstration: its own client on its own thread, like a separate process.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use lock_driver::{LeadershipEnd, Observer, ResignHandle, StopSignal};
use lock_proto::Fence;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::{select, time};

use super::demo::Broken;
use crate::cli::SHUTDOWN_TIMEOUT;
use crate::cli::backend::Backend;
use crate::cli::runtime::tokio_runtime;

/// Duration of one piece of a leader's work.
const WORK_INTERVAL: Duration = Duration::from_millis(50);
/// Time to finish the work after a request to stop.
const WIND_DOWN_TIME: Duration = Duration::from_millis(300);

#[derive(Debug)]
pub(super) struct Report {
    pub(super) candidate: &'static str,
    pub(super) progress: Progress,
}

#[derive(Debug)]
pub(super) enum Progress {
    Elected(Fence),
    /// The candidate has proclaimed this value and works.
    Working {
        value: String,
        resign_handle: ResignHandle,
        observer: Observer,
    },
    /// The work ended, while the candidate was still leading or not.
    Finished {
        still_leading: bool,
    },
    /// The candidate no longer leads.
    Resigned(LeadershipEnd<()>),
    Failed(Broken),
}

/// A resource that only one leader may use at a time.
#[derive(Debug, Default)]
pub(super) struct Resource {
    users: AtomicU32,
    max_users: AtomicU32,
}

impl Resource {
    /// The largest number of concurrent users so far.
    pub(super) fn max_users(&self) -> u32 {
        self.max_users.load(Ordering::SeqCst)
    }

    fn enter(&self) -> Visit<'_> {
        let users = self.users.fetch_add(1, Ordering::SeqCst) + 1;
        self.max_users.fetch_max(users, Ordering::SeqCst);
        Visit(self)
    }
}

struct Visit<'a>(&'a Resource);

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(super) struct Candidate {
    thread: JoinHandle<()>,
    kill: oneshot::Sender<()>,
}

impl Candidate {
    /// Campaigns in the election `name`, and works when elected.
    ///
    /// # Errors
    ///
    /// The system has no thread.
    pub(super) fn start(
        candidate: &'static str,
        name: &str,
        (backend, ttl): (Backend, Duration),
        resource: Arc<Resource>,
        reports: UnboundedSender<Report>,
    ) -> io::Result<Self> {
        let (kill, mut killed) = oneshot::channel();
        let name = name.to_owned();
        let run = move || {
            let report = |progress| drop(reports.send(Report { candidate, progress }));
            let campaign = async {
                select! {
                    end = run(candidate, &name, (backend, ttl), &resource, &report) => end,
                    _ = &mut killed => Ok(()),
                }
            };
            // Dropping the runtime drops the driver on it and its connection, so a killed candidate
            // cleans nothing up, like a killed process.
            let end = match tokio_runtime() {
                Ok(runtime) => runtime.block_on(campaign),
                Err(failed) => Err(failed.why.into()),
            };
            if let Err(error) = end {
                report(Progress::Failed(error));
            }
        };
        Ok(Self { thread: thread::Builder::new().name(candidate.into()).spawn(run)?, kill })
    }

    /// Kills the candidate and waits until it is gone.
    pub(super) fn kill(self) {
        let Self { thread, kill } = self;
        // Fails if the candidate has already ended.
        let _ = kill.send(());
        let _ = thread.join();
    }

    pub(super) fn join(self) {
        // A panic was printed, and its missing reports are noticed.
        let _ = self.thread.join();
    }
}

async fn run(
    candidate: &'static str,
    name: &str,
    (backend, ttl): (Backend, Duration),
    resource: &Resource,
    report: &impl Fn(Progress),
) -> Result<(), Broken> {
    let client = backend.connect().map_err(|failed| failed.why)?;
    let mut leadership = client.election(name).ttl(ttl).campaign(candidate).await?;
    report(Progress::Elected(leadership.fence().ok_or("a leadership has a fencing token")?));
    let value = format!("{candidate}, at work");
    leadership.proclaim(value.clone()).await?;
    report(Progress::Working { value, resign_handle: leadership.resign_handle(), observer: leadership.observer() });
    let observer = leadership.observer();
    // Two steps: the work ends first, and then the leader resigns.
    // E10
    let end = leadership
        .lead(|stop| async {
            work(stop, resource).await;
            report(Progress::Finished { still_leading: observer.is_held() });
        })
        .await;
    report(Progress::Resigned(end));
    client.shutdown(SHUTDOWN_TIMEOUT).await;
    Ok(())
}

/// Works piece by piece until the stop request, then finishes the current piece.
async fn work(stop: StopSignal, resource: &Resource) {
    let _visit = resource.enter();
    while !stop.is_raised() {
        time::sleep(WORK_INTERVAL).await;
    }
    time::sleep(WIND_DOWN_TIME).await;
}

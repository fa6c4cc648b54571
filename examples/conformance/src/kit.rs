//! Helpers for scenarios.

use core::fmt::Debug;
use core::future::poll_fn;
use core::net::SocketAddr;
use core::pin::{Pin, pin};
use core::task::Poll;
use core::time::Duration;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use lock_driver::{Client, Guard, Host, Settings};
use lock_proto::Release;
use lock_testkit::TIMEOUT;

use crate::task::{Controls, Task, TestHost};
use crate::{Runtime, Server};

pub(crate) const MS: Duration = Duration::from_millis(1);
/// Exceeds [`TIMEOUT`], so that nothing in a test ends because of it.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// How late a busy machine may run something that is due.
pub(crate) const SLACK: Duration = Duration::from_millis(500);

/// A runtime with helpers for scenarios.
pub struct Kit<R> {
    runtime: Arc<R>,
}

#[expect(clippy::new_without_default, reason = "it starts a runtime")]
impl<R: Runtime> Kit<R> {
    /// Starts a new runtime.
    #[must_use]
    pub fn new() -> Self {
        Self { runtime: Arc::new(R::new()) }
    }

    pub(crate) fn runtime(&self) -> Arc<R> {
        Arc::clone(&self.runtime)
    }

    pub(crate) fn client(&self, url: &str) -> Client {
        self.with(Settings::parse([url]).unwrap())
    }

    pub(crate) fn with(&self, settings: impl Into<Settings>) -> Client {
        self.runtime.connect(settings.into()).unwrap()
    }

    /// A client whose driver finds these addresses for `name.test`.
    pub(crate) fn resolving_to(&self, addresses: Vec<SocketAddr>, settings: Settings) -> Client {
        self.start(TestHost::with_addresses(self.runtime.host(), addresses), settings)
    }

    /// A client whose driver is subject to these faults.
    pub(crate) fn with_controls(&self, controls: &Controls, settings: Settings) -> Client {
        self.start(TestHost::with_controls(self.runtime.host(), controls), settings)
    }

    fn start(&self, host: TestHost<R::Host>, settings: Settings) -> Client {
        let (client, driver) = Task::client(host, settings).unwrap();
        self.runtime.spawn(driver);
        client
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(Task::work(task));
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        self.runtime.host().sleep(time).await;
    }

    pub(crate) async fn wait_for(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !condition() {
            assert!(Instant::now() < end, "not in time: {what}");
            self.sleep(Duration::from_millis(5)).await;
        }
    }

    /// Calls a blocking function on a thread of its own: the runtime may need this one for drivers.
    pub(crate) async fn blocking<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = thread::spawn(f);
        self.wait_for("the thread ends", || thread.is_finished()).await;
        thread.join().unwrap()
    }

    /// Waits until the clients have left nothing on the server.
    pub(crate) async fn clean(&self, server: &Server) {
        self.wait_for("nothing is left", || server.is_clean()).await;
    }

    /// Runs a future, which must end within [`TIMEOUT`].
    pub(crate) async fn in_time<F: Future>(&self, what: &str, future: F) -> F::Output {
        self.cancel_after(TIMEOUT, future).await.unwrap_or_else(|| panic!("not in time: {what}"))
    }

    /// Runs a future for at most `after`, then drops it.
    pub(crate) async fn cancel_after<F: Future>(&self, after: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut limit = pin!(self.runtime.host().sleep(after));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => limit.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Checks that a future does not complete `within`, and drops it.
    pub(crate) async fn still_waits<F: Future<Output: Debug>>(&self, within: Duration, future: F) {
        if let Some(output) = self.cancel_after(within, future).await {
            panic!("it no longer waits: {output:?}");
        }
    }

    /// Polls a future once, then drops it.
    pub(crate) async fn poll_once<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    /// Drops the future after one poll, then after two, and so on until it completes, so that it is
    /// dropped at every await point.
    pub(crate) async fn cancel_at_every_await<F: Future>(&self, mut begin: impl FnMut() -> F) -> F::Output {
        for last in 1..500 {
            let done = {
                let mut future = pin!(begin());
                let mut polls = 0;
                let run = poll_fn(|cx| {
                    polls += 1;
                    match future.as_mut().poll(cx) {
                        Poll::Ready(done) => Poll::Ready(Some(done)),
                        Poll::Pending if polls == last => Poll::Ready(None),
                        Poll::Pending => Poll::Pending,
                    }
                });
                self.in_time("the next await", run).await
            };
            if let Some(done) = done {
                return done;
            }
        }
        panic!("it never ends")
    }

    pub(crate) async fn take(&self, client: &Client, name: &str) -> Guard {
        self.in_time("acquire", client.lock(name).acquire()).await.unwrap()
    }

    pub(crate) async fn release(&self, guard: Guard) {
        assert_eq!(self.in_time("release", guard.release()).await, Release::Released);
    }
}

/// Runs futures concurrently until all have completed.
pub(crate) async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (future, done) in running.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                *done = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

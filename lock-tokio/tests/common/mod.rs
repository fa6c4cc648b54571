//! Waiting, taking and releasing, with time limits.
#![allow(dead_code, reason = "each test program uses a part of it")]

use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;
use std::time::Instant;

use lock_testkit::TIMEOUT;
use lock_tokio::{AcquireError, Acquiring, Blocked, Client, Guard, Release, Report};
use tokio::time::{sleep, timeout};

/// A session TTL that does not expire within [`TIMEOUT`].
pub(crate) const LONG_TTL: Duration = Duration::from_secs(60);

pub(crate) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(crate) async fn in_time<F: Future>(what: &str, future: F) -> F::Output {
    timeout(TIMEOUT, future).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

pub(crate) async fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < end, "not in time: {what}");
        sleep(ms(5)).await;
    }
}

pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(pin!(&mut *future).poll(cx))).await
}

/// Polls an acquisition until it is blocked for this reason.
pub(crate) async fn wait_until_blocked(waiting: &mut Acquiring, why: Blocked) {
    let end = Instant::now() + TIMEOUT;
    while waiting.blocked() != Some(why) {
        if let Ok(ended) = timeout(ms(3), &mut *waiting).await {
            panic!("it waits no longer: {ended:?}");
        }
        assert!(Instant::now() < end, "not in time: {why}, but {:?}", waiting.blocked());
    }
}

/// Acquires a lock that is free or will be soon.
pub(crate) async fn take(client: &Client, name: &str) -> Guard {
    in_time("acquire", client.lock(name).acquire()).await.unwrap()
}

pub(crate) async fn release(guard: Guard) {
    assert_eq!(in_time("release", guard.release()).await, Release::Released);
}

/// Shuts down a client and checks that nothing is left of it.
pub(crate) async fn shut_down(client: Client) {
    assert_eq!(in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
}

#[track_caller]
pub(crate) fn failure(result: Result<Guard, AcquireError>) -> AcquireError {
    result.map(|guard| panic!("{guard:?}")).unwrap_err()
}

#[track_caller]
pub(crate) fn timed_out(result: Result<Guard, AcquireError>) -> Report {
    let error = failure(result);
    assert!(error.is_timeout(), "{error}");
    error.report().unwrap().clone()
}

//! Waiting for a lock or an office, and telling why it takes so long.

use core::future::poll_fn;
use core::pin::Pin;

use lock_proto::redis::Blocked;

/// Awaits `waiting`; each time the reason changes for which it waits, `tell` is given it.
pub(crate) async fn told<F: Future + Unpin>(
    mut waiting: F,
    blocked: impl Fn(&F) -> Option<Blocked>,
    mut tell: impl FnMut(Blocked),
) -> F::Output {
    let mut last = None;
    poll_fn(move |cx| {
        let poll = Pin::new(&mut waiting).poll(cx);
        let now = blocked(&waiting);
        if poll.is_pending() && now != last {
            last = now;
            now.map(&mut tell);
        }
        poll
    })
    .await
}

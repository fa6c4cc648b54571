//! Waits for a lock or a leadership, and reports why it is still waiting.

use core::future::poll_fn;
use core::pin::Pin;

use lock_proto::redis::Blocked;

/// Awaits `waiting`, and calls `report` each time the reason for waiting changes.
pub(crate) async fn report_waiting<F: Future + Unpin>(
    mut waiting: F,
    blocked: impl Fn(&F) -> Option<Blocked>,
    mut report: impl FnMut(Blocked),
) -> F::Output {
    let mut last = None;
    poll_fn(move |cx| {
        let poll = Pin::new(&mut waiting).poll(cx);
        let now = blocked(&waiting);
        if poll.is_pending() && now != last {
            last = now;
            now.map(&mut report);
        }
        poll
    })
    .await
}

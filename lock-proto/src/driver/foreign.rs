//! Foreign code: log subscribers, wakers, and what drops with a waker.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::panic::AssertUnwindSafe;
use core::task::Waker;
use std::panic::catch_unwind;

/// Runs foreign code. A panic ends here, so that all others are still notified. The panic hook has
/// reported it. Returns false after a panic.
pub(super) fn foreign(code: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(code)).is_ok()
}

/// As [`foreign`], for each item.
pub(super) fn foreign_for_each<I: ExactSizeIterator>(mut items: I, mut code: impl FnMut(I::Item)) {
    while items.len() > 0 {
        foreign(|| items.by_ref().for_each(&mut code));
    }
}

/// A waker that catches the panics of another one. If a waker panics in
/// [`Event::notify`](event_listener::Event::notify), the event loses count of its listeners.
struct CatchingWaker(Waker);

impl Wake for CatchingWaker {
    fn wake(self: Arc<Self>) {
        // A panic of its drop is caught as well.
        foreign(move || self.0.wake_by_ref());
    }
}

/// The [`CatchingWaker`] of the last poll, which the next poll uses again.
#[derive(Default)]
pub(super) struct CatchingWakers(Option<(Arc<CatchingWaker>, Waker)>);

impl CatchingWakers {
    pub(super) fn wrap(&mut self, waker: &Waker) -> &Waker {
        let last = self.0.take().filter(|(catching, _)| catching.0.will_wake(waker));
        let (_, wrapped) = self.0.insert(last.unwrap_or_else(|| {
            let catching = Arc::new(CatchingWaker(waker.clone()));
            (Arc::clone(&catching), catching.into())
        }));
        wrapped
    }
}

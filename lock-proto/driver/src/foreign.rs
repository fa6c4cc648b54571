//! Foreign code: log subscribers, wakers, and what drops with a waker.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::panic::AssertUnwindSafe;
use core::task::Waker;
use std::panic::catch_unwind;

/// Runs foreign code. A panic ends here, so that all others are still notified. The panic hook has
/// reported it. Returns false after a panic.
pub(super) fn foreign(code: impl FnOnce()) -> bool {
    foreign_value(code).is_some()
}

/// As [`foreign`], with the code's value. `None` after a panic.
pub(super) fn foreign_value<T>(code: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(code)).ok()
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

/// A waker that wakes this one and catches its panics.
pub(super) fn catching(waker: &Waker) -> Waker {
    Arc::new(CatchingWaker(waker.clone())).into()
}

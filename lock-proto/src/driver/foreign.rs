//! Foreign code: log subscribers, wakers, and what drops with a waker.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::panic::AssertUnwindSafe;
use core::task::Waker;
use std::panic::catch_unwind;

/// Runs foreign code. Its panic, which the hook has reported, keeps nobody else uninformed.
pub(super) fn foreign(code: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(code));
}

/// As [`foreign`], for each item.
pub(super) fn foreign_for_each<I: ExactSizeIterator>(mut items: I, mut code: impl FnMut(I::Item)) {
    while items.len() > 0 {
        foreign(|| items.by_ref().for_each(&mut code));
    }
}

/// A waker whose panic does not reach the list of an event, which would lose count of its
/// listeners.
struct Contained(Waker);

impl Wake for Contained {
    fn wake(self: Arc<Self>) {
        // Dropped within, too.
        foreign(move || self.0.wake_by_ref());
    }
}

/// Wraps the waker of a task in one that does not panic, and keeps it for the next poll.
#[derive(Default)]
pub(super) struct Container(Option<(Arc<Contained>, Waker)>);

impl Container {
    pub(super) fn contain(&mut self, waker: &Waker) -> &Waker {
        let known = self.0.take().filter(|(contained, _)| contained.0.will_wake(waker));
        let (_, wrapped) = self.0.insert(known.unwrap_or_else(|| {
            let contained = Arc::new(Contained(waker.clone()));
            (Arc::clone(&contained), contained.into())
        }));
        wrapped
    }
}

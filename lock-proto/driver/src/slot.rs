//! What the driver delivers to one future: the latest value, and the end.

use core::task::{Context, Poll, Waker};
use std::sync::Mutex;

use super::shared::Batch;
use super::ticket::{locked, locked_if_possible};

pub(super) struct Slot<T>(Mutex<State<T>>);

struct State<T> {
    /// The latest value, if it was not taken yet. Earlier ones are obsolete.
    latest: Option<T>,
    ended: bool,
    waker: Option<Waker>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Mutex::new(State { latest: None, ended: false, waker: None }))
    }
}

impl<T> Slot<T> {
    /// Delivers a value, unless the last one was delivered before, or a thread that a forked child
    /// lacks holds the mutex.
    pub(super) fn notify(&self, value: T, is_last: bool, forked: bool, batch: &mut Batch) {
        let Some(mut state) = locked_if_possible(&self.0, forked) else { return };
        if state.ended {
            return;
        }
        state.ended = is_last;
        state.latest = Some(value);
        batch.wakers.extend(state.waker.take());
    }

    /// Resolves to `None` after the last value.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<Option<T>> {
        // Cloning or dropping a waker is foreign code: not under the mutex.
        let waker = cx.waker().clone();
        let mut state = locked(&self.0);
        if let Some(value) = state.latest.take() {
            return Poll::Ready(Some(value));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        let old = state.waker.replace(waker);
        drop(state);
        drop(old);
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forked_child_does_not_wait_for_mutex_of_slot() {
        let slot = Slot::default();
        let _of_parent = locked(&slot.0);
        slot.notify(1, true, true, &mut Batch::default());
    }
}

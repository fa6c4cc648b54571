//! Wake-ups among the tasks of one connection. A call passes through several tasks of hyper's.
//! Wake-ups while the connection is polled concern it alone; only later ones go to the driver.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Context;

use futures_util::task::AtomicWaker;

/// Waker of the tasks of one connection.
#[derive(Default)]
pub(super) struct Alarm {
    polling: AtomicBool,
    raised: AtomicBool,
    driver: AtomicWaker,
}

impl Alarm {
    /// Begins a poll of the connection, by this driver.
    pub(super) fn begin(&self, cx: &Context<'_>) {
        self.driver.register(cx.waker());
        self.polling.store(true, Ordering::SeqCst);
    }

    /// Returns true if a task was woken since the last call.
    pub(super) fn take(&self) -> bool {
        self.raised.swap(false, Ordering::SeqCst)
    }

    /// Ends the poll. Returns true if a task was woken meanwhile. Later wake-ups go to the driver.
    pub(super) fn end(&self) -> bool {
        // `wake_by_ref` has the opposite order, so that one of the two sees the other's store.
        self.polling.store(false, Ordering::SeqCst);
        self.take()
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.raised.store(true, Ordering::SeqCst);
        if !self.polling.load(Ordering::SeqCst) {
            self.driver.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU32;
    use core::task::Waker;

    use super::*;

    #[derive(Default)]
    struct CountedWakes(AtomicU32);

    impl Wake for CountedWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn only_wake_outside_poll_wakes_driver() {
        let (driver, alarm) = (Arc::<CountedWakes>::default(), Arc::<Alarm>::default());
        let (driver_waker, waker) = (Waker::from(Arc::clone(&driver)), Waker::from(Arc::clone(&alarm)));
        let woken = || driver.0.load(Ordering::SeqCst);
        alarm.begin(&Context::from_waker(&driver_waker));
        assert!(!alarm.take(), "nobody was woken");
        waker.wake_by_ref();
        assert!(alarm.take(), "a task was woken by another");
        assert!(!alarm.take(), "woken once");
        waker.wake_by_ref();
        assert!(alarm.end(), "woken before the end is for the connection");
        assert_eq!(woken(), 0);
        waker.wake_by_ref();
        assert_eq!(woken(), 1, "woken after the end is for the driver");
        alarm.begin(&Context::from_waker(&driver_waker));
        assert!(alarm.end(), "and the connection has it to do");
    }
}

//! Which of many futures were woken: only those are polled.

use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::Waker;
use std::sync::Mutex;

use crate::ticket::locked;

/// The futures that were woken, by their numbers.
#[derive(Default)]
pub(super) struct Woken(Mutex<WokenTasks>);

#[derive(Default)]
struct WokenTasks {
    ready: Vec<u64>,
    driver: Option<Waker>,
}

impl Woken {
    /// Sets whom to wake. Cloning and dropping a waker is foreign code: not under the mutex.
    pub(super) fn set_driver(&self, waker: &Waker) {
        let is_same = |state: &WokenTasks| state.driver.as_ref().is_some_and(|driver| driver.will_wake(waker));
        if !is_same(&locked(&self.0)) {
            let waker = waker.clone();
            let old = locked(&self.0).driver.replace(waker);
            drop(old);
        }
    }

    /// Returns those that were woken since the last call, each once.
    pub(super) fn take(&self) -> Vec<u64> {
        core::mem::take(&mut locked(&self.0).ready)
    }

    fn add(&self, number: u64) {
        let driver = {
            let mut state = locked(&self.0);
            state.ready.push(number);
            state.driver.take()
        };
        // It is set again before the next poll.
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

/// The waker of one future.
pub(super) struct OneWaker {
    number: u64,
    woken: Arc<Woken>,
    is_ready: AtomicBool,
}

impl OneWaker {
    /// Creates the waker of a future that is to be polled for the first time.
    pub(super) fn new(number: u64, woken: &Arc<Woken>) -> Arc<Self> {
        let one = Arc::new(Self { number, woken: Arc::clone(woken), is_ready: AtomicBool::new(false) });
        one.wake_by_ref();
        one
    }

    /// The future is polled now: it may be woken again.
    pub(super) fn begin(&self) {
        self.is_ready.store(false, Ordering::SeqCst);
    }
}

impl Wake for OneWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_ready.swap(true, Ordering::SeqCst) {
            self.woken.add(self.number);
        }
    }
}

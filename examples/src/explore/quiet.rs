//! Suppresses the messages of panics in simulated machines, which are findings.

use core::cell::Cell;
use std::panic;
use std::sync::Once;

std::thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` without printing panics of this thread. The outcome of a run records its panics.
pub(super) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    // A guard resets the flag, because `work` may panic itself.
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            QUIET.set(self.0);
        }
    }
    let _back = Back(QUIET.replace(true));
    work()
}

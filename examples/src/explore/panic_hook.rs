//! Suppresses the messages of panics in simulated machines, which are findings.

use core::cell::Cell;
use std::panic;
use std::sync::Once;

std::thread_local! {
    static SUPPRESSED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` without printing panics of this thread. The outcome of a run records its panics.
pub(super) fn without_panic_messages<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default_hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !SUPPRESSED.get() {
                default_hook(info);
            }
        }));
    });
    // A guard resets the flag, because `work` may panic itself.
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            SUPPRESSED.set(self.0);
        }
    }
    let _restore = Restore(SUPPRESSED.replace(true));
    work()
}

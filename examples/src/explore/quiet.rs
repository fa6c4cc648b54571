//! Panics of simulated machines are findings, not news for the terminal.

use core::cell::Cell;
use std::panic;
use std::sync::Once;

std::thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Does `work`, whose panics on this thread say nothing: a run that panics is a run that breaks a rule, and tells so in its outcome.
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
    // Set back by a guard: `work` may panic itself.
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            QUIET.set(self.0);
        }
    }
    let _back = Back(QUIET.replace(true));
    work()
}

//! What a process was told about SIGPIPE. Rust's runtime ignores the signal before `main`, and
//! `Command` resets it, so only code that runs earlier can tell.

use std::fs::read_to_string;
use std::sync::atomic::{AtomicBool, Ordering};

static IGNORED: AtomicBool = AtomicBool::new(false);

#[used]
#[expect(unsafe_code, reason = "nothing else runs before Rust's runtime")]
// SAFETY: the loader calls the functions of this section once, before `main`. `look` reads a file
// and sets a flag; it needs nothing that `main` sets up, and cannot panic.
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    /// SIGPIPE is signal 13, so bit 12.
    const PIPE: u64 = 1 << 12;
    let status = read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    IGNORED.store(mask.is_some_and(|mask| mask & PIPE != 0), Ordering::Relaxed);
}

/// Returns true if SIGPIPE was ignored when this process was started, as systemd does for services.
#[must_use]
pub fn sigpipe_was_ignored() -> bool {
    IGNORED.load(Ordering::Relaxed)
}

//! Signals that this process was told to ignore.

use std::fs::read_to_string;

use signal_hook::consts::SIGHUP;

/// Returns true if the signal is ignored: SIGHUP by `nohup`, SIGINT by a shell without job control
/// for a command in the background. Where the system does not tell, only SIGHUP counts as ignored.
///
/// A handler would end that, also for a command that is started later. Ask before there is one.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.map_or(signal == SIGHUP, |mask| mask >> (signal - 1) & 1 == 1)
}

/// Returns true if SIGPIPE was ignored at the start. Rust's runtime ignores it later in any case.
pub(crate) fn sigpipe_was_ignored() -> bool {
    #[cfg(target_os = "linux")]
    return lock_testkit::sigpipe_was_ignored();
    #[cfg(not(target_os = "linux"))]
    false
}

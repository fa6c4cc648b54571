//! Resource usage of this process.

use core::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time of all threads so far, user and system.
pub(super) fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the resident memory in bytes, if the system reports it (Linux).
pub(super) fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Raises the limit of open files for this process and the servers that it starts: each client has
/// its own connections.
pub(super) fn raise_limits() {
    let limit = getrlimit(Resource::Nofile);
    // On failure the limit stays, and failing connections are reported.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

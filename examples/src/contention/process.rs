//! Resource usage of this process.

use core::time::Duration;
use std::fs;

use rustix::param::clock_ticks_per_second;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time of all threads so far, user and system.
pub(super) fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the resident memory in bytes, if the system reports it (Linux).
pub(super) fn resident() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Returns the processor time, user and system, of the process that listens on this port of this
/// machine, if it can be seen (Linux).
pub(super) fn cpu_of_listener(port: u16) -> Option<Duration> {
    let is_socket = |link: &fs::DirEntry, inode: &str| {
        fs::read_link(link.path()).is_ok_and(|target| target.as_os_str() == format!("socket:[{inode}]").as_str())
    };
    let inode = ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|table| listening_socket(table, port))?;
    let process = fs::read_dir("/proc").ok()?.flatten().find(|process| {
        let sockets = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        sockets.into_iter().any(|link| is_socket(&link, &inode))
    })?;
    let stat = fs::read_to_string(process.path().join("stat")).ok()?;
    // The name may contain any character, and ends at the last parenthesis.
    let mut ticks = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks = ticks.next()?.parse::<u64>().ok()? + ticks.next()?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 1_000 / clock_ticks_per_second()))
}

/// Finds the inode of a listening socket in a table of the kernel.
fn listening_socket(table: &str, port: u16) -> Option<String> {
    const LISTEN: &str = "0A";
    let wanted = format!(":{port:04X}");
    let text = fs::read_to_string(table).ok()?;
    // Number, local address, remote address, state, …, inode as the tenth field.
    let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|fields| {
        fields.get(1).is_some_and(|address| address.ends_with(&wanted)) && fields.get(3) == Some(&LISTEN)
    })?;
    line.get(9).map(|&inode| inode.to_owned())
}

/// Raises the limit of open files for this process and the servers that it starts: each client has
/// its own connections.
pub(super) fn raise_limits() {
    let limit = getrlimit(Resource::Nofile);
    // On failure the limit stays, and failing connections are reported.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

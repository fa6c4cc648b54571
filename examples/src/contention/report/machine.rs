//! The environment in which the report was made.

use std::ffi::OsString;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) fn facts(args: &[OsString], servers: &[(&'static str, String)]) -> Vec<(&'static str, String)> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let model = line_of("/proc/cpuinfo", "model name").unwrap_or_else(|| "an unknown model".to_owned());
    let memory =
        line_of("/proc/meminfo", "MemTotal").and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    let memory = memory.map_or_else(String::new, |kib| format!(", {} GiB", (kib + (1 << 19)) >> 20));
    let system = rustix::system::uname();
    let text = |part: &core::ffi::CStr| part.to_string_lossy().into_owned();
    let load = fs::read_to_string("/proc/loadavg").ok();
    let load = load.as_deref().and_then(|text| text.split_whitespace().next()).unwrap_or("unknown");
    let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    let mut facts = vec![
        ("made", format!("{} UTC, with contention {}", now(), env!("CARGO_PKG_VERSION"))),
        ("command line", format!("contention {}", words.join(" "))),
        ("machine", format!("{cores} × {model}{memory}; the clients and all servers share it, over loopback")),
        ("load before", format!("{load} processes ready to run on the average of a minute")),
        ("system", format!("{} {} {}", text(system.sysname()), text(system.release()), text(system.machine()))),
    ];
    if cfg!(debug_assertions) {
        facts.push(("build", "without optimisation: these figures say little".to_owned()));
    }
    facts.extend(servers.iter().cloned());
    facts
}

/// Returns the value of the first matching line in a file of `/proc`.
fn line_of(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}", seconds / 3_600 % 24, seconds / 60 % 60)
}

/// Converts a number of days since 1970-01-01 to year, month and day.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn days_since_epoch_convert_to_dates() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (789, (1972, 2, 29)),
            (11_016, (2000, 2, 29)),
            (19_722, (2023, 12, 31)),
            (19_723, (2024, 1, 1)),
        ] {
            assert_eq!(civil(days), date, "{days}");
        }
    }
}

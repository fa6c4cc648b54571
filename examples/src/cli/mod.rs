//! What the command-line tools share: how times are written, how an end is told.

pub mod duration;
pub mod exit;
pub(crate) mod name;
pub mod runtime;

use core::fmt;
use core::time::Duration;
use std::io::Write as _;

/// How long the servers are given to confirm that nothing is left behind.
pub(crate) const GOODBYE: Duration = Duration::from_secs(2);

/// A command line that cannot be carried out. Names the value and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<lexopt::Error> for Usage {
    fn from(error: lexopt::Error) -> Self {
        Self(error.to_string())
    }
}

/// An error of that kind.
pub(crate) fn usage<T>(text: impl Into<String>) -> Result<T, Usage> {
    Err(Usage(text.into()))
}

/// The value of the option that was read last.
pub(crate) fn text(parser: &mut lexopt::Parser) -> Result<String, Usage> {
    parser.value()?.into_string().map_err(|value| Usage(format!("{value:?} is no UTF-8")))
}

/// Reads a length of time.
pub(crate) fn time(option: &str, value: &str) -> Result<Duration, Usage> {
    duration::parse(value)
        .ok_or_else(|| Usage(format!("{option}: {value:?} is no time: write it like 500ms, 10s or 1m30s")))
}

/// Reads one of a few words.
pub(crate) fn choice<T: Copy>(option: &str, value: &str, allowed: &[(&str, T)]) -> Result<T, Usage> {
    match allowed.iter().find(|(name, _)| *name == value) {
        Some((_, choice)) => Ok(*choice),
        None => {
            let names: Vec<&str> = allowed.iter().map(|(name, _)| *name).collect();
            usage(format!("{option}: {value:?} is none of {}", names.join(", ")))
        }
    }
}

/// The TTL of a lease for this long: etcd counts whole seconds.
pub(crate) fn whole_seconds(ttl: Duration) -> Duration {
    Duration::from_secs(ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0)))
}

/// One line on stdout, at once.
pub(crate) fn print(what: &dyn fmt::Display) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{what}");
    let _ = stdout.flush();
}

//! The text log of a run. The same seed produces the same bytes.

use alloc::collections::VecDeque;
use alloc::string::String;
use core::fmt::{self, Write as _};

use super::fingerprint::Fingerprint;
use lock_proto::Instant;

/// How much of the log to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// Nothing. Log lines are not even formatted.
    Nothing,
    /// A digest and the number of lines.
    Digest,
    /// The digest, and this many of the last lines.
    Lines(usize),
}

/// The log: one line per event, and a digest of all lines ever written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Journal {
    lines: VecDeque<String>,
    keep: Keep,
    digest: Digest,
    written: u64,
    /// Digest of the clients' behaviour, independent of names.
    pub(super) fingerprint: Fingerprint,
}

/// FNV-1a over text as it is formatted, without an intermediate string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Digest(u64);

impl fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(())
    }
}

impl Journal {
    pub(crate) const fn new(keep: Keep) -> Self {
        let fingerprint = Fingerprint::new(!matches!(keep, Keep::Nothing));
        // The offset basis of FNV-1a.
        Self { lines: VecDeque::new(), keep, digest: Digest(0xcbf2_9ce4_8422_2325), written: 0, fingerprint }
    }

    pub(crate) fn write(&mut self, now: Instant, what: fmt::Arguments<'_>) {
        let Keep::Lines(limit) = self.keep else {
            if self.keep == Keep::Digest {
                self.written += 1;
                // Writing to a digest cannot fail; a failing `Display` loses its text.
                let _ = writeln!(self.digest, "{now} {what}");
            }
            return;
        };
        let mut line = String::new();
        let _ = write!(line, "{now} {what}");
        let _ = writeln!(self.digest, "{line}");
        self.written += 1;
        self.lines.push_back(line);
        if self.lines.len() > limit {
            self.lines.pop_front();
        }
    }

    /// Returns whether lines are written at all.
    pub(crate) fn is_on(&self) -> bool {
        self.keep != Keep::Nothing
    }

    pub(crate) fn text(&self) -> String {
        self.tail(usize::MAX)
    }

    pub(crate) fn tail(&self, count: usize) -> String {
        let mut text = String::new();
        for line in self.lines.iter().skip(self.lines.len().saturating_sub(count)) {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    pub(crate) const fn digest(&self) -> (u64, u64) {
        (self.digest.0, self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_independent_of_retained_lines() {
        let mut all = [Journal::new(Keep::Lines(1)), Journal::new(Keep::Digest), Journal::new(Keep::Nothing)];
        for journal in &mut all {
            journal.write(Instant::from_millis(1), format_args!("one {}", 2));
            journal.write(Instant::from_millis(2), format_args!("three"));
        }
        assert_eq!(all[0].digest(), all[1].digest());
        assert_eq!(all[0].text(), "0.002000s three\n");
        assert_eq!((all[1].text().as_str(), all[2].digest().1), ("", 0));
    }
}

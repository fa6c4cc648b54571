//! The text log of a run: the same seed gives the same bytes.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use core::fmt;

use crate::redis::script;
use crate::time::Instant;

/// Everything that happened, one line each, and a digest of all lines ever written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Journal {
    lines: VecDeque<String>,
    limit: usize,
    digest: u64,
    written: u64,
}

impl Journal {
    pub(super) const fn new(limit: usize) -> Self {
        // The offset basis of FNV-1a.
        Self { lines: VecDeque::new(), limit, digest: 0xcbf2_9ce4_8422_2325, written: 0 }
    }

    pub(super) fn write(&mut self, now: Instant, what: fmt::Arguments<'_>) {
        let line = format!("{now} {what}");
        for byte in line.bytes().chain([b'\n']) {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.written += 1;
        self.lines.push_back(line);
        if self.lines.len() > self.limit {
            self.lines.pop_front();
        }
    }

    pub(super) fn text(&self) -> String {
        self.tail(usize::MAX)
    }

    pub(super) fn tail(&self, count: usize) -> String {
        let mut text = String::new();
        for line in self.lines.iter().skip(self.lines.len().saturating_sub(count)) {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    pub(super) const fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) const fn written(&self) -> u64 {
        self.written
    }
}

/// A command for the log: scripts by their name, the rest as text.
pub(super) fn command(args: &[alloc::vec::Vec<u8>]) -> String {
    let mut text = String::new();
    for (i, arg) in args.iter().enumerate() {
        if i > 0 {
            text.push(' ');
        }
        let known =
            script::ALL.iter().find(|s| s.source.as_bytes() == arg.as_slice() || s.sha1.as_bytes() == arg.as_slice());
        match known {
            Some(script) => text.push_str(&format!("<{}>", script.name)),
            None => text.push_str(&format!("{}", arg.escape_ascii())),
        }
    }
    text
}

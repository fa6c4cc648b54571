//! Output on stdout.

use core::fmt;
use std::io::{self, Write as _};

use super::exit;

/// Prints one line on stdout and flushes it.
pub(crate) fn try_print(what: &dyn fmt::Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{what}")?;
    stdout.flush()
}

/// Prints one line on stdout, if that is possible.
pub(crate) fn print(what: &dyn fmt::Display) {
    let _ = try_print(what);
}

/// Prints the text that the command line requests. Returns the exit code.
pub(crate) fn print_text(tool: &str, text: &str) -> u8 {
    let Err(error) = try_print(&text.trim_end()) else { return exit::SUCCESS };
    let _ = writeln!(io::stderr(), "{tool}: {}", not_written(&error));
    exit::NOT_WRITTEN
}

/// The message about a line that could not be written.
pub(crate) fn not_written(error: &io::Error) -> String {
    format!("stdout cannot be written: {error}")
}

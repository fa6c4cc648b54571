//! Output on stdout.

use core::fmt;
use std::io::{self, Write as _};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

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

/// Calls `closed` on another thread once nobody reads stdout any more, if it is a pipe.
pub(crate) fn on_unread(closed: impl FnOnce() + Send + 'static) {
    thread::spawn(move || {
        let stdout = io::stdout();
        loop {
            // Errors and the end are reported without being asked for.
            let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
            match poll(&mut watched, None) {
                Err(Errno::INTR) => {}
                Ok(_) if watched[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) => return closed(),
                Ok(_) | Err(_) => return,
            }
        }
    });
}

/// The message when nobody reads stdout any more.
pub(crate) const UNREAD: &str = "nobody reads stdout any more";

//! Errors of the file system.

use alloc::format;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::register::store::RegisterError;

/// Adds what was tried to an error.
pub(super) fn named(what: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

/// The error of a step without which nothing is written.
// RF6
pub(super) fn not_applied(what: &str, path: &Path, error: &io::Error) -> RegisterError {
    let text = named(what, path, error);
    if is_permanent(error.kind()) { RegisterError::refused(text) } else { RegisterError::not_sent(text) }
}

/// Returns true if a retry does not help until somebody changes something. A full disk may have room
/// again at any time, and the number of open files may fall.
const fn is_permanent(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::Unsupported
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::InvalidFilename
            | ErrorKind::InvalidInput
    )
}

/// The error of the step that makes a record visible: whether it did is certain for errors that the
/// system finds before it begins.
// RF6
pub(super) fn of_publication(path: &Path, error: &io::Error) -> RegisterError {
    let kind = error.kind();
    let before =
        is_permanent(kind) || matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::NotFound);
    let what = "cannot publish the record";
    if before { not_applied(what, path, error) } else { RegisterError::unknown(named(what, path, error)) }
}

//! What an error of the store means for a lock.

use lock_driver::register::RegisterError;
use object_store::Error;

/// Returns what a failed request means, unless a condition failed.
///
/// The text of the errors is searched for the store's codes: the client has no other access to them.
// RG4
#[expect(clippy::wildcard_enum_match_arm, reason = "what is not known better is unknown")]
pub(crate) fn classify(error: &Error) -> RegisterError {
    let text = text(error);
    let refused = |remedy: &str| RegisterError::refused(format!("{remedy}: {text}"));
    if ["NoSuchBucket", "ContainerNotFound"].iter().any(|code| text.contains(&format!("<Code>{code}</Code>"))) {
        return refused("the bucket does not exist; create it, or name another one");
    }
    if text.contains("redirect without LOCATION") {
        return refused("the bucket is in another region; name its region");
    }
    match error {
        Error::PermissionDenied { .. } => refused(
            "no permission; allow reading and writing of objects, and listing of the bucket, \
             without which S3 answers so for an absent object",
        ),
        Error::Unauthenticated { .. } => refused("the store rejected the credentials; configure valid ones"),
        Error::NotImplemented { .. } | Error::NotSupported { .. } => {
            refused("the store has no conditional writes; use another one")
        }
        Error::InvalidPath { .. } | Error::UnknownConfigurationKey { .. } => RegisterError::refused(text),
        // Throttled before anything was done.
        Error::Generic { .. } if text.contains("status code: 429") => RegisterError::not_sent(text),
        Error::Generic { .. } if is_unsent(error) => RegisterError::not_sent(text),
        _ => RegisterError::unknown(text),
    }
}

/// Returns an error as one line. It may have a whole page of a proxy in it.
pub(crate) fn text(error: &Error) -> String {
    error.to_string().chars().take(500).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns true if no connection was made.
#[cfg(feature = "cloud")]
fn is_unsent(error: &Error) -> bool {
    use core::error::Error as _;

    use object_store::client::{HttpError, HttpErrorKind};

    let mut source = error.source();
    while let Some(error) = source {
        if let Some(http) = error.downcast_ref::<HttpError>() {
            return http.kind() == HttpErrorKind::Connect;
        }
        source = error.source();
    }
    false
}

#[cfg(not(feature = "cloud"))]
fn is_unsent(_: &Error) -> bool {
    false
}

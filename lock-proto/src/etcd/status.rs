//! Classifies the gRPC status of a failed request. Codes and messages are those of
//! `api/v3rpc/rpctypes/error.go` in etcd's source, verified on 3.4. A code that gRPC stacks also
//! produce does not count as a refusal: the outcome is unknown.
// E9

use super::request::Refusal;
use super::rpc::{Code, Status};
use crate::lock::{ErrorClass, ServerError, printable};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Meaning {
    Refused(Refusal),
    /// Not executed for lack of a valid token. Log in again; without a login, report this error.
    LogIn(ServerError),
    /// Reply to a login: authentication is disabled on the cluster.
    LoginNotNeeded,
    /// It may have been executed.
    Unknown {
        error: ServerError,
        /// Another member may succeed.
        elsewhere: bool,
    },
}

/// Prefix of the messages of etcd itself.
const ETCD_PREFIX: &str = "etcdserver:";

/// Messages about missing, expired or wrong tokens.
const TOKEN_ERRORS: &[&str] = &["invalid auth token", NO_LOGIN];

/// The message about a request without a token.
const NO_LOGIN: &str = "user name is empty";

/// Hint appended to it.
const NEEDS_LOGIN: &str = " (the cluster requires a login)";

/// Messages about a token from before a change of users or roles. The second one is that of early
/// releases of 3.4 and 3.5 (seen on 3.5.1), which report it with the code for unknown errors. The
/// request was not executed. Users may change again, so repeating it helps in the end.
const OLD_REVISION: &[&str] = &["revision of auth store is old", "auth: revision in header is old"];

impl Meaning {
    pub(super) fn of(status: &Status) -> Self {
        let message_contains = |words: &str| status.message.contains(words);
        let own = status.message.starts_with(ETCD_PREFIX);
        let hint = if message_contains(NO_LOGIN) { NEEDS_LOGIN } else { "" };
        let error = |class| ServerError { class, text: printable(&status.message, hint) };
        let refused = |class| Self::Refused(Refusal::Error(error(class)));
        let unknown = |elsewhere| Self::Unknown { error: error(ErrorClass::Unclear), elsewhere };
        match status.code {
            // The member has no leader or a new one, timed out, is a learner or is stopping.
            Code::Unavailable | Code::DataLoss => unknown(true),
            Code::Unknown | Code::InvalidArgument if OLD_REVISION.iter().any(|words| message_contains(words)) => {
                Self::LogIn(error(ErrorClass::Transient))
            }
            Code::Ok | Code::Cancelled | Code::Unknown | Code::DeadlineExceeded | Code::Aborted | Code::Internal => {
                unknown(false)
            }
            // Too many requests, database full, TTL too long. Otherwise limits of the gRPC stack.
            Code::ResourceExhausted | Code::OutOfRange if !own => unknown(false),
            Code::ResourceExhausted => refused(ErrorClass::Transient),
            Code::NotFound if message_contains("requested lease not found") => Self::Refused(Refusal::LeaseNotFound),
            Code::FailedPrecondition if message_contains("lease already exists") => Self::Refused(Refusal::LeaseExists),
            Code::FailedPrecondition if message_contains("authentication is not enabled") => Self::LoginNotNeeded,
            Code::FailedPrecondition if message_contains("not leader") => refused(ErrorClass::Reconnect),
            Code::Unauthenticated => Self::LogIn(error(ErrorClass::Refused)),
            Code::InvalidArgument if TOKEN_ERRORS.iter().any(|words| message_contains(words)) => {
                Self::LogIn(error(ErrorClass::Refused))
            }
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented => refused(ErrorClass::Refused),
        }
    }

    pub(super) fn elsewhere(&self) -> bool {
        matches!(self, Self::Unknown { elsewhere: true, .. })
            || matches!(self, Self::Refused(Refusal::Error(error)) if error.class == ErrorClass::Reconnect)
    }

    /// Returns true if only this request is at fault: too large, or unknown to the server.
    pub(super) fn blames_the_request(&self) -> bool {
        matches!(self, Self::Unknown { elsewhere: false, .. })
            || matches!(self, Self::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused)
    }

    pub(super) fn error(self, status: &Status) -> ServerError {
        match self {
            Self::Refused(Refusal::Error(error)) | Self::LogIn(error) | Self::Unknown { error, .. } => error,
            Self::Refused(Refusal::LeaseNotFound | Refusal::LeaseExists) | Self::LoginNotNeeded => {
                ServerError { class: ErrorClass::Refused, text: printable(&status.message, "") }
            }
        }
    }
}

/// Returns the error if a watch ended for lack of permission or of a valid token, or `None` if the
/// watch can be reopened. Only the text shows this, as in `rpc error: code = PermissionDenied desc
/// = etcdserver: permission denied` of etcd 3.4.23. Early releases of 3.4 and 3.5 say so for an
/// outdated token too.
pub(super) fn denial(reason: &str) -> Option<ServerError> {
    let mut texts = ["permission denied"].iter().chain(TOKEN_ERRORS).chain(OLD_REVISION);
    let denied = texts.any(|words| reason.contains(words));
    let text = reason.split_once(" desc = ").map_or(reason, |(_, text)| text);
    denied.then(|| ServerError { class: ErrorClass::Refused, text: printable(text, "") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::MAX_TEXT;

    fn of(code: Code, message: &str) -> Meaning {
        Meaning::of(&Status::new(code, message))
    }

    fn refused(code: Code, message: &str) -> ErrorClass {
        match of(code, message) {
            Meaning::Refused(Refusal::Error(error)) => error.class,
            other @ (Meaning::Refused(_) | Meaning::LogIn(_) | Meaning::LoginNotNeeded | Meaning::Unknown { .. }) => {
                panic!("{code:?} {message}: {other:?}")
            }
        }
    }

    /// Messages and codes from etcd 3.4.23, or from its source where they are hard to provoke.
    #[test]
    fn errors_are_classified_as_definite_or_unknown() {
        // E9
        for (code, message, elsewhere) in [
            (Code::Unavailable, "etcdserver: no leader", true),
            (Code::Unavailable, "etcdserver: leader changed", true),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure", true),
            (Code::Unavailable, "etcdserver: rpc not supported for learner", true),
            (Code::Unavailable, "transport is closing", true),
            (Code::DataLoss, "etcdserver: corrupt cluster", true),
            (Code::DeadlineExceeded, "context deadline exceeded", false),
            (Code::Cancelled, "context canceled", false),
            (Code::Unknown, "anything", false),
            (Code::Internal, "stream terminated by RST_STREAM", false),
            (Code::Aborted, "", false),
            (Code::Ok, "", false),
            (Code::ResourceExhausted, "h2 protocol error: enhance your calm", false),
            (Code::OutOfRange, "decoded message length too large", false),
        ] {
            let meaning = of(code, message);
            assert!(matches!(meaning, Meaning::Unknown { .. }), "{code:?} {message}: {meaning:?}");
            assert_eq!(meaning.elsewhere(), elsewhere, "{code:?} {message}");
        }
        for (code, message, class) in [
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", ErrorClass::Transient),
            (Code::ResourceExhausted, "etcdserver: too many requests", ErrorClass::Transient),
            (Code::FailedPrecondition, "etcdserver: not leader", ErrorClass::Reconnect),
            (Code::InvalidArgument, "etcdserver: request is too large", ErrorClass::Refused),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                ErrorClass::Refused,
            ),
            (Code::PermissionDenied, "etcdserver: permission denied", ErrorClass::Refused),
            (Code::OutOfRange, "etcdserver: too large lease TTL", ErrorClass::Refused),
            (Code::Unimplemented, "unknown service etcdserverpb.KV", ErrorClass::Refused),
            (Code::NotFound, "etcdserver: member not found", ErrorClass::Refused),
            (Code::AlreadyExists, "", ErrorClass::Refused),
        ] {
            assert_eq!(refused(code, message), class, "{code:?} {message}");
        }
        let (lease, exists) = ("etcdserver: requested lease not found", "etcdserver: lease already exists");
        assert_eq!(of(Code::NotFound, lease), Meaning::Refused(Refusal::LeaseNotFound));
        assert_eq!(of(Code::FailedPrecondition, exists), Meaning::Refused(Refusal::LeaseExists));
        let no_users = "etcdserver: authentication is not enabled";
        assert_eq!(of(Code::FailedPrecondition, no_users), Meaning::LoginNotNeeded);
    }

    #[test]
    fn invalid_token_requires_login() {
        // E9
        for (code, message) in [
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Code::InvalidArgument, "etcdserver: user name is empty"),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
            (Code::Unknown, "auth: revision in header is old"),
        ] {
            assert!(matches!(of(code, message), Meaning::LogIn(_)), "{message}");
        }
    }

    #[test]
    fn error_text_is_sanitized_and_truncated() {
        let status =
            Status::new(Code::PermissionDenied, alloc::format!("no\u{1b}[31m\n  {}", "x".repeat(2 * MAX_TEXT)));
        let text = Meaning::of(&status).error(&status).text;
        assert!(text.starts_with("no?[31m x") && text.len() == MAX_TEXT, "{text}");
    }

    #[test]
    fn watch_denial_is_distinguished_from_other_cancellations() {
        let denied = denial("rpc error: code = PermissionDenied desc = etcdserver: permission denied");
        assert_eq!(denied.map(|error| error.text), Some("etcdserver: permission denied".into()));
        assert!(denial("etcdserver: permission denied").is_some());
        assert!(denial("rpc error: code = Unauthenticated desc = etcdserver: invalid auth token").is_some());
        assert!(denial("mvcc: required revision has been compacted").is_none());
        assert!(denial("").is_none());
    }
}

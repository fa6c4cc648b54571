//! What a status of gRPC means for a request, sorted once (requirement E9).
//!
//! Codes and words are those of `api/v3rpc/rpctypes/error.go` of etcd's public source, tried on 3.4. A definite no is believed only
//! where nothing but the server's own decision can have produced it: gRPC stacks answer for the server with some of the codes,
//! when a connection breaks or an answer is too long, and the request may then have been executed.

use super::request::Refusal;
use super::rpc::{Code, Status};
use crate::lock::{ErrorClass, ServerError, printable};

/// What a status means.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Meaning {
    /// Certainly not executed.
    Refused(Refusal),
    /// Certainly not executed, for lack of a valid token: worth one new login. The error is for those who have no login.
    LogIn(ServerError),
    /// The answer to a login: the cluster knows no users, so none is needed.
    LoginNotNeeded,
    /// It may have been executed.
    Unknown {
        /// What was said.
        error: ServerError,
        /// Another member may do better.
        elsewhere: bool,
    },
}

/// What the member decided itself starts with this.
const OWN_WORDS: &str = "etcdserver:";

/// The words of a missing, forgotten or outdated token. The last comes when the token tells the revision of the users' database, and
/// that has changed since.
const TOKEN_WORDS: &[&str] = &["invalid auth token", "user name is empty", "revision of auth store is old"];

impl Meaning {
    pub(super) fn of(status: &Status) -> Self {
        let says = |words: &str| status.message.contains(words);
        let own = status.message.starts_with(OWN_WORDS);
        let error = |class| ServerError { class, text: printable(&status.message, "") };
        let refused = |class| Self::Refused(Refusal::Error(error(class)));
        let unknown = |elsewhere| Self::Unknown { error: error(ErrorClass::Unclear), elsewhere };
        match status.code {
            // No leader, a new leader, no answer from the leader in time, a learner, a member that stops; or no connection.
            Code::Unavailable | Code::DataLoss => unknown(true),
            Code::Ok | Code::Cancelled | Code::Unknown | Code::DeadlineExceeded | Code::Aborted | Code::Internal => {
                unknown(false)
            }
            // Too many requests, database space exceeded, a lease with too long a TTL. Others' words: an answer that was too long, an
            // HTTP/2 stack that was overrun.
            Code::ResourceExhausted | Code::OutOfRange if !own => unknown(false),
            Code::ResourceExhausted => refused(ErrorClass::Transient),
            Code::NotFound if says("requested lease not found") => Self::Refused(Refusal::LeaseNotFound),
            Code::FailedPrecondition if says("lease already exists") => Self::Refused(Refusal::LeaseExists),
            Code::FailedPrecondition if says("authentication is not enabled") => Self::LoginNotNeeded,
            Code::FailedPrecondition if says("not leader") => refused(ErrorClass::Reconnect),
            Code::Unauthenticated => Self::LogIn(error(ErrorClass::Refused)),
            Code::InvalidArgument if TOKEN_WORDS.iter().any(|words| says(words)) => {
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

    /// Whether another member may do better.
    pub(super) fn elsewhere(&self) -> bool {
        matches!(self, Self::Unknown { elsewhere: true, .. })
            || matches!(self, Self::Refused(Refusal::Error(error)) if error.class == ErrorClass::Reconnect)
    }

    /// Whether the server may answer another request with something else, and this one never: it may be too large, or of a kind that this
    /// server does not know.
    pub(super) fn blames_the_request(&self) -> bool {
        matches!(self, Self::Unknown { elsewhere: false, .. })
            || matches!(self, Self::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused)
    }

    /// The server's words.
    pub(super) fn error(self, status: &Status) -> ServerError {
        match self {
            Self::Refused(Refusal::Error(error)) | Self::LogIn(error) | Self::Unknown { error, .. } => error,
            Self::Refused(Refusal::LeaseNotFound | Refusal::LeaseExists) | Self::LoginNotNeeded => {
                ServerError { class: ErrorClass::Refused, text: printable(&status.message, "") }
            }
        }
    }
}

/// The error if a watch was ended for lack of permission, or of a valid token; `None` if it may simply be opened again.
///
/// Only the words tell. etcd 3.4.23 gives them as `rpc error: code = PermissionDenied desc = etcdserver: permission denied`. Early
/// releases of 3.4 and 3.5 say `permission denied` for an outdated token too, so that a new login is worth a try in any case.
pub(super) fn denial(reason: &str) -> Option<ServerError> {
    let denied = reason.contains("permission denied") || TOKEN_WORDS.iter().any(|words| reason.contains(words));
    let text = reason.split_once(" desc = ").map_or(reason, |(_, text)| text);
    denied.then(|| ServerError { class: ErrorClass::Refused, text: printable(text, "") })
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Words and codes as etcd 3.4.23 gave them, or as its source has them where they are hard to provoke.
    #[test]
    fn e9_a_definite_no_is_told_from_an_unknown_outcome() {
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
    fn e9_a_token_that_is_not_valid_asks_for_a_login() {
        for (code, message) in [
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Code::InvalidArgument, "etcdserver: user name is empty"),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
        ] {
            assert!(matches!(of(code, message), Meaning::LogIn(_)), "{message}");
        }
    }

    #[test]
    fn the_words_are_made_fit_for_a_log() {
        let status = Status::new(Code::PermissionDenied, alloc::format!("no\u{1b}[31m\n{}", "x".repeat(300)));
        let text = Meaning::of(&status).error(&status).text;
        assert!(text.starts_with("no?[31m?x") && text.len() == 200, "{text}");
    }

    #[test]
    fn a_denied_watch_is_told_from_one_that_may_be_opened_again() {
        let denied = denial("rpc error: code = PermissionDenied desc = etcdserver: permission denied");
        assert_eq!(denied.map(|error| error.text), Some("etcdserver: permission denied".into()));
        assert!(denial("etcdserver: permission denied").is_some());
        assert!(denial("rpc error: code = Unauthenticated desc = etcdserver: invalid auth token").is_some());
        assert!(denial("mvcc: required revision has been compacted").is_none());
        assert!(denial("").is_none());
    }
}

//! What a server answered, as it is reported to an application.

use alloc::boxed::Box;
use alloc::string::String;
use core::time::Duration;

use crate::fault::Fault;

/// What a node last answered to an acquisition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Answer {
    /// Nothing: it was not asked, or has not answered yet.
    #[error("no answer yet")]
    #[default]
    Silent,
    /// The lock was granted there.
    #[error("granted")]
    Granted,
    /// Somebody else has it.
    #[error("taken{0}")]
    Taken(Expiry),
    /// The request never left.
    #[error("unreachable ({0})")]
    Unreachable(Cause),
    /// The request left, and its answer is not known.
    #[error("unknown ({0})")]
    Unknown(Cause),
    /// The node was started too recently to count in a quorum, or its address has begun to lead to another server: it may lack data.
    #[error("restarted too recently")]
    RecentlyRestarted,
    /// The address of the node led to a different server three times within a quarantine: a proxy that changes servers, or a server
    /// that crashes again and again.
    #[error("a different server at each connection")]
    UnstableIdentity,
    /// The node refused.
    #[error("{0}")]
    Rejected(ServerError),
}

/// When a lock that is held by somebody else ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Expiry {
    /// After this long, counted from the answer.
    #[error(" for another {0:?}")]
    In(Duration),
    /// Never: the key has no expiry (some clients' default).
    #[error(" without expiry")]
    Never,
    /// Not known: the answer did not tell.
    #[error("")]
    Unknown,
}

/// Why there is no proper answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The connection failed.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The server answered with an error.
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// An error answered by a server, sorted once by what it means for a lock (requirement P2).
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("the server answered: {text}")]
pub struct ServerError {
    /// What it means.
    pub class: ErrorClass,
    /// The server's words: printable, at most 200 bytes.
    pub text: Box<str>,
}

/// What a server's error means for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// Not executed, and worth a retry: the server is loading, busy, out of memory, …
    Transient,
    /// Not executed; worth a retry on a new connection with a fresh name resolution: a demoted master, …
    Reconnect,
    /// Not executed, and it will not be: password, permission, a cluster, an unknown command.
    Refused,
    /// Not executed: the key holds something that is no lock.
    KeyInUse,
    /// Proves nothing.
    Unclear,
}

/// A server's words made fit for a log, with a hint of ours after them: printable, at most 200 bytes in all.
pub(crate) fn printable(text: &str, hint: &str) -> Box<str> {
    let mut shown = String::new();
    for c in text.trim().chars().map(|c| if c.is_control() { '?' } else { c }) {
        if shown.len() + c.len_utf8() + hint.len() > MAX_TEXT {
            break;
        }
        shown.push(c);
    }
    shown.push_str(hint);
    shown.into()
}

/// The longest text that is kept, in bytes.
pub(crate) const MAX_TEXT: usize = 200;

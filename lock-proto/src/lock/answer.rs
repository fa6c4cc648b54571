//! Server replies as reported to an application.

use alloc::boxed::Box;
use alloc::string::String;
use core::time::Duration;

use crate::fault::Fault;

/// A server's last reply to an acquisition, as reported to the application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Answer {
    /// No reply yet, or no request was sent.
    #[error("no answer yet")]
    #[default]
    Silent,
    /// The server granted the lock.
    #[error("granted")]
    Granted,
    /// Another client holds it.
    #[error("taken{0}")]
    Taken(Expiry),
    /// The request was not sent.
    #[error("unreachable ({0})")]
    Unreachable(Cause),
    /// The request was sent, but its outcome is unknown.
    #[error("unknown ({0})")]
    Unknown(Cause),
    /// The server was started too recently to count in a quorum, or its address now leads to
    /// another one. It may lack data.
    #[error("restarted too recently")]
    RecentlyRestarted,
    /// The server's address led to a different one three times within a quarantine. A proxy may
    /// switch servers, or a server may crash repeatedly.
    #[error("a different server at each connection")]
    UnstableIdentity,
    /// The server refused the request.
    #[error("{0}")]
    Rejected(ServerError),
}

impl Answer {
    /// Returns true if the server gave no usable reply, or refused.
    #[must_use]
    pub const fn is_failure(&self) -> bool {
        match self {
            Self::Silent | Self::Granted | Self::Taken(_) => false,
            Self::Unreachable(_)
            | Self::Unknown(_)
            | Self::RecentlyRestarted
            | Self::UnstableIdentity
            | Self::Rejected(_) => true,
        }
    }

    /// Returns true if the server refused before it could execute anything, and a retry will not
    /// help.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Rejected(error) => error.class == ErrorClass::Refused,
            Self::Unreachable(cause) => cause.is_refusal(),
            Self::Silent
            | Self::Granted
            | Self::Taken(_)
            | Self::Unknown(_)
            | Self::RecentlyRestarted
            | Self::UnstableIdentity => false,
        }
    }
}

/// Returns true if outstanding replies decide whether refusals leave no majority. Waiting for them
/// reports a wrong password as such, in whatever order the servers reply. `spare` is how many
/// servers a majority can do without.
pub(crate) const fn refusals_are_undecided(refused: usize, open: usize, spare: usize) -> bool {
    refused > 0 && refused <= spare && refused + open > spare
}

/// When a lock held by another client expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Expiry {
    /// After this duration, counted from the reply.
    #[error(" for another {0:?}")]
    In(Duration),
    /// After this duration, counted from the reply, unless the holder renews it. A dead one does not.
    #[error(", or its holder has died: free in {0:?} unless it is renewed")]
    UnlessRenewed(Duration),
    /// Never: the key has no expiry, which is the default of some clients.
    #[error(" without expiry")]
    Never,
    /// Unknown: the reply did not say.
    #[error("")]
    Unknown,
}

/// Why there is no usable reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The connection failed.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The server replied with an error.
    #[error(transparent)]
    Server(#[from] ServerError),
}

impl Cause {
    /// Returns true if a retry will not help until somebody changes a setting, a permission or a
    /// certificate.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Fault(Fault::Tls(fault)) => fault.is_refusal(),
            Self::Fault(fault) => *fault == Fault::NoUser,
            Self::Server(error) => error.class == ErrorClass::Refused,
        }
    }
}

/// An error reply of a server, classified by its meaning for a lock.
// P2
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("the server answered: {text}")]
pub struct ServerError {
    /// Its class.
    pub class: ErrorClass,
    /// The server's message: printable, at most 400 bytes.
    pub text: Box<str>,
}

impl ServerError {
    /// Creates an error from a message, which is made printable and cut to 400 bytes.
    #[must_use]
    pub fn new(class: ErrorClass, text: &str) -> Self {
        Self { class, text: printable(text, "") }
    }
}

/// Meaning of a server error for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// Not executed. A retry may succeed: the server is loading, busy, out of memory, …
    Transient,
    /// Not executed. A retry needs a new connection and name resolution: a demoted master, …
    Reconnect,
    /// Not executed, and a retry would not help: password, permission, a cluster, an unknown
    /// command.
    Refused,
    /// Not executed: the key holds a value that is not a lock.
    KeyInUse,
    /// The error does not show whether the request was executed.
    Unclear,
}

/// Formats a server's message and an added hint for a log: printable, at most 400 bytes in all. A
/// line break becomes a space.
pub(crate) fn printable(text: &str, hint: &str) -> Box<str> {
    let mut shown = String::new();
    for c in text.trim().chars() {
        let c = match c {
            _ if c.is_whitespace() => ' ',
            _ if c.is_control() => '?',
            _ => c,
        };
        if c == ' ' && shown.ends_with(' ') {
            continue;
        }
        if shown.len() + c.len_utf8() + hint.len() > MAX_TEXT {
            break;
        }
        shown.push(c);
    }
    shown.push_str(hint);
    shown.into()
}

/// The longest stored message, in bytes.
pub(crate) const MAX_TEXT: usize = 400;

//! Error codes of replies.

use core::fmt;

/// The code of a reply: `KeeperException.Code` of ZooKeeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorCode(pub i32);

/// Declares the codes, their names and descriptions.
macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl ErrorCode {
            $(#[doc = concat!("`", stringify!($name), "`: ", $text, ".")] pub const $name: Self = Self($number);)*

            /// Returns the code's name in ZooKeeper's sources.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    Self(_) => None,
                }
            }

            const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self(_) => "an unknown error",
                }
            }
        }
    };
}

codes! {
    OK = 0, "no error";
    SYSTEM_ERROR = -1, "a system error";
    RUNTIME_INCONSISTENCY = -2, "another operation of the same transaction failed";
    DATA_INCONSISTENCY = -3, "a data inconsistency";
    CONNECTION_LOSS = -4, "the server lost its connection to the leader";
    MARSHALLING_ERROR = -5, "the server could not read the request";
    UNIMPLEMENTED = -6, "the server does not know the operation";
    OPERATION_TIMEOUT = -7, "the operation took too long";
    BAD_ARGUMENTS = -8, "invalid arguments";
    NO_NODE = -101, "the node does not exist";
    NO_AUTH = -102, "permission denied by the node's ACL";
    BAD_VERSION = -103, "the node has another version";
    NO_CHILDREN_FOR_EPHEMERALS = -108, "an ephemeral node has no children";
    NODE_EXISTS = -110, "the node exists already";
    NOT_EMPTY = -111, "the node has children";
    SESSION_EXPIRED = -112, "the session has expired";
    INVALID_ACL = -114, "the ACL is not valid";
    AUTH_FAILED = -115, "the login failed";
    SESSION_MOVED = -118, "the session has moved to another server";
    NOT_READ_ONLY = -119, "the server has no quorum and only serves reads";
    EPHEMERAL_ON_LOCAL_SESSION = -120, "a local session has no ephemeral nodes";
    NO_WATCHER = -121, "there is no such watch";
    REQUEST_TIMEOUT = -122, "the request took too long";
    SESSION_CLOSED_REQUIRE_AUTH = -124, "the server demands a login by SASL";
    QUOTA_EXCEEDED = -125, "a quota of the node is used up";
    THROTTLED_OP = -127, "the server is overloaded";
    REPLY_TOO_LONG = 1, "the reply has more than 4 MiB: do more than 75 000 clients wait for the lock?";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number) = self;
        match self.name() {
            Some(name) => write!(f, "{} ({name}, {number})", self.text()),
            None => write!(f, "{} ({number})", self.text()),
        }
    }
}

//! What errors and logs are made of. Most programs need only the predicates of
//! [`AcquireError`](crate::AcquireError), and its text.

pub use lock_proto::{
    Answer, Blocked, Breach, Cause, ConfigError, ErrorClass, Expiry, Failure, Fault, Invalid, LockId, Misuse, NodeId,
    Report, ServerError, TlsFault, UrlError,
};

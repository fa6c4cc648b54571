//! What can go wrong with a connection, as an input to the machines.

/// Why a connection failed or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The peer closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The name of the server could not be resolved, or there is no route to it.
    #[error("the server cannot be reached")]
    Unreachable,
    /// Nobody listens at the address.
    #[error("the server refused the connection")]
    Refused,
    /// The peer or the network broke the connection off.
    #[error("the connection was reset")]
    Reset,
    /// No answer within the time allowed.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The peer sent what the protocol does not allow, or more than the limits allow.
    #[error("the server broke the protocol: {0}")]
    Protocol(Breach),
    /// The machine gave the connection up because it is no longer needed.
    #[error("the connection is no longer needed")]
    NotNeeded,
    /// More requests wait for the connection than the limits allow.
    #[error("too many requests wait for the connection")]
    Backlog,
    /// Any other failure of the transport.
    #[error("the connection failed")]
    Transport,
}

/// How a server broke the protocol or the limits set on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Breach {
    /// Bytes that are no RESP frame.
    #[error("malformed frame")]
    Malformed,
    /// It speaks HTTP/1 where HTTP/2 was expected.
    #[error("it speaks HTTP/1, not HTTP/2")]
    Http1,
    /// It expects TLS.
    #[error("it expects TLS")]
    Tls,
    /// The HTTP/2 connection ended with an error that one of the sides found.
    #[error("HTTP/2 error")]
    Http2,
    /// A frame longer than allowed.
    #[error("frame too long")]
    TooLong,
    /// A frame nested deeper than allowed.
    #[error("frame nested too deeply")]
    TooDeep,
    /// A reply that nothing asked for.
    #[error("a reply that nothing asked for")]
    Unasked,
    /// A reply of a form that the request cannot have.
    #[error("a reply of the wrong form")]
    WrongReply,
    /// More push messages in a row than allowed.
    #[error("too many push messages")]
    TooManyPushes,
}

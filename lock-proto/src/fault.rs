//! Connection failures, as an input to the machines.

use crate::tls::TlsFault;

/// Why a connection failed or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The peer closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The peer closed or reset a connection without TLS before it sent anything.
    #[error(
        "the server closed the connection before its first reply; is this the right port, does it expect TLS, or has it too many connections (on ZooKeeper `maxClientCnxns`)? A proxy may close it at a command that it does not know"
    )]
    ClosedEarly,
    /// The name of the server could not be resolved, or it has no address.
    #[error("the server's name cannot be resolved")]
    Unresolved,
    /// There is no route to the server.
    #[error("the server cannot be reached")]
    Unreachable,
    /// No process listens at the address.
    #[error("the server refused the connection")]
    Refused,
    /// There is no unix socket at the path.
    #[error("there is no such socket")]
    NoSocket,
    /// The system does not permit this process to connect, such as to a unix socket of another
    /// user.
    #[error("there is no permission to connect to it")]
    NotPermitted,
    /// This process, or its system, has no thread or no file descriptor left to connect with.
    #[error("this process has no thread or file descriptor left for the connection")]
    NoResources,
    /// The peer or the network reset the connection.
    #[error("the connection was reset")]
    Reset,
    /// The server did not reply within the timeout.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The peer sent something that the protocol or the configured limits do not allow.
    #[error("the server broke the protocol: {0}")]
    Protocol(Breach),
    /// TLS failed.
    #[error(transparent)]
    Tls(#[from] TlsFault),
    /// The host supplied no valid credentials in time.
    #[error("there are no credentials to log in with")]
    NoCredentials,
    /// The host supplied credentials without a user, and the settings name none. ZooKeeper needs
    /// one.
    #[error("the credentials have no user: name one in the URL (`user=`), or supply it with them")]
    NoUser,
    /// The machine closed the connection because it is no longer needed.
    #[error("the connection is no longer needed")]
    NotNeeded,
    /// The connection's request queue is full.
    #[error("too many requests wait for the connection")]
    Backlog,
    /// Any other failure of the transport.
    #[error("the connection failed")]
    Transport,
}

/// How a server violated the protocol or the configured limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Breach {
    /// The bytes are not a message of the protocol.
    #[error("malformed frame; is this the right port, and a server of this store?")]
    Malformed,
    /// The server speaks HTTP/1, or replies with HTML without a header, as to a malformed request.
    #[error("it speaks HTTP/1, or sends HTML; is this the right port?")]
    Http1,
    /// The server speaks the Redis protocol, but HTTP/2 was expected.
    #[error("it speaks the Redis protocol; is this the right port?")]
    Resp,
    /// The server expects TLS.
    #[error("it expects TLS; use rediss://, etcds:// or zks://")]
    Tls,
    /// Either side ended the HTTP/2 connection with an error.
    #[error("HTTP/2 error")]
    Http2,
    /// A frame longer than allowed.
    #[error("frame too long")]
    TooLong,
    /// A frame nested deeper than allowed.
    #[error("frame nested too deeply")]
    TooDeep,
    /// A reply without a matching request.
    #[error("an unsolicited reply")]
    Unsolicited,
    /// A member that the cluster reported belongs to another cluster.
    #[error("it belongs to another etcd cluster")]
    OtherCluster,
    /// A reply whose form does not fit the request.
    #[error("a reply of the wrong form")]
    WrongReply,
    /// More push messages in a row than allowed.
    #[error("too many push messages")]
    TooManyPushes,
}

impl Breach {
    /// Recognises a server of another protocol by the first bytes that it sends.
    #[must_use]
    pub fn of_other_protocol(greeting: &[u8]) -> Option<Self> {
        match greeting {
            [b'H', b'T', b'T', b'P', b'/', ..] | [b'<', b'!' | b'h' | b'H', ..] => Some(Self::Http1),
            // An alert (RFC 8446, section 5.1).
            [0x15, 0x03, ..] => Some(Self::Tls),
            [b'-', b'A'..=b'Z', ..] => Some(Self::Resp),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ZooKeeper says nothing when a client has too many connections.
    #[test]
    fn connection_that_ends_early_may_be_over_limit() {
        use alloc::string::ToString as _;
        let text = Fault::ClosedEarly.to_string();
        assert!(["port", "TLS", "maxClientCnxns"].iter().all(|word| text.contains(word)), "{text}");
    }

    #[test]
    fn web_servers_are_recognised() {
        for greeting in ["HTTP/1.1 400", "<!DOCTYPE HTML>", "<html>", "<HTML>"] {
            assert_eq!(Breach::of_other_protocol(greeting.as_bytes()), Some(Breach::Http1), "{greeting}");
        }
        assert_eq!(Breach::of_other_protocol(b"<x"), None);
    }
}

//! Converts errors of the operating system into faults.

use std::io::{self, ErrorKind};

#[cfg(feature = "tls")]
use super::tls::TlsError;
use lock_proto::Fault;

/// Why an attempt to connect failed.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) enum OpenError {
    /// The name was not resolved.
    Resolve(io::Error),
    /// No address accepted the connection, or TLS failed.
    Connect(#[from] io::Error),
}

/// Converts the error of an attempt to connect.
pub(super) fn of_connecting(error: &OpenError) -> Fault {
    let OpenError::Connect(error) = error else { return Fault::Unresolved };
    let fault = of_stream(error, true);
    if !matches!(fault, Fault::Transport | Fault::Closed | Fault::ClosedEarly) {
        return fault;
    }
    match error.kind() == ErrorKind::PermissionDenied {
        true => Fault::NotPermitted,
        false => Fault::Unreachable,
    }
}

/// Converts the error of an open connection. `received` is false if the server has sent nothing.
pub(super) fn of_stream(error: &io::Error, received: bool) -> Fault {
    #[cfg(feature = "tls")]
    if let Some(fault) = TlsError::in_stream(error) {
        return fault.into();
    }
    #[expect(clippy::wildcard_enum_match_arm, reason = "a foreign enum of many kinds, which keeps growing")]
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe if !received => {
            Fault::ClosedEarly
        }
        ErrorKind::UnexpectedEof => Fault::Closed,
        ErrorKind::ConnectionRefused => Fault::Refused,
        // Only paths are not found: names are resolved before.
        ErrorKind::NotFound => Fault::NoSocket,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => Fault::Reset,
        ErrorKind::TimedOut => Fault::TimedOut,
        ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::NetworkDown
        | ErrorKind::AddrNotAvailable => Fault::Unreachable,
        _ => Fault::Transport,
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    #[test]
    fn io_errors_map_to_faults() {
        for (kind, connecting, open) in [
            (ErrorKind::ConnectionRefused, Fault::Refused, Fault::Refused),
            (ErrorKind::ConnectionReset, Fault::Reset, Fault::Reset),
            (ErrorKind::BrokenPipe, Fault::Reset, Fault::Reset),
            (ErrorKind::UnexpectedEof, Fault::Unreachable, Fault::Closed),
            (ErrorKind::TimedOut, Fault::TimedOut, Fault::TimedOut),
            (ErrorKind::HostUnreachable, Fault::Unreachable, Fault::Unreachable),
            (ErrorKind::Other, Fault::Unreachable, Fault::Transport),
            (ErrorKind::NotFound, Fault::NoSocket, Fault::NoSocket),
            (ErrorKind::PermissionDenied, Fault::NotPermitted, Fault::Transport),
        ] {
            let error = io::Error::from(kind);
            let of_stream = of_stream(&error, true);
            assert_eq!((of_connecting(&error.into()), of_stream), (connecting, open), "{kind:?}");
        }
        for kind in [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset] {
            assert_eq!(of_stream(&kind.into(), false), Fault::ClosedEarly, "{kind:?}");
        }
        // Not only TLS: etcd and ZooKeeper close a connection that speaks RESP.
        let early = Fault::ClosedEarly.to_string();
        assert!(early.contains("right port") && early.contains("expect TLS"), "{early}");
    }
}

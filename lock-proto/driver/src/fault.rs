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

/// The system gave no thread for a call that blocks.
#[derive(Debug, thiserror::Error)]
#[error("no thread for it: {0}")]
pub(super) struct NoThread(#[source] io::Error);

impl NoThread {
    pub(super) fn wrap(error: io::Error) -> io::Error {
        io::Error::new(error.kind(), Self(error))
    }
}

/// Returns true if this process, or the system, has no thread or no descriptor left.
// D8
fn lacks_resources(error: &io::Error) -> bool {
    /// ENFILE and EMFILE, on every unix.
    const TOO_MANY_FILES: [i32; 2] = [23, 24];
    /// WSAEMFILE.
    const TOO_MANY_SOCKETS: i32 = 10_024;
    error.get_ref().is_some_and(|error| error.is::<NoThread>())
        || error.raw_os_error().is_some_and(|code| match cfg!(windows) {
            true => code == TOO_MANY_SOCKETS,
            false => TOO_MANY_FILES.contains(&code),
        })
}

/// Converts the error of an attempt to connect.
pub(super) fn of_connecting(error: &OpenError) -> Fault {
    let (OpenError::Resolve(cause) | OpenError::Connect(cause)) = error;
    if lacks_resources(cause) {
        return Fault::NoResources;
    }
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

    /// Also while a name is resolved, and an error of the call itself is no such case.
    #[test]
    fn lack_of_threads_and_descriptors_is_a_fault_of_its_own() {
        // D8
        let again = || io::Error::from(ErrorKind::WouldBlock);
        for (error, expected) in [
            (OpenError::Resolve(NoThread::wrap(again())), Fault::NoResources),
            (OpenError::Connect(NoThread::wrap(again())), Fault::NoResources),
            (OpenError::Resolve(again()), Fault::Unresolved),
        ] {
            assert_eq!(of_connecting(&error), expected, "{error:?}");
        }
        #[cfg(unix)]
        for code in [23, 24] {
            for error in [OpenError::Resolve, OpenError::Connect] {
                assert_eq!(of_connecting(&error(io::Error::from_raw_os_error(code))), Fault::NoResources, "{code}");
            }
        }
    }

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

//! Sockets of both kinds, read and written by two threads at once.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;

use lock_proto::Fault;
use lock_proto::redis::Target;

pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(super) fn open(target: &Target) -> io::Result<Self> {
        match target {
            Target::Tcp { host, port } => {
                let stream = TcpStream::connect((&**host, *port))?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Target::Unix { path } => UnixStream::connect(&**path).map(Self::Unix),
            _ => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// Reads some bytes; 0 at the end.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match self {
                Self::Tcp(stream) => (&mut &*stream).read(buffer),
                Self::Unix(stream) => (&mut &*stream).read(buffer),
            };
            if !read.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted) {
                return read;
            }
        }
    }

    /// Writes all of the bytes.
    pub(super) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => (&mut &*stream).write_all(bytes),
            Self::Unix(stream) => (&mut &*stream).write_all(bytes),
        }
    }

    /// Ends the connection; a thread that reads or writes it returns.
    pub(super) fn close(&self) {
        // It fails only on a connection that has ended.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// What an error of a socket means to the machine.
#[expect(clippy::wildcard_enum_match_arm, reason = "std's list of kinds is long and open; the rest is one fault")]
pub(super) fn fault(error: &io::Error) -> Fault {
    match error.kind() {
        ErrorKind::UnexpectedEof => Fault::Closed,
        ErrorKind::ConnectionRefused => Fault::Refused,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => Fault::Reset,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Fault::TimedOut,
        ErrorKind::NotFound | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Fault::Unreachable,
        _ => Fault::Transport,
    }
}

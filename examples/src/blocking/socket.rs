//! TCP and unix sockets that one thread reads while another writes.

use core::net::SocketAddr;
use core::time::Duration;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::thread;

use lock_proto::Fault;
use lock_proto::redis::Target;

const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(super) fn open(target: &Target) -> io::Result<Self> {
        match target {
            Target::Tcp { host, port } => {
                let stream = race((&**host, *port).to_socket_addrs()?.collect())?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Target::Unix { path } => UnixStream::connect(&**path).map(Self::Unix),
            Target::Tls { .. } | _ => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// Reads some bytes; 0 at the end of the stream.
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

    pub(super) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => (&mut &*stream).write_all(bytes),
            Self::Unix(stream) => (&mut &*stream).write_all(bytes),
        }
    }

    /// Closes the connection, which unblocks its reader and writer.
    pub(super) fn close(&self) {
        // Fails only if the connection has already ended.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// Connects to the first address that accepts, with one thread per address. Starts the next attempt
/// after a failure or a delay, so that a dead address does not block the others (RFC 8305).
fn race(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let (send, answers) = channel();
    let mut failure = ErrorKind::NotFound.into();
    let (mut untried, mut pending) = (addresses.into_iter(), 0);
    loop {
        let next = untried.next();
        let is_last = next.is_none();
        if let Some(address) = next {
            let send = send.clone();
            // The send fails if another address was faster, which closes the stream.
            thread::spawn(move || drop(send.send(TcpStream::connect(address))));
            pending += 1;
        }
        if pending == 0 {
            return Err(failure);
        }
        let limit = if is_last { Duration::MAX } else { ATTEMPT_DELAY };
        match answers.recv_timeout(limit) {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => {
                failure = error;
                pending -= 1;
            }
            Err(_) => {}
        }
    }
}

/// Maps a socket error to a fault of the machine.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use lock_testkit::DeadAddress;
    use std::net::TcpListener;

    #[test]
    fn dead_address_does_not_block_other_addresses() {
        let dead = DeadAddress::new();
        let refusing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let living = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = living.local_addr().unwrap();
        let stream = race(vec![dead.address(), refusing, address]).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        assert_eq!(race(vec![refusing, refusing]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert!(race(Vec::new()).is_err());
    }
}

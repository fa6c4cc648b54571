//! TCP and unix sockets, with TLS or without, that one thread reads while another writes.

use core::net::SocketAddr;
use core::time::Duration;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use lock_driver::tls::{Plaintext, TlsError, TlsSession};
use lock_proto::{Fault, Target, TlsFault};

const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Size of the buffer for bytes of a TLS server: a record and its overhead.
const BUFFER: usize = 17 * 1024;

/// A connection. Its [`Reader`] belongs to one thread, [`write_all`](Self::write_all) to another.
pub(super) struct Socket {
    stream: Stream,
    /// Locked only to decrypt and encrypt, never during a system call: a writer that is blocked
    /// must not keep the reader from reading.
    tls: Option<Mutex<TlsSession>>,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects, and begins the session. [`Reader::verify`] must follow.
    pub(super) fn open(target: &Target, session: Option<TlsSession>) -> Result<Self, Fault> {
        let failed = |error: io::Error| fault(&error, true);
        let stream = match (target, &session) {
            (Target::Tcp { host, port }, None) | (Target::Tls { host, port, .. }, Some(_)) => {
                let addresses = (&**host, *port).to_socket_addrs().map_err(|_| Fault::Unresolved)?;
                let stream = race(addresses.collect()).map_err(failed)?;
                stream.set_nodelay(true).map_err(failed)?;
                Stream::Tcp(stream)
            }
            (Target::Unix { path }, None) => Stream::Unix(UnixStream::connect(&**path).map_err(failed)?),
            // Never TLS without a session.
            // N4
            (Target::Tcp { .. } | Target::Tls { .. } | Target::Unix { .. }, _) => {
                return Err(failed(ErrorKind::Unsupported.into()));
            }
        };
        Ok(Self { stream, tls: session.map(Mutex::new) })
    }

    /// Sends plaintext. A single thread does, so that TLS records leave in the order in which the
    /// session has made them.
    pub(super) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &self.tls else { return self.stream.write_all(bytes) };
        let mut left = bytes;
        while !left.is_empty() {
            let records = {
                let mut session = locked(tls);
                let taken = session.write(left);
                if taken == 0 {
                    return Err(ErrorKind::WriteZero.into());
                }
                left = &left[taken..];
                take_outgoing(&mut session)
            };
            self.stream.write_all(&records)?;
        }
        Ok(())
    }

    /// Closes the connection, which unblocks its reader and writer.
    pub(super) fn close(&self) {
        // Fails only if the connection has already ended.
        let _ = match &self.stream {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// The reading side of a socket.
pub(super) struct Reader {
    socket: Arc<Socket>,
    /// Bytes that the session has not taken yet.
    received: Vec<u8>,
}

impl Reader {
    pub(super) const fn new(socket: Arc<Socket>) -> Self {
        Self { socket, received: Vec::new() }
    }

    pub(super) fn is_tls(&self) -> bool {
        self.socket.tls.is_some()
    }

    /// Waits until the server is verified, if it speaks TLS. The only call that also writes.
    // N3
    pub(super) fn verify(&mut self) -> Result<(), Fault> {
        let socket = Arc::clone(&self.socket);
        let Some(tls) = &socket.tls else { return Ok(()) };
        let send = || socket.stream.write_all(&take_outgoing(&mut locked(tls)));
        let mut result = send();
        while result.is_ok() && !locked(tls).is_verified() {
            let received = self.receive(tls);
            // Also after an error, of which an alert tells the server.
            let sent = send();
            result = received.and(sent);
        }
        result.map_err(|error| {
            let cut = matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset);
            if cut { TlsFault::Closed.into() } else { fault(&error, true) }
        })
    }

    /// Reads some plaintext; 0 at the end of the stream.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let socket = Arc::clone(&self.socket);
        let Some(tls) = &socket.tls else { return socket.stream.read(buffer) };
        loop {
            let plaintext = locked(tls).read(buffer);
            match plaintext {
                Plaintext::Bytes(count) => return Ok(count),
                Plaintext::Closed => return Ok(0),
                // Records that the session itself makes leave with the next request.
                Plaintext::Empty | _ => self.receive(tls)?,
            }
        }
    }

    /// Waits for bytes of the server and gives them to the session.
    fn receive(&mut self, tls: &Mutex<TlsSession>) -> io::Result<()> {
        if self.received.is_empty() {
            self.received.resize(BUFFER, 0);
            let count = self.socket.stream.read(&mut self.received)?;
            self.received.truncate(count);
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        // Not all of it if plaintext must be read first.
        let taken = locked(tls).handle_received(&self.received)?;
        self.received.drain(..taken);
        Ok(())
    }
}

impl Stream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
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

    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => (&mut &*stream).write_all(bytes),
            Self::Unix(stream) => (&mut &*stream).write_all(bytes),
        }
    }
}

fn locked(tls: &Mutex<TlsSession>) -> MutexGuard<'_, TlsSession> {
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take_outgoing(session: &mut TlsSession) -> Vec<u8> {
    let records = session.outgoing().to_vec();
    session.consume(records.len());
    records
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

/// Maps a socket error to a fault of the machine. `received` is false if the server has sent
/// nothing.
#[expect(clippy::wildcard_enum_match_arm, reason = "std's list of kinds is long and open; the rest is one fault")]
pub(super) fn fault(error: &io::Error, received: bool) -> Fault {
    if let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
        return error.fault().into();
    }
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe if !received => {
            Fault::ClosedEarly
        }
        ErrorKind::UnexpectedEof => Fault::Closed,
        ErrorKind::ConnectionRefused => Fault::Refused,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => Fault::Reset,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Fault::TimedOut,
        ErrorKind::NotFound => Fault::NoSocket,
        ErrorKind::PermissionDenied => Fault::NotPermitted,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Fault::Unreachable,
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

//! An address that does not respond.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// An attempt to connect that takes longer counts as unanswered.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(300);

/// A port of 127.0.0.1 that does not respond to connects, like a dead host, because its backlog is
/// full.
#[derive(Debug)]
pub struct DeadAddress {
    listener: TcpListener,
    _backlog: Vec<TcpStream>,
}

impl DeadAddress {
    /// Opens a port that does not respond until this is dropped.
    ///
    /// # Panics
    ///
    /// If the system keeps accepting connections.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it opens a socket")]
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        // Listens again, with the shortest backlog.
        rustix::net::listen(&listener, 0).expect("listens");
        let address = listener.local_addr().expect("bound");
        let mut backlog = Vec::new();
        for _ in 0..16 {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => backlog.push(stream),
                Err(error) if error.kind() == ErrorKind::TimedOut => return Self { listener, _backlog: backlog },
                Err(error) => panic!("the backlog cannot be filled: {error}"),
            }
        }
        panic!("the backlog is never full");
    }

    /// The address.
    ///
    /// # Panics
    ///
    /// Never: the socket is bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("bound")
    }
}

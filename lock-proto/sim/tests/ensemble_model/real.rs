//! A connection to the real server.

use core::net::SocketAddr;
use core::time::Duration;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

/// Longer than any reply takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Connection(TcpStream);

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        // A closed connection shows when its replies are read.
        let _ = self.0.write_all(bytes);
    }

    /// Returns the content of the next frame; `None` if the server has closed the connection.
    pub(crate) fn read(&mut self) -> Option<Vec<u8>> {
        let mut header = [0; 4];
        self.fill(&mut header)?;
        let mut frame = vec![0; usize::try_from(i32::from_be_bytes(header)).unwrap()];
        self.fill(&mut frame)?;
        Some(frame)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Option<()> {
        match self.0.read_exact(buffer) {
            Ok(()) => Some(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("no reply in {PATIENCE:?}")
            }
            Err(_) => None,
        }
    }
}

//! A TLS session without I/O.

use alloc::string::ToString as _;
use alloc::vec::Vec;
use core::fmt;
use std::io::{Read as _, Write as _};

use rustls::ClientConnection;

use super::error::TlsError;
use lock_proto::TlsFault;

/// The client's side of one TLS connection: bytes from and for the peer on one side, plaintext on
/// the other. Does no I/O.
///
/// Nothing that is written leaves before the server is verified. Give it what arrives by
/// [`handle_received`](Self::handle_received), send what [`outgoing`](Self::outgoing) has, also
/// after an error: it may be an alert for the peer.
pub struct TlsSession {
    tls: ClientConnection,
    pub(super) outgoing: Vec<u8>,
    consumed: usize,
    needs_http2: bool,
    has_identity: bool,
    verified: bool,
    failed: Option<TlsError>,
}

/// What [`TlsSession::read`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Plaintext {
    /// This many bytes. Not zero.
    Bytes(usize),
    /// None, until more has been received.
    Empty,
    /// The peer has closed the session.
    Closed,
}

impl TlsSession {
    pub(super) fn new(tls: ClientConnection, needs_http2: bool, has_identity: bool) -> Self {
        let (outgoing, consumed, verified, failed) = (Vec::new(), 0, false, None);
        let mut session = Self { tls, outgoing, consumed, needs_http2, has_identity, verified, failed };
        session.encrypt();
        session
    }

    /// Takes in bytes of the peer. Returns how many: fewer than there are if plaintext must be read
    /// first.
    ///
    /// # Errors
    ///
    /// The server is not acceptable, or violates the protocol. The session has then ended, and
    /// returns this error from now on.
    pub fn handle_received(&mut self, bytes: &[u8]) -> Result<usize, TlsError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let taken = self.take_in(bytes);
        self.failed = taken.as_ref().err().cloned();
        taken
    }

    fn take_in(&mut self, bytes: &[u8]) -> Result<usize, TlsError> {
        let mut left = bytes;
        while !left.is_empty() {
            match self.tls.read_tls(&mut left) {
                Ok(1..) => {}
                // The peer has closed the session. Whatever follows is no part of it.
                Ok(0) => left = &[],
                // A buffer is full: of plaintext, or of a message that never ends.
                Err(_) if self.has_plaintext() => break,
                Err(error) => return Err(TlsError::new(TlsFault::Handshake, &error.to_string())),
            }
            let processed = self.tls.process_new_packets();
            self.encrypt();
            if let Err(error) = processed {
                let error = TlsError::from(error).after_handshake(self.verified);
                return Err(error.with_identity(self.has_identity));
            }
        }
        if !self.verified && !self.tls.is_handshaking() {
            if self.needs_http2 && self.tls.alpn_protocol() != Some(b"h2") {
                return Err(TlsError::new(TlsFault::NoHttp2, "the server has not agreed to `h2`"));
            }
            self.verified = true;
        }
        Ok(bytes.len() - left.len())
    }

    /// Returns true once the server is verified.
    #[must_use]
    pub const fn is_verified(&self) -> bool {
        self.verified
    }

    /// Reads plaintext of the server. There is none before the server is verified.
    pub fn read(&mut self, into: &mut [u8]) -> Plaintext {
        if !self.verified {
            return Plaintext::Empty;
        }
        match self.tls.reader().read(into) {
            Ok(0) => Plaintext::Closed,
            Ok(count) => Plaintext::Bytes(count),
            // rustls reports "none yet" and the end without a closing message, which the stream
            // under it knows better.
            Err(_) => Plaintext::Empty,
        }
    }

    /// Encrypts plaintext for the server. Returns how many bytes were taken: none before the server
    /// is verified.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        if !self.verified {
            return 0;
        }
        let taken = self.tls.writer().write(bytes).unwrap_or(0);
        self.encrypt();
        taken
    }

    /// Tells the peer that nothing follows.
    pub fn close(&mut self) {
        self.tls.send_close_notify();
        self.encrypt();
    }

    /// The bytes to send to the peer.
    #[must_use]
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.get(self.consumed..).unwrap_or_default()
    }

    /// This many bytes of [`outgoing`](Self::outgoing) were sent.
    pub fn consume(&mut self, count: usize) {
        self.consumed = self.outgoing.len().min(self.consumed + count);
        if self.consumed == self.outgoing.len() {
            self.outgoing.clear();
            self.consumed = 0;
        }
    }

    fn has_plaintext(&mut self) -> bool {
        self.tls.process_new_packets().is_ok_and(|state| state.plaintext_bytes_to_read() > 0)
    }

    fn encrypt(&mut self) {
        // Or the buffer would grow while the peer never takes all of it.
        self.outgoing.drain(..self.consumed);
        self.consumed = 0;
        while self.tls.wants_write() {
            // Writing to memory does not fail.
            if !matches!(self.tls.write_tls(&mut self.outgoing), Ok(1..)) {
                break;
            }
        }
    }
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("verified", &self.verified).finish_non_exhaustive()
    }
}

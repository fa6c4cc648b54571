//! The first frame of each direction, which has no header.

use alloc::vec::Vec;

use bytes::Bytes;

use super::archive::{FrameWriter, Reader};
use crate::fault::Breach;

/// Opens a session, or continues one on a new connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConnectRequest {
    /// The latest state that the client has seen. A server that is behind it closes the connection.
    pub last_zxid_seen: i64,
    /// The requested session timeout in milliseconds.
    pub timeout_ms: i32,
    /// The session to continue; 0 for a new one.
    pub session_id: i64,
    /// The password of the session; 16 bytes of any value for a new one.
    pub password: Bytes,
    /// Whether a server without a quorum may accept the connection, for reads.
    pub read_only: bool,
}

impl ConnectRequest {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut to = FrameWriter::new(out);
        to.int(0).long(self.last_zxid_seen).int(self.timeout_ms).long(self.session_id);
        to.buffer(&self.password).bool(self.read_only);
        to.finish();
    }

    /// Decodes the content of a frame.
    ///
    /// # Errors
    ///
    /// [`Breach::Malformed`].
    pub fn decode(frame: &[u8]) -> Result<Self, Breach> {
        let mut from = Reader::new(frame);
        let _version = from.int()?;
        let request = Self {
            last_zxid_seen: from.long()?,
            timeout_ms: from.int()?,
            session_id: from.long()?,
            password: from.buffer()?,
            // Clients before 3.4 do not send it.
            read_only: !from.is_empty() && from.bool()?,
        };
        from.end()?;
        Ok(request)
    }
}

/// The reply to a [`ConnectRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConnectResponse {
    /// The session timeout in milliseconds, which the server may have changed. 0 if the session has
    /// expired; the server then closes the connection.
    pub timeout_ms: i32,
    /// The session; 0 if it has expired.
    pub session_id: i64,
    /// The password with which to continue the session elsewhere.
    pub password: Bytes,
    /// The server has no quorum, and only serves reads.
    pub read_only: bool,
}

impl ConnectResponse {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut to = FrameWriter::new(out);
        to.int(0).int(self.timeout_ms).long(self.session_id).buffer(&self.password).bool(self.read_only);
        to.finish();
    }

    /// Decodes the content of a frame.
    ///
    /// # Errors
    ///
    /// [`Breach::Malformed`].
    pub fn decode(frame: &[u8]) -> Result<Self, Breach> {
        let mut from = Reader::new(frame);
        let _version = from.int()?;
        let response = Self {
            timeout_ms: from.int()?,
            session_id: from.long()?,
            password: from.buffer()?,
            read_only: !from.is_empty() && from.bool()?,
        };
        from.end()?;
        Ok(response)
    }
}

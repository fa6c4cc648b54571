//! What the server knows of a connection.

use alloc::string::String;
use alloc::vec::Vec;

use bytes::BytesMut;

use crate::redis::Protocol;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Connection {
    /// The number that `CLIENT ID` answers.
    pub(super) id: i64,
    pub(super) name: Vec<u8>,
    /// Who has logged in; `None` before.
    pub(super) user: Option<String>,
    pub(super) db: u32,
    pub(super) protocol: Protocol,
    pub(super) input: Vec<u8>,
    pub(super) output: BytesMut,
    pub(super) blocked: Option<Blocked>,
    /// Nothing more is read.
    pub(super) closing: bool,
}

/// What a blocked client waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Blocked {
    pub(super) db: u32,
    pub(super) keys: Vec<Vec<u8>>,
    /// Unix time in ms after which it waits no longer.
    pub(super) until: Option<u64>,
}

impl Connection {
    pub(super) fn new(id: i64, user: Option<String>) -> Self {
        Self {
            id,
            name: Vec::new(),
            user,
            db: 0,
            protocol: Protocol::Resp2,
            input: Vec::new(),
            output: BytesMut::new(),
            blocked: None,
            closing: false,
        }
    }
}

//! Replies and watch events of a server.

use alloc::boxed::Box;
use alloc::vec::Vec;

use bytes::Bytes;

use super::XID_EVENT;
use super::archive::{FrameWriter, Reader};
use super::data::{Stat, WatcherEvent};
use super::error_code::ErrorCode;
use super::names::Names;
use super::request::OpCode;
use crate::fault::Breach;

/// The start of every frame of a server after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplyHeader {
    /// The number of the request, or [`XID_EVENT`].
    pub xid: i32,
    /// The last transaction that the server has seen; 0 or -1 in events.
    pub zxid: i64,
    /// The result. A reply with an error has no body.
    pub code: ErrorCode,
}

/// A frame of a server after the first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReplyFrame {
    /// The header.
    pub header: ReplyHeader,
    /// The rest.
    pub body: ReplyBody,
}

/// The content of a reply.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReplyBody {
    /// Nothing: an error, or the reply to `delete`, `ping`, `auth`, `removeWatches` or
    /// `closeSession`.
    Empty,
    /// The node was created.
    Created {
        /// Its path, with the number.
        path: Box<str>,
        /// Its state.
        stat: Stat,
    },
    /// The reply to `exists` or `setData`.
    Stat(Stat),
    /// The reply to `getData`.
    Data {
        /// The data.
        data: Bytes,
        /// The state of the node.
        stat: Stat,
    },
    /// The reply to `getChildren`.
    Children(Names),
    /// The reply to `sync`.
    Synced {
        /// The path of the request.
        path: Box<str>,
    },
    /// The reply to a transaction: a result for each operation. If one failed, all are errors:
    /// those before it `OK`, those after it `RUNTIME_INCONSISTENCY`.
    Multi(Vec<MultiResult>),
    /// A watch was triggered.
    Event(WatcherEvent),
}

/// The result of one operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MultiResult {
    /// The node was created.
    Created {
        /// Its path, with the number.
        path: Box<str>,
        /// Its state. Before 3.9, ZooKeeper reports it for a container node only.
        stat: Option<Stat>,
    },
    /// The node was deleted.
    Deleted,
    /// The node was written.
    Set(Stat),
    /// The node had the version.
    Checked,
    /// The transaction failed.
    Error(ErrorCode),
}

/// The kind of an error among the results of a transaction.
const ERROR: i32 = -1;

impl MultiResult {
    /// The kind of the result without a state, that of the older operation `create`.
    const CREATE: i32 = 1;

    fn read(from: &mut Reader<'_>) -> Result<Option<Self>, Breach> {
        let (code, done, _error) = (from.int()?, from.bool()?, from.int()?);
        if done {
            return Ok(None);
        }
        Ok(Some(match (code, OpCode::of_number(code)) {
            (ERROR, _) => Self::Error(ErrorCode(from.int()?)),
            (Self::CREATE, _) => Self::Created { path: from.string()?, stat: None },
            (_, Some(OpCode::Create | OpCode::CreateContainer)) => {
                Self::Created { path: from.string()?, stat: Some(Stat::read(from)?) }
            }
            (_, Some(OpCode::Delete)) => Self::Deleted,
            (_, Some(OpCode::Check)) => Self::Checked,
            (_, Some(OpCode::SetData)) => Self::Set(Stat::read(from)?),
            (_, _) => return Err(Breach::Malformed),
        }))
    }

    fn write(&self, to: &mut FrameWriter<'_>) {
        let (kind, error) = match self {
            Self::Created { stat: None, .. } => (Self::CREATE, 0),
            Self::Created { stat: Some(_), .. } => (OpCode::Create.number(), 0),
            Self::Deleted => (OpCode::Delete.number(), 0),
            Self::Set(_) => (OpCode::SetData.number(), 0),
            Self::Checked => (OpCode::Check.number(), 0),
            Self::Error(code) => (ERROR, code.0),
        };
        to.int(kind).bool(false).int(error);
        match self {
            Self::Created { path, stat } => {
                to.string(path);
                if let Some(stat) = stat {
                    stat.write(to);
                }
            }
            Self::Set(stat) => stat.write(to),
            Self::Deleted | Self::Checked => {}
            Self::Error(code) => {
                to.int(code.0);
            }
        }
    }
}

impl ReplyHeader {
    /// Decodes the header of a frame, and returns it with the rest.
    ///
    /// # Errors
    ///
    /// [`Breach::Malformed`].
    pub fn decode(frame: &[u8]) -> Result<(Self, &[u8]), Breach> {
        let (header, rest) = frame.split_at_checked(16).ok_or(Breach::Malformed)?;
        let mut from = Reader::new(header);
        Ok((Self { xid: from.int()?, zxid: from.long()?, code: ErrorCode(from.int()?) }, rest))
    }
}

impl ReplyBody {
    /// Decodes what follows the header of a reply without an error to a request of this kind.
    ///
    /// # Errors
    ///
    /// [`Breach::Malformed`].
    pub fn decode(code: OpCode, body: &[u8]) -> Result<Self, Breach> {
        let mut from = Reader::new(body);
        let body = match code {
            OpCode::Create | OpCode::CreateContainer => {
                Self::Created { path: from.string()?, stat: Stat::read(&mut from)? }
            }
            OpCode::Exists | OpCode::SetData => Self::Stat(Stat::read(&mut from)?),
            OpCode::GetData => Self::Data { data: from.buffer()?, stat: Stat::read(&mut from)? },
            OpCode::GetChildren => Self::Children(from.vector(4, Reader::text)?),
            OpCode::Sync => Self::Synced { path: from.string()? },
            OpCode::Multi => {
                let mut results = Vec::new();
                while let Some(result) = MultiResult::read(&mut from)? {
                    results.push(result);
                }
                Self::Multi(results)
            }
            OpCode::Delete
            | OpCode::Check
            | OpCode::Ping
            | OpCode::RemoveWatches
            | OpCode::Auth
            | OpCode::CloseSession => Self::Empty,
        };
        from.end()?;
        Ok(body)
    }

    /// Decodes what follows the header of a watch event.
    ///
    /// # Errors
    ///
    /// [`Breach::Malformed`].
    pub fn decode_event(body: &[u8]) -> Result<WatcherEvent, Breach> {
        let mut from = Reader::new(body);
        let event = WatcherEvent::read(&mut from)?;
        from.end()?;
        Ok(event)
    }
}

impl ReplyFrame {
    /// The reply with this error to a request.
    #[must_use]
    pub const fn error(xid: i32, zxid: i64, code: ErrorCode) -> Self {
        Self { header: ReplyHeader { xid, zxid, code }, body: ReplyBody::Empty }
    }

    /// The successful reply to a request.
    #[must_use]
    pub const fn ok(xid: i32, zxid: i64, body: ReplyBody) -> Self {
        Self { header: ReplyHeader { xid, zxid, code: ErrorCode::OK }, body }
    }

    /// A watch event.
    #[must_use]
    pub const fn event(event: WatcherEvent) -> Self {
        Self::ok(XID_EVENT, -1, ReplyBody::Event(event))
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut to = FrameWriter::new(out);
        let ReplyHeader { xid, zxid, code } = self.header;
        to.int(xid).long(zxid).int(code.0);
        match &self.body {
            ReplyBody::Empty => {}
            ReplyBody::Created { path, stat } => {
                to.string(path);
                stat.write(&mut to);
            }
            ReplyBody::Stat(stat) => stat.write(&mut to),
            ReplyBody::Data { data, stat } => {
                to.buffer(data);
                stat.write(&mut to);
            }
            ReplyBody::Children(children) => {
                to.vector(children.iter(), |to, child| {
                    to.string(child);
                });
            }
            ReplyBody::Synced { path } => {
                to.string(path);
            }
            ReplyBody::Multi(results) => {
                results.iter().for_each(|result| result.write(&mut to));
                to.int(-1).bool(true).int(-1);
            }
            ReplyBody::Event(event) => event.write(&mut to),
        }
        to.finish();
    }
}

//! Requests of a client.

use alloc::boxed::Box;
use alloc::vec::Vec;

use bytes::Bytes;

use super::archive::{FrameWriter, Reader};
use super::data::{Acl, CreateMode, WatchKind, numbered};
use super::{XID_AUTH, XID_PING};
use crate::fault::Breach;

numbered! {
    /// The kind of a request.
    OpCode {
        /// Deletes a node.
        Delete = 2,
        /// Reads the state of a node.
        Exists = 3,
        /// Reads a node.
        GetData = 4,
        /// Writes a node.
        SetData = 5,
        /// Lists the children of a node.
        GetChildren = 8,
        /// Waits until the server has caught up with the leader.
        Sync = 9,
        /// Keeps the session alive.
        Ping = 11,
        /// Compares the version of a node, in a transaction.
        Check = 13,
        /// A transaction.
        Multi = 14,
        /// Creates a node.
        Create = 15,
        /// Removes watches.
        RemoveWatches = 18,
        /// Creates a container node.
        CreateContainer = 19,
        /// Logs in.
        Auth = 100,
        /// Ends the session.
        CloseSession = -11,
    }
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// An operation that can be part of a transaction.
    Write(MultiOp),
    /// A transaction: all or nothing.
    Multi(Vec<MultiOp>),
    /// Reads the state of a node. With `watch`, also reports its creation.
    Exists {
        /// The node.
        path: Box<str>,
        /// Whether to report the next change.
        watch: bool,
    },
    /// Reads a node. With `watch`, reports its next change or its deletion.
    GetData {
        /// The node.
        path: Box<str>,
        /// Whether to report the next change.
        watch: bool,
    },
    /// Lists the children of a node.
    GetChildren {
        /// The node.
        path: Box<str>,
        /// Whether to report the next change.
        watch: bool,
    },
    /// Waits until the server has caught up with the leader.
    Sync {
        /// Any node.
        path: Box<str>,
    },
    /// Removes the watches of this client on a node.
    RemoveWatches {
        /// The node.
        path: Box<str>,
        /// Which.
        kind: WatchKind,
    },
    /// Keeps the session alive.
    Ping,
    /// Logs in.
    Auth {
        /// The kind of login, such as `digest`.
        scheme: Box<str>,
        /// For `digest`: `user:password`.
        auth: Bytes,
    },
    /// Ends the session, and deletes its ephemeral nodes.
    CloseSession,
}

/// An operation that writes, or the comparison of a version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MultiOp {
    /// Creates a node: `create2`, or `createContainer`.
    Create {
        /// The node; the start of its name if it is numbered.
        path: Box<str>,
        /// Its data.
        data: Bytes,
        /// Its ACL.
        acl: Vec<Acl>,
        /// Its kind.
        mode: CreateMode,
    },
    /// Deletes a node of this version.
    Delete {
        /// The node.
        path: Box<str>,
        /// The version, or [`ANY_VERSION`](super::ANY_VERSION).
        version: i32,
    },
    /// Writes a node of this version.
    SetData {
        /// The node.
        path: Box<str>,
        /// The data.
        data: Bytes,
        /// The version, or [`ANY_VERSION`](super::ANY_VERSION).
        version: i32,
    },
    /// The node must have this version. Only in a transaction.
    Check {
        /// The node.
        path: Box<str>,
        /// The version, or [`ANY_VERSION`](super::ANY_VERSION).
        version: i32,
    },
}

impl MultiOp {
    /// Returns its kind.
    pub const fn code(&self) -> OpCode {
        match self {
            Self::Create { mode: CreateMode::Container, .. } => OpCode::CreateContainer,
            Self::Create { .. } => OpCode::Create,
            Self::Delete { .. } => OpCode::Delete,
            Self::SetData { .. } => OpCode::SetData,
            Self::Check { .. } => OpCode::Check,
        }
    }

    fn write(&self, to: &mut FrameWriter<'_>) {
        match self {
            Self::Create { path, data, acl, mode } => {
                to.string(path).buffer(data);
                Acl::write_all(acl, to);
                to.int(mode.number());
            }
            Self::Delete { path, version } | Self::Check { path, version } => {
                to.string(path).int(*version);
            }
            Self::SetData { path, data, version } => {
                to.string(path).buffer(data).int(*version);
            }
        }
    }

    /// Reads the operation of this kind; `None` if it is of another.
    fn read(code: OpCode, from: &mut Reader<'_>) -> Result<Option<Self>, Breach> {
        Ok(Some(match code {
            OpCode::Create | OpCode::CreateContainer => {
                let (path, data, acl) = (from.string()?, from.buffer()?, Acl::read_all(from)?);
                let mode = CreateMode::of_number(from.int()?).ok_or(Breach::Malformed)?;
                // The number of a container node belongs to the operation that creates one.
                if (mode == CreateMode::Container) != (code == OpCode::CreateContainer) {
                    return Err(Breach::Malformed);
                }
                Self::Create { path, data, acl, mode }
            }
            OpCode::Delete => Self::Delete { path: from.string()?, version: from.int()? },
            OpCode::Check => Self::Check { path: from.string()?, version: from.int()? },
            OpCode::SetData => Self::SetData { path: from.string()?, data: from.buffer()?, version: from.int()? },
            OpCode::Exists
            | OpCode::GetData
            | OpCode::GetChildren
            | OpCode::Sync
            | OpCode::Ping
            | OpCode::Multi
            | OpCode::RemoveWatches
            | OpCode::Auth
            | OpCode::CloseSession => return Ok(None),
        }))
    }
}

impl Op {
    /// Returns its kind.
    pub const fn code(&self) -> OpCode {
        match self {
            Self::Write(op) => op.code(),
            Self::Multi(_) => OpCode::Multi,
            Self::Exists { .. } => OpCode::Exists,
            Self::GetData { .. } => OpCode::GetData,
            Self::GetChildren { .. } => OpCode::GetChildren,
            Self::Sync { .. } => OpCode::Sync,
            Self::RemoveWatches { .. } => OpCode::RemoveWatches,
            Self::Ping => OpCode::Ping,
            Self::Auth { .. } => OpCode::Auth,
            Self::CloseSession => OpCode::CloseSession,
        }
    }

    /// Returns true if it sets a watch.
    pub const fn watches(&self) -> bool {
        match self {
            Self::Exists { watch, .. } | Self::GetData { watch, .. } | Self::GetChildren { watch, .. } => *watch,
            Self::Write(_)
            | Self::Multi(_)
            | Self::Sync { .. }
            | Self::Ping
            | Self::Auth { .. }
            | Self::RemoveWatches { .. }
            | Self::CloseSession => false,
        }
    }

    /// Returns the `xid` of operations that have a fixed one.
    pub const fn fixed_xid(&self) -> Option<i32> {
        match self {
            Self::Ping => Some(XID_PING),
            Self::Auth { .. } => Some(XID_AUTH),
            Self::Write(_)
            | Self::Multi(_)
            | Self::Exists { .. }
            | Self::GetData { .. }
            | Self::GetChildren { .. }
            | Self::Sync { .. }
            | Self::RemoveWatches { .. }
            | Self::CloseSession => None,
        }
    }
}

/// A request with its number. The replies follow in the order of the requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestFrame {
    /// The number that the reply repeats.
    pub xid: i32,
    /// The operation.
    pub op: Op,
}

impl RequestFrame {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut to = FrameWriter::new(out);
        to.int(self.xid).int(self.op.code().number());
        match &self.op {
            Op::Write(op) => op.write(&mut to),
            Op::Multi(ops) => {
                for op in ops {
                    to.int(op.code().number()).bool(false).int(-1);
                    op.write(&mut to);
                }
                to.int(-1).bool(true).int(-1);
            }
            Op::Exists { path, watch } | Op::GetData { path, watch } | Op::GetChildren { path, watch } => {
                to.string(path).bool(*watch);
            }
            Op::Sync { path } => {
                to.string(path);
            }
            Op::RemoveWatches { path, kind } => {
                to.string(path).int(kind.number());
            }
            Op::Auth { scheme, auth } => {
                to.int(0).string(scheme).buffer(auth);
            }
            Op::Ping | Op::CloseSession => {}
        }
        to.finish();
    }

    /// Decodes the content of a frame.
    ///
    /// # Errors
    ///
    /// [`Breach::Malformed`], also for an operation that a lock does not need.
    pub fn decode(frame: &[u8]) -> Result<Self, Breach> {
        let mut from = Reader::new(frame);
        let xid = from.int()?;
        let code = OpCode::of_number(from.int()?).ok_or(Breach::Malformed)?;
        let op = match code {
            OpCode::Exists => Op::Exists { path: from.string()?, watch: from.bool()? },
            OpCode::GetData => Op::GetData { path: from.string()?, watch: from.bool()? },
            OpCode::GetChildren => Op::GetChildren { path: from.string()?, watch: from.bool()? },
            OpCode::Sync => Op::Sync { path: from.string()? },
            OpCode::RemoveWatches => {
                let path = from.string()?;
                Op::RemoveWatches { path, kind: WatchKind::of_number(from.int()?).ok_or(Breach::Malformed)? }
            }
            OpCode::Auth => {
                let _kind = from.int()?;
                Op::Auth { scheme: from.string()?, auth: from.buffer()? }
            }
            OpCode::Ping => Op::Ping,
            OpCode::CloseSession => Op::CloseSession,
            OpCode::Multi => Op::Multi(read_multi(&mut from)?),
            OpCode::Check => return Err(Breach::Malformed),
            OpCode::Create | OpCode::CreateContainer | OpCode::Delete | OpCode::SetData => {
                Op::Write(MultiOp::read(code, &mut from)?.ok_or(Breach::Malformed)?)
            }
        };
        from.end()?;
        Ok(Self { xid, op })
    }
}

fn read_multi(from: &mut Reader<'_>) -> Result<Vec<MultiOp>, Breach> {
    let mut ops = Vec::new();
    loop {
        let (code, done, _error) = (from.int()?, from.bool()?, from.int()?);
        if done {
            return Ok(ops);
        }
        let code = OpCode::of_number(code).ok_or(Breach::Malformed)?;
        ops.push(MultiOp::read(code, from)?.ok_or(Breach::Malformed)?);
    }
}

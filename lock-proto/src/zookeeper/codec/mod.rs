//! The client protocol of ZooKeeper in both directions: requests, replies, watch events, frames.
//!
//! Records and numbers are those of [`zookeeper.jute`], `ZooDefs.OpCode` and `KeeperException.Code`
//! (ZooKeeper 3.5.1 and later). Only what a lock needs is here. Every decoder is bounded: it
//! allocates no more than a small multiple of the bytes that it was given.
//!
//! [`zookeeper.jute`]: https://github.com/apache/zookeeper/blob/master/zookeeper-jute/src/main/resources/zookeeper.jute

mod archive;
mod connect;
mod data;
mod error_code;
mod frame;
mod names;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use connect::{ConnectRequest, ConnectResponse};
pub use data::{Acl, CreateMode, EventType, KeeperState, Permissions, Stat, WatchKind, WatcherEvent};
pub use error_code::ErrorCode;
pub use frame::Frames;
pub use names::Names;
pub use reply::{MultiResult, ReplyBody, ReplyFrame, ReplyHeader};
pub use request::{MultiOp, Op, OpCode, RequestFrame};

/// The `xid` of watch events.
pub const XID_EVENT: i32 = -1;
/// The `xid` of pings and their replies.
pub const XID_PING: i32 = -2;
/// The `xid` of `auth` packets and their replies.
pub const XID_AUTH: i32 = -4;

/// The version that matches every node, for `delete`, `setData` and `check`.
pub const ANY_VERSION: i32 = -1;

/// The largest frame that this client accepts by default, as much as Java's client.
pub const MAX_FRAME: usize = 4 * 1024 * 1024;

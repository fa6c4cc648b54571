//! Locks on Redis (6.2 or later) and Valkey: one node, or a quorum of several.

mod batch;
mod burst;
mod client;
mod config;
mod event;
mod listener;
mod lock;
mod locks;
mod pipe;
mod request;
pub mod script;
mod server_error;
pub mod step;
mod token;
mod url;
mod validity;
mod verify;

use core::time::Duration;

pub use client::{Client, Output};
pub use config::{Config, Drift, MAX_FENCE_BLOCK, MAX_NAME, MAX_TTL, MIN_TTL, Poll, UnknownAge, Wake};
pub use event::{
    Acquire, Answer, Blocked, Event, Failure, Fence, Grant, LocksOutput, Loss, Release, Renew, Report, Wait,
};
pub use locks::Locks;
pub(crate) use pipe::Waiting;
pub use pipe::{Hello, Limits, Pipe, PipeConfig, PipeOutput, ServerInfo};
#[cfg(all(test, feature = "sim"))]
pub(crate) use request::Flaw;
pub use request::{
    Cause, ErrorClass, Expiry, FENCE_NAME, FenceBlock, Form, Identity, Key, RESERVED, Reply, Request, SIGNAL_SUFFIX,
    ServerError, Value, WAITING_SUFFIX,
};
pub(crate) use server_error::printable;
pub use token::{CLIENT_PART, Spent, Token};
pub use url::{Endpoint, Protocol, Secret, Target, UrlError};
pub(crate) use url::{parse_host, parse_login, shown};

/// The TTL that is used if none is given.
pub const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// The most nodes that a quorum may have.
pub const MAX_NODES: usize = 15;

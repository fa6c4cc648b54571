//! Locks on Redis (6.2 or later) and Valkey: one node, or a quorum of several.

mod batch;
mod client;
#[expect(unnameable_types, reason = "a part of `Config`, which applications need not name")]
mod config;
mod key;
#[expect(unnameable_types, reason = "parts of `Client`, which applications need not name")]
mod link;
mod listener;
#[expect(unnameable_types, reason = "parts of `Locks`, which applications need not name")]
mod lock;
mod locks;
mod output;
#[expect(unnameable_types, reason = "parts of `Pipe`")]
mod pipe;
mod request;
pub mod script;
mod server_error;
pub mod step;
mod token;
mod url;
mod validity;
mod verify;

pub use crate::lock::Output;
pub use client::Client;
pub use config::{Config, MAX_FENCE_BLOCK, UnknownAge, Wake};
pub use key::{FENCE_NAME, Key, KeyLayout, RESERVED, SIGNAL_SUFFIX, WAITING_SUFFIX};
pub use locks::Locks;
pub use output::LocksOutput;
#[doc(hidden)]
pub use pipe::Resp;
pub use pipe::{Hello, Limits, Pipe, PipeConfig, PipeOutput, ServerInfo};
pub use request::{FenceBlock, Form, Identity, Reply, Request, Value};
pub use token::{CLIENT_PART, Retired};
pub use url::{Endpoint, Protocol, scheme};

/// Maximum number of nodes in a quorum.
pub const MAX_NODES: usize = 15;

//! Redis: its machine as a [`ByteClient`], and its URLs.

use alloc::vec::Vec;

use super::bytes::{self, ByteClient, ByteLoop, Duty, Output};
use super::client::Client;
use super::clock::Clock as _;
use super::connect::ConnectError;
use super::engine::Notification;
use super::host::Host;
use crate::fault::Fault;
use crate::id::{ClientId, ConnId, NodeId, Role};
use crate::lock::{Cause, ErrorClass, ServerError};
use crate::redis::{self, Config, Endpoint};
use crate::time::Instant;
use crate::url::Target;

pub(super) type Driver<H> = ByteLoop<H, redis::Client>;

/// One server, or an odd number of them.
pub(super) fn parse(urls: &[&str]) -> Result<Config, ConnectError> {
    let nodes = urls.iter().map(|url| Endpoint::parse(url)).collect::<Result<Vec<_>, _>>()?;
    Ok(Config::new(nodes))
}

pub(super) fn start<H: Host>(
    host: H,
    config: Config,
    id: ClientId,
    seed: u64,
) -> Result<(Client, Driver<H>), ConnectError> {
    let client = redis::Client::new(host.clock().now(), config, id, seed)?;
    Ok(bytes::start(host, client, id))
}

impl ByteClient for redis::Client {
    fn target(&self, node: NodeId) -> Option<&Target> {
        self.endpoint(node).map(|endpoint| &endpoint.target)
    }

    fn handle_connected(&mut self, now: Instant, conn: ConnId) {
        self.handle_connected(now, conn);
    }

    fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault) {
        self.handle_disconnected(now, conn, why);
    }

    fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        self.handle_received(now, conn, bytes);
    }

    fn poll_output(&mut self) -> Option<Output> {
        Some(match self.poll_output()? {
            redis::Output::Event { lock, event } => Output::Notify(Notification::Lock(lock, event)),
            redis::Output::Connect { node, conn } => Output::Do(Duty::Connect { node, conn }),
            redis::Output::Disconnect { conn } => Output::Do(Duty::Disconnect { conn }),
            redis::Output::Stopped { unreleased } => Output::Do(Duty::Stopped { unreleased }),
        })
    }

    fn outgoing(&mut self, conn: ConnId) -> &[u8] {
        self.outgoing(conn)
    }

    fn has_outgoing(&self, conn: ConnId) -> bool {
        self.has_outgoing(conn)
    }

    fn consume(&mut self, conn: ConnId, count: usize) {
        self.consume(conn, count);
    }

    fn is_wrong_server(&self, conn: ConnId) -> bool {
        let cause = self.down_cause(conn.node());
        let wrong = matches!(cause, Some(Cause::Server(ServerError { class: ErrorClass::Reconnect, .. })));
        wrong && conn.role() == Role::Commands
    }
}

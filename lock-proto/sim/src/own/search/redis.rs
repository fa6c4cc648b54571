//! Redis nodes in a small world.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::time::Duration;

use super::{EPOCH, Place, Small, SmallServers, Wish};
use crate::own::client::OwnClient;
use crate::own::connections::Connections;
use crate::own::lock::OwnLock;
use crate::redis::input::{self, InputLimits, ParsedInput};
use crate::redis::{Node, NodeConfig, RespReply};
use crate::search::Canon;
use lock_proto::ByteClient as _;
use lock_proto::Instant;
use lock_proto::lock::Output;
use lock_proto::redis::{Config, Endpoint};
use lock_proto::{ClientId, ConnId};

impl SmallServers for Vec<Node> {
    type Request = Vec<u8>;
    type Reply = Vec<u8>;
    const NODE: &'static str = "node";
    const RESTARTS: &'static str = "restarts without its data";

    fn connect(&mut self, now: Instant, (node, number): Place) {
        self[node].handle_connected(now, number);
    }

    fn disconnect(&mut self, now: Instant, (node, number): Place) {
        self[node].handle_disconnected(now, number);
    }

    fn execute(&mut self, now: Instant, (node, number): Place, bytes: &Vec<u8>) {
        self[node].handle_received(now, number, bytes);
    }

    fn restart(&mut self, now: Instant, node: usize) {
        self[node].restart(now, false);
    }

    fn pass(&mut self, now: Instant) {
        self.iter_mut().for_each(|node| node.handle_timeout(now));
    }

    fn collect(&mut self, open: &[Place]) -> Vec<(u64, Vec<u8>)> {
        let mut found = Vec::new();
        for (node, number) in open {
            let bytes = self[*node].outgoing(*number).to_vec();
            if !bytes.is_empty() {
                self[*node].consume(*number, bytes.len());
                found.push((*number, bytes));
            }
        }
        found
    }

    fn next(&self, now: Instant) -> Option<Instant> {
        self.iter()
            .flat_map(|node| [node.next_deadline(), node.next_expiry(now)])
            .flatten()
            .filter(|at| *at > now)
            .min()
    }

    fn hash(&self, now: Instant, canon: &mut Canon) {
        self.iter().for_each(|node| node.hash_data(now, canon));
    }

    fn show_request(bytes: &Vec<u8>) -> String {
        let mut bytes = &bytes[..];
        let limits = InputLimits { max_bulk: bytes.len(), authenticated: true };
        let mut texts = Vec::new();
        loop {
            let mut args = Vec::new();
            let ParsedInput::Request { len } = input::parse(bytes, limits, &mut args) else { break };
            // The first line of a script is enough.
            let words = args.iter().map(|arg| arg.escape_ascii().to_string());
            let words = words.map(|word| word.split("\\n").next().unwrap_or_default().into());
            texts.push(words.collect::<Vec<String>>().join(" "));
            bytes = &bytes[len..];
        }
        texts.join("; ")
    }

    fn show_reply(bytes: &Vec<u8>) -> String {
        let mut bytes = &bytes[..];
        let mut texts = Vec::new();
        while let Some((reply, len)) = RespReply::decode(bytes) {
            texts.push(match reply.bytes() {
                Some(bytes) => bytes.escape_ascii().to_string(),
                None => format!("{reply:?}"),
            });
            bytes = &bytes[len..];
        }
        texts.join("; ")
    }
}

impl<L: OwnLock> Small<L> for Connections {
    type Servers = Vec<Node>;

    fn servers(lock: &L, count: usize) -> Vec<Node> {
        let node = |node| {
            let config = NodeConfig::new(node as u64 + 1).uptime(Duration::from_secs(3_600));
            let scripts = lock.scripts().iter();
            Node::new(EPOCH, scripts.fold(config, |config, (source, run)| config.script(source, *run)))
        };
        (0..count).map(node).collect()
    }

    fn client(nodes: usize, id: ClientId, lock: L) -> OwnClient<L> {
        let endpoints = (0..nodes).filter_map(|node| Endpoint::parse(&format!("redis://node{node}")).ok());
        OwnClient::new(&Config::new(endpoints), id, 1, lock)
    }

    fn poll(client: &mut OwnClient<L>, open: &[ConnId]) -> Option<Wish<Vec<u8>>> {
        if let Some(output) = client.poll_output() {
            return Some(match output {
                Output::Connect { conn, .. } => Wish::Connect(conn),
                Output::Disconnect { conn, .. } => Wish::Disconnect(conn),
                Output::Event { lock, event } => Wish::Event(lock, event),
                Output::Operation { .. } | Output::Credentials { .. } | Output::Stopped { .. } => Wish::Nothing,
            });
        }
        let conn = open.iter().copied().find(|conn| client.has_outgoing(*conn))?;
        let bytes = client.outgoing(conn).to_vec();
        client.consume(conn, bytes.len());
        Some(Wish::Send(conn, bytes))
    }

    fn deliver(client: &mut OwnClient<L>, now: Instant, conn: ConnId, bytes: Vec<u8>) {
        client.handle_received(now, conn, &bytes);
    }
}

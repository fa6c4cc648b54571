//! The members of an etcd cluster in a small world.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use super::{EPOCH, Place, Small, SmallServers, Wish};
use crate::etcd::{Cluster, ClusterConfig, ClusterOutput, EtcdClient as _};
use crate::own::etcd::{Calls, OwnClient, OwnLock};
use crate::search::Canon;
use crate::world::etcd::EtcdMessage;
use lock_proto::Instant;
use lock_proto::etcd::{Config, Endpoint, Output, RpcId, StreamId, StreamKind};
use lock_proto::{ClientId, ConnId};

/// The number of a stream at its member says its kind.
const fn number(stream: StreamId) -> u64 {
    stream.serial() << 1 | matches!(stream.kind(), StreamKind::Watch) as u64
}

const fn stream(conn: ConnId, number: u64) -> StreamId {
    let kind = if number & 1 == 1 { StreamKind::Watch } else { StreamKind::KeepAlive };
    StreamId::new(conn, kind, number >> 1)
}

/// Returns what a client sends by this output, and its connection.
fn request(output: Output) -> Option<(ConnId, EtcdMessage)> {
    match output {
        Output::Call { rpc, request, .. } => {
            Some((rpc.conn(), EtcdMessage::Call { rpc: rpc.serial(), token: None, request }))
        }
        Output::Open { stream, .. } => {
            Some((stream.conn(), EtcdMessage::Open { stream: number(stream), kind: stream.kind(), token: None }))
        }
        Output::Send { stream, message } => {
            Some((stream.conn(), EtcdMessage::Send { stream: number(stream), message }))
        }
        Output::Close { stream } => Some((stream.conn(), EtcdMessage::Close { stream: number(stream) })),
        Output::Connect { .. }
        | Output::Disconnect { .. }
        | Output::Event { .. }
        | Output::Operation { .. }
        | Output::Credentials { .. }
        | Output::Stopped { .. } => None,
    }
}

fn show(wires: &[EtcdMessage]) -> String {
    wires.iter().map(EtcdMessage::to_string).collect::<Vec<_>>().join("; ")
}

impl SmallServers for Cluster {
    type Request = Vec<EtcdMessage>;
    type Reply = Vec<EtcdMessage>;
    const NODE: &'static str = "member";
    const RESTARTS: &'static str = "restarts";

    fn connect(&mut self, now: Instant, (member, conn): Place) {
        self.handle_connected(now, member, conn);
    }

    fn disconnect(&mut self, now: Instant, (_, conn): Place) {
        self.handle_disconnected(now, conn);
    }

    fn execute(&mut self, now: Instant, (_, conn): Place, requests: &Vec<EtcdMessage>) {
        requests.iter().for_each(|request| match request {
            EtcdMessage::Call { rpc, request, .. } => self.handle_call(now, conn, *rpc, None, request),
            EtcdMessage::Open { stream, kind, .. } => self.handle_open(now, conn, *stream, *kind, None),
            EtcdMessage::Send { stream, message } => self.handle_send(now, conn, *stream, message),
            EtcdMessage::Close { stream } => self.handle_close(now, conn, *stream),
            // Only members send these.
            EtcdMessage::Reply { .. } | EtcdMessage::Message { .. } | EtcdMessage::Ended { .. } => {}
        });
    }

    fn restart(&mut self, now: Instant, member: usize) {
        self.crash(now, member);
        self.start(now, member);
    }

    fn pass(&mut self, now: Instant) {
        self.handle_timeout(now);
    }

    fn collect(&mut self, _: &[Place]) -> Vec<(u64, Vec<EtcdMessage>)> {
        let mut found = BTreeMap::<u64, Vec<EtcdMessage>>::new();
        while let Some(output) = self.poll_output() {
            let conn = output.conn();
            let reply = match output {
                ClusterOutput::Reply { rpc, reply, .. } => EtcdMessage::Reply { rpc, reply },
                ClusterOutput::Message { stream, message, .. } => EtcdMessage::Message { stream, message },
                ClusterOutput::Ended { stream, status, .. } => EtcdMessage::Ended { stream, status },
                // The connections of a member that restarts are cut by the search.
                ClusterOutput::Dropped { .. } => continue,
            };
            found.entry(conn).or_default().push(reply);
        }
        found.into_iter().collect()
    }

    fn next(&self, _: Instant) -> Option<Instant> {
        self.next_deadline()
    }

    fn hash(&self, _: Instant, canon: &mut Canon) {
        self.hash_data(canon);
    }

    fn show_request(requests: &Vec<EtcdMessage>) -> String {
        show(requests)
    }

    fn show_reply(replies: &Vec<EtcdMessage>) -> String {
        show(replies)
    }
}

impl<L: OwnLock> Small<L> for Calls {
    type Servers = Cluster;

    fn servers(_: &L, count: usize) -> Cluster {
        Cluster::new(EPOCH, ClusterConfig::new(count, 1))
    }

    fn client(members: usize, id: ClientId, lock: L) -> OwnClient<L> {
        let endpoints = (0..members).filter_map(|member| Endpoint::parse(&format!("member{member}")).ok());
        OwnClient::of_cluster(&Config::new(endpoints), id, 1, lock)
    }

    fn poll(client: &mut OwnClient<L>, _: &[ConnId]) -> Option<Wish<Vec<EtcdMessage>>> {
        if let Some((conn, first)) = client.transport.poll_request().and_then(request) {
            let rest = core::iter::from_fn(|| client.transport.poll_request().and_then(request));
            return Some(Wish::Send(conn, core::iter::once(first).chain(rest.map(|(_, wire)| wire)).collect()));
        }
        Some(match client.poll_output()? {
            Output::Connect { conn, .. } => Wish::Connect(conn),
            Output::Disconnect { conn, .. } => Wish::Disconnect(conn),
            Output::Event { lock, event } => Wish::Event(lock, event),
            Output::Call { .. } | Output::Open { .. } | Output::Send { .. } | Output::Close { .. } => Wish::Nothing,
            Output::Operation { .. } | Output::Credentials { .. } | Output::Stopped { .. } => Wish::Nothing,
        })
    }

    fn deliver(client: &mut OwnClient<L>, now: Instant, conn: ConnId, replies: Vec<EtcdMessage>) {
        for reply in replies {
            match reply {
                EtcdMessage::Reply { rpc, reply } => client.handle_reply(now, RpcId::new(conn, rpc), reply),
                EtcdMessage::Message { stream: number, message } => {
                    client.handle_message(now, stream(conn, number), message)
                }
                EtcdMessage::Ended { stream: number, status } => {
                    client.handle_stream_ended(now, stream(conn, number), status)
                }
                // Only clients send these.
                EtcdMessage::Call { .. }
                | EtcdMessage::Open { .. }
                | EtcdMessage::Send { .. }
                | EtcdMessage::Close { .. } => {}
            }
        }
    }
}

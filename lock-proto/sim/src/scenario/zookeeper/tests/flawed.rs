//! Rewrites requests and replies between a ZooKeeper client and the world.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use bytes::Bytes;

use super::same_guid::SameGuid;
use crate::scenario::flawed::{Flawed, OpenedConnections};
use lock_proto::ConfigError;
use lock_proto::Instant;
use lock_proto::lock::Output;
use lock_proto::zookeeper::codec::{
    ConnectRequest, ConnectResponse, CreateMode, ErrorCode, Frames, MultiOp, MultiResult, Op, ReplyBody, ReplyFrame,
    ReplyHeader, RequestFrame, XID_PING,
};
use lock_proto::zookeeper::{Client, Config};
use lock_proto::{ByteClient, Event, Fence};
use lock_proto::{ClientId, ConnId, LockId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerFlaw {
    None,
    /// The reply to a ping counts as a renewal of the session.
    RenewsByPings,
    /// Nodes are watched by `exists`, which leaves a watch behind if the node is gone.
    WatchesByExists,
    /// The fencing token is the sequence number.
    FencesBySequence,
    /// Every create is sent twice.
    SendsTwice,
    /// An own node is recognised by its GUID, whatever session it belongs to.
    RecognisesByGuid,
    /// A refused deletion counts as done.
    IgnoresRefusals,
    /// Sessions are not renewed by writes.
    NeverRenews,
    /// Once a connection was lost, no node is watched.
    NeverWatchesAgain,
    /// A shutdown is reported to have left nothing, whatever is left.
    HidesLeftovers,
    /// Queries for the leader have no answer.
    ForgetsQueries,
    /// Proclaims have no answer.
    ForgetsProclaims,
    /// Extensions have no answer.
    ForgetsExtensions,
    /// Sessions live a quarter shorter than the client believes.
    ShortensSessions,
    /// The fencing token is that of the next transaction.
    ShiftsTokens,
}

#[derive(Clone, Debug)]
pub(super) struct FrameRewriter {
    flaw: ServerFlaw,
    same_guid: SameGuid,
    wires: BTreeMap<ConnId, FlawedFrames>,
    connections: OpenedConnections,
}

#[derive(Clone, Debug, Default)]
struct FlawedFrames {
    sent: Frames,
    received: Frames,
    connected: bool,
    /// The session, once the server has accepted the connection.
    session: Option<i64>,
    /// Rewritten bytes that are not yet written.
    rewritten: Vec<u8>,
    /// Pings under way: the number of the renewal that each replaces, and its length.
    pings: VecDeque<Option<(i32, usize)>>,
    /// Numbers of requests that were rewritten to `exists`.
    exists: Vec<i32>,
    /// Requests under way: their numbers, and whether the client knows of them.
    pending: VecDeque<(i32, bool)>,
}

/// Returns a constructor of clients with this flaw.
pub(super) fn clients(
    flaw: ServerFlaw,
) -> impl Fn(Instant, Config, ClientId, u64) -> Result<Flawed<Client, FrameRewriter>, ConfigError> + 'static {
    move |now, config, id, seed| {
        let (same_guid, wires, connections) = (SameGuid::default(), BTreeMap::new(), OpenedConnections::default());
        let rewriter = FrameRewriter { flaw, same_guid, wires, connections };
        Ok(Flawed::new(Client::new(now, config, id, seed)?, rewriter))
    }
}

fn push_raw(frame: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(frame.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(frame);
}

impl FlawedFrames {
    fn send(&mut self, flaw: ServerFlaw, same_guid: &mut SameGuid, lost: bool, mut bytes: &[u8]) {
        while let Ok(Some(frame)) = self.sent.next(&mut bytes, usize::MAX) {
            let request = RequestFrame::decode(frame).ok().filter(|_| self.connected);
            self.connected = true;
            let Some(mut request) = request else {
                if flaw == ServerFlaw::ShortensSessions
                    && let Ok(mut request) = ConnectRequest::decode(frame)
                {
                    request.timeout_ms -= request.timeout_ms / 4;
                    request.encode(&mut self.rewritten);
                    continue;
                }
                push_raw(frame, &mut self.rewritten);
                continue;
            };
            let xid = request.xid;
            match (flaw, &request.op) {
                (ServerFlaw::NeverRenews, Op::Multi(_)) => continue,
                (ServerFlaw::NeverWatchesAgain, Op::GetData { path, watch: true }) if lost => {
                    request.op = Op::GetData { path: path.clone(), watch: false };
                }
                (ServerFlaw::RenewsByPings, Op::Ping) => self.pings.push_back(None),
                (ServerFlaw::RenewsByPings, Op::Multi(checks)) => {
                    self.pings.push_back(Some((xid, checks.len())));
                    request = RequestFrame { xid: XID_PING, op: Op::Ping };
                }
                (ServerFlaw::WatchesByExists, Op::GetData { path, watch: true }) => {
                    self.exists.push(xid);
                    request.op = Op::Exists { path: path.clone(), watch: true };
                }
                (ServerFlaw::SendsTwice, op) => {
                    let create = matches!(op, Op::Write(MultiOp::Create { mode: CreateMode::EphemeralSequential, .. }));
                    if create {
                        self.pending.push_back((xid, false));
                        request.encode(&mut self.rewritten);
                    }
                    self.pending.push_back((xid, true));
                }
                (ServerFlaw::RecognisesByGuid, op) => {
                    let mut frame = frame.to_vec();
                    same_guid.send(self.session.unwrap_or(0), op, &mut frame);
                    push_raw(&frame, &mut self.rewritten);
                    continue;
                }
                _ => {}
            }
            request.encode(&mut self.rewritten);
        }
    }

    fn receive(&mut self, flaw: ServerFlaw, same_guid: &mut SameGuid, mut bytes: &[u8], out: &mut Vec<u8>) {
        while let Ok(Some(frame)) = self.received.next(&mut bytes, usize::MAX) {
            let Some(session) = self.session else {
                self.session = Some(same_guid.connected(frame));
                if flaw == ServerFlaw::ShortensSessions
                    && let Ok(mut response) = ConnectResponse::decode(frame)
                {
                    response.timeout_ms += response.timeout_ms / 3;
                    response.encode(out);
                    continue;
                }
                push_raw(frame, out);
                continue;
            };
            if flaw == ServerFlaw::RecognisesByGuid {
                let mut frame = frame.to_vec();
                same_guid.receive(session, &mut frame);
                push_raw(&frame, out);
                continue;
            }
            let Ok((header, body)) = ReplyHeader::decode(frame) else { continue };
            if header.xid == XID_PING
                && let Some(Some((xid, len))) = self.pings.pop_front()
            {
                let results = (0..len).map(|_| MultiResult::Checked).collect();
                ReplyFrame { header: ReplyHeader { xid, ..header }, body: ReplyBody::Multi(results) }.encode(out);
                continue;
            }
            if flaw == ServerFlaw::IgnoresRefusals && header.code == ErrorCode::NO_AUTH {
                ReplyFrame { header: ReplyHeader { code: ErrorCode::NO_NODE, ..header }, body: ReplyBody::Empty }
                    .encode(out);
                continue;
            }
            if let Some(place) = self.exists.iter().position(|xid| *xid == header.xid) {
                self.exists.remove(place);
                let code = lock_proto::zookeeper::codec::OpCode::Exists;
                if let (ErrorCode::OK, Ok(ReplyBody::Stat(stat))) = (header.code, ReplyBody::decode(code, body)) {
                    ReplyFrame { header, body: ReplyBody::Data { data: Bytes::new(), stat } }.encode(out);
                    continue;
                }
            }
            if self.pending.front().is_some_and(|(xid, _)| *xid == header.xid)
                && let Some((_, false)) = self.pending.pop_front()
            {
                continue;
            }
            push_raw(frame, out);
        }
    }
}

impl ByteClient for Flawed<Client, FrameRewriter> {
    fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        let mut rewritten = Vec::new();
        let FrameRewriter { flaw, same_guid, wires, .. } = &mut self.flaw;
        wires.entry(conn).or_default().receive(*flaw, same_guid, bytes, &mut rewritten);
        if !rewritten.is_empty() {
            self.client.handle_received(now, conn, &rewritten);
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        let mut output = self.client.poll_output()?;
        while self.forgets(&output) {
            output = self.client.poll_output()?;
        }
        if let (ServerFlaw::HidesLeftovers, Output::Stopped { unreleased }) = (self.flaw.flaw, &mut output) {
            *unreleased = 0;
        }
        if let Output::Disconnect { conn, .. } = &output {
            self.flaw.connections.closed(*conn);
        }
        if let Output::Connect { conn, .. } = &output {
            self.flaw.connections.opened(*conn);
        }
        if let (ServerFlaw::FencesBySequence, Output::Event { lock, event: Event::Granted(grant) }) =
            (self.flaw.flaw, &mut output)
        {
            let number = self.sequence(*lock);
            grant.fence = grant.fence.map(|fence| Fence::new(number << 16 | fence.get() & 0xffff));
        }
        if let (ServerFlaw::ShiftsTokens, Output::Event { event: Event::Granted(grant), .. }) =
            (self.flaw.flaw, &mut output)
        {
            grant.fence = grant.fence.map(|fence| Fence::new(fence.get() + (1 << 16)));
        }
        Some(output)
    }

    fn outgoing(&mut self, conn: ConnId) -> &[u8] {
        let FrameRewriter { flaw, same_guid, wires, connections } = &mut self.flaw;
        let wire = wires.entry(conn).or_default();
        loop {
            let bytes = self.client.outgoing(conn).to_vec();
            if bytes.is_empty() {
                return &wire.rewritten;
            }
            self.client.consume(conn, bytes.len());
            wire.send(*flaw, same_guid, connections.lost, &bytes);
        }
    }

    fn has_outgoing(&self, conn: ConnId) -> bool {
        let rewritten = self.flaw.wires.get(&conn).is_some_and(|wire| !wire.rewritten.is_empty());
        rewritten || self.client.has_outgoing(conn)
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        if let Some(wire) = self.flaw.wires.get_mut(&conn) {
            wire.rewritten.drain(..n);
        }
    }
}

impl Flawed<Client, FrameRewriter> {
    const fn forgets(&self, output: &Output) -> bool {
        match self.flaw.flaw {
            ServerFlaw::ForgetsQueries => matches!(output, Output::Operation { .. }),
            ServerFlaw::ForgetsProclaims => {
                matches!(output, Output::Event { event: Event::Proclaimed { .. } | Event::ProclaimFailed(_), .. })
            }
            ServerFlaw::ForgetsExtensions => {
                matches!(output, Output::Event { event: Event::Extended | Event::ExtendFailed(_), .. })
            }
            _ => false,
        }
    }

    fn sequence(&self, lock: LockId) -> u64 {
        let path = self.client.owner(lock).map(|owner| owner.path).unwrap_or_default();
        path.get(path.len().saturating_sub(10)..).and_then(|number| number.parse().ok()).unwrap_or_default()
    }
}

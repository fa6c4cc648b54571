//! Rewrites requests and replies between a Redis client and the world.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::time::Duration;

use crate::redis::input::{self, InputLimits, ParsedInput};
use crate::scenario::flawed::{Flawed, OpenedConnections};
use crate::world::redis::RedisClient;
use crate::world::redis::tap::reply_len;
use lock_proto::ByteClient;
use lock_proto::ConfigError;
use lock_proto::Instant;
use lock_proto::redis::script::{self, Script};
use lock_proto::redis::{CLIENT_PART, Client, Config, Output};
use lock_proto::{ClientId, ConnId, LockId, NodeId, Role};
use lock_proto::{Event, Fence, Release, Token};

/// A flaw that can be planted in clients of Redis, see [`Plan::flaw`](crate::Plan::flaw).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RedisFlaw {
    /// No flaw: everything passes unchanged.
    None,
    /// Every attempt writes the same token.
    SameToken,
    /// The watchdog continues after a release.
    RenewsForEver,
    /// A release deletes the key without comparing the token.
    DeletesAnything,
    /// Nodes that are the same server count as several.
    CountsEqualNodes,
    /// A node that became another server votes if that server has been running for long enough.
    TrustsUptime,
    /// A release that is notified during an attempt is forgotten.
    ForgetsHints,
    /// Every attempt is sent twice.
    SendsTwice,
    /// Data from a replaced connection counts as if it came over the current one.
    MixesConnections,
    /// Every release is reported as successful, whatever the server replied.
    HidesLoss,
    /// After a delete has been answered, none looks for a key until the next attempt. Attempts that
    /// arrive late stay.
    DeletesOnce,
    /// The connection that waits for wake-ups stays open after the last wait.
    KeepsWakeConnection,
    /// A refused attempt is sent again without a pause.
    RetriesAtOnce,
    /// A request for credentials does not say that the server rejected the last ones.
    HidesRejections,
    /// Locks are never extended.
    NeverRenews,
    /// Once a wake-up connection was lost, none to that node asks for wake-ups.
    NeverWaitsAgain,
    /// A shutdown is reported to have left nothing, whatever is left.
    HidesLeftovers,
    /// Keys live shorter than the client believes.
    ShortensTtl,
    /// A refused renewal counts as done.
    IgnoresRefusedRenewals,
    /// Fencing tokens are those that follow the block which the server minted.
    TokensPastBlock,
    /// Hand-overs repeat the fencing token.
    RepeatsTokens,
    /// A node that restarted empty votes at once.
    TrustsRestartedNodes,
}

impl RedisFlaw {
    /// Every flaw.
    pub const ALL: [Self; 21] = [
        Self::SameToken,
        Self::RenewsForEver,
        Self::DeletesAnything,
        Self::CountsEqualNodes,
        Self::TrustsUptime,
        Self::ForgetsHints,
        Self::SendsTwice,
        Self::MixesConnections,
        Self::HidesLoss,
        Self::DeletesOnce,
        Self::KeepsWakeConnection,
        Self::RetriesAtOnce,
        Self::HidesRejections,
        Self::NeverRenews,
        Self::NeverWaitsAgain,
        Self::HidesLeftovers,
        Self::ShortensTtl,
        Self::IgnoresRefusedRenewals,
        Self::TokensPastBlock,
        Self::RepeatsTokens,
        Self::TrustsRestartedNodes,
    ];
}

#[derive(Clone, Debug)]
pub(super) struct ReplyRewriter {
    flaw: RedisFlaw,
    mark: Vec<u8>,
    quarantine: Duration,
    wires: BTreeMap<ConnId, FlawedReplies>,
    /// Run id of the server that the client assumes for each node.
    run_ids: BTreeMap<NodeId, String>,
    /// Released locks that the client still holds.
    ended: Vec<LockId>,
    /// Keys with an answered delete and no attempt since.
    deleted: BTreeSet<Vec<u8>>,
    connections: BTreeMap<(NodeId, Role), OpenedConnections>,
    /// The fencing token of the first grant by each token.
    fences: BTreeMap<Token, Fence>,
}

#[derive(Clone, Debug, Default)]
struct FlawedReplies {
    /// Sent bytes of an incomplete request.
    sent: Vec<u8>,
    /// Rewritten bytes that are not yet written.
    rewritten: Vec<u8>,
    /// Received bytes of an incomplete reply.
    received: Vec<u8>,
    pending: VecDeque<RewrittenRequest>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RewrittenRequest {
    /// An attempt, as it was sent.
    Take(Vec<u8>),
    /// A copy that the client does not know of.
    TakeAgain,
    Wait,
    Extend,
    /// A delete of this key.
    Release(Vec<u8>),
    Other,
}

impl RewrittenRequest {
    fn of(args: &[&[u8]], sent: &[u8]) -> Self {
        let calls = |script: &Script, code: &[u8]| code == script.sha1.as_bytes() || code == script.source.as_bytes();
        match args {
            [b"SET", ..] => Self::Take(sent.to_vec()),
            [_, code, ..] if calls(&script::TAKE, code) => Self::Take(sent.to_vec()),
            [_, code, _, key, ..] if calls(&script::RELEASE, code) => Self::Release(key.to_vec()),
            [_, code, ..] if calls(&script::EXTEND, code) || calls(&script::EXTEND_MANY, code) => Self::Extend,
            [b"BLPOP", ..] => Self::Wait,
            _ => Self::Other,
        }
    }
}

/// Where a request has the TTL of a key.
fn ttl_place(args: &[&[u8]]) -> Option<usize> {
    let is = |script: &Script, code: &[u8]| code == script.sha1.as_bytes() || code == script.source.as_bytes();
    let (code, keys) = (*args.get(1)?, || core::str::from_utf8(args.get(2)?).ok()?.parse::<usize>().ok());
    if args[0] == b"SET" {
        return args.iter().position(|arg| *arg == b"PX").map(|place| place + 1);
    }
    let place = if is(&script::TAKE, code) {
        keys()? + 5
    } else if is(&script::EXTEND, code) {
        keys()? + 4
    } else if is(&script::TAKE_FREE, code) {
        args.len().checked_sub(2)?
    } else if is(&script::EXTEND_MANY, code) {
        args.len().checked_sub(1)?
    } else {
        return None;
    };
    Some(place).filter(|place| *place < args.len())
}

/// Moves the first token of a grant by the length of its block.
fn past_block(reply: &[u8]) -> Option<Vec<u8>> {
    let text = core::str::from_utf8(reply).ok()?.strip_prefix("*4\r\n:1\r\n:")?;
    let mut numbers = text.split("\r\n:").map(|number| number.trim_end().parse::<u64>());
    let (first, count, ahead) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(format!("*4\r\n:1\r\n:{}\r\n:{count}\r\n:{ahead}\r\n", first + count).into_bytes())
}

/// Whether an attempt found the lock held.
fn is_refusal(reply: &[u8]) -> bool {
    reply == b"$-1\r\n" || reply == b"_\r\n" || reply.starts_with(b"*2\r\n:0\r\n")
}

pub(super) fn clients(
    flaw: RedisFlaw,
) -> impl Fn(Instant, Config, ClientId, u64) -> Result<Flawed<Client, ReplyRewriter>, ConfigError> {
    move |now, config, id, seed| {
        let rewriter = ReplyRewriter {
            flaw,
            mark: format!("{id}:").into_bytes(),
            quarantine: config.store.quarantine,
            wires: BTreeMap::new(),
            run_ids: BTreeMap::new(),
            ended: Vec::new(),
            deleted: BTreeSet::new(),
            connections: BTreeMap::new(),
            fences: BTreeMap::new(),
        };
        assert_eq!(rewriter.mark.len(), CLIENT_PART);
        let mut flawed = Flawed::new(Client::new(now, config, id, seed)?, rewriter);
        flawed.withholds_releases = flaw == RedisFlaw::RenewsForEver;
        Ok(flawed)
    }
}

impl ReplyRewriter {
    fn request(&mut self, kind: &RewrittenRequest, args: &[&[u8]]) -> Vec<Vec<u8>> {
        match kind {
            RewrittenRequest::Release(key) if self.flaw == RedisFlaw::DeletesAnything => {
                return Vec::from([b"DEL".to_vec(), key.clone()]);
            }
            RewrittenRequest::Release(key) if self.flaw == RedisFlaw::DeletesOnce && self.deleted.contains(key) => {
                // Compares with a token that no attempt has.
                let is_token = |arg: &&[u8]| arg.starts_with(&self.mark);
                let before = args.iter().take_while(|arg| !is_token(arg)).map(|arg| arg.to_vec());
                return before.chain([[&self.mark[..], b"0"].concat()]).collect();
            }
            RewrittenRequest::Take(_) => self.deleted.retain(|key| !args.contains(&&key[..])),
            RewrittenRequest::Release(_)
            | RewrittenRequest::TakeAgain
            | RewrittenRequest::Wait
            | RewrittenRequest::Extend
            | RewrittenRequest::Other => {}
        }
        let rewrite = |arg: &&[u8]| {
            let is_token = self.flaw == RedisFlaw::SameToken && arg.starts_with(&self.mark);
            if is_token { [&self.mark[..], b"1"].concat() } else { arg.to_vec() }
        };
        let mut rewritten: Vec<Vec<u8>> = args.iter().map(rewrite).collect();
        if self.flaw == RedisFlaw::ShortensTtl
            && let Some(arg) = ttl_place(args).and_then(|place| rewritten.get_mut(place))
            && let Some(ttl) = core::str::from_utf8(arg).ok().and_then(|ttl| ttl.parse::<u64>().ok())
        {
            *arg = (ttl - ttl / 10).to_string().into_bytes();
        }
        rewritten
    }

    /// Rewrites a reply that identifies the server.
    fn reply(&mut self, node: NodeId, reply: &[u8]) -> Vec<u8> {
        if self.flaw == RedisFlaw::TokensPastBlock {
            return past_block(reply).unwrap_or_else(|| reply.to_vec());
        }
        let mut text = String::from_utf8_lossy(reply).into_owned();
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_string);
        let Some(run_id) = line("run_id:") else { return reply.to_vec() };
        let seconds = line("uptime_in_seconds:").unwrap_or_default();
        let uptime = seconds.parse().ok().map(Duration::from_secs);
        let shown = match self.flaw {
            RedisFlaw::CountsEqualNodes => format!("{:02x}{}", node.index(), &run_id[2..]),
            RedisFlaw::TrustsUptime if uptime.is_some_and(|uptime| uptime >= self.quarantine) => {
                self.run_ids.entry(node).or_insert_with(|| run_id.clone()).clone()
            }
            RedisFlaw::TrustsUptime => {
                self.run_ids.insert(node, run_id.clone());
                run_id.clone()
            }
            RedisFlaw::None
            | RedisFlaw::SameToken
            | RedisFlaw::RenewsForEver
            | RedisFlaw::DeletesAnything
            | RedisFlaw::ForgetsHints
            | RedisFlaw::SendsTwice
            | RedisFlaw::MixesConnections
            | RedisFlaw::HidesLoss
            | RedisFlaw::DeletesOnce
            | RedisFlaw::KeepsWakeConnection
            | RedisFlaw::RetriesAtOnce
            | RedisFlaw::HidesRejections
            | RedisFlaw::NeverRenews
            | RedisFlaw::NeverWaitsAgain
            | RedisFlaw::HidesLeftovers
            | RedisFlaw::ShortensTtl
            | RedisFlaw::IgnoresRefusedRenewals
            | RedisFlaw::TokensPastBlock
            | RedisFlaw::RepeatsTokens => run_id.clone(),
            RedisFlaw::TrustsRestartedNodes => {
                // As long, because the length precedes it.
                text = text.replace(
                    &format!("uptime_in_seconds:{seconds}"),
                    &format!("uptime_in_seconds:{}", "9".repeat(seconds.len())),
                );
                self.run_ids.entry(node).or_insert_with(|| run_id.clone()).clone()
            }
        };
        text.replace(&run_id, &shown).into_bytes()
    }

    fn answer(&mut self, conn: ConnId, reply: &[u8]) -> Vec<u8> {
        let request = self.wires.get_mut(&conn).and_then(|wire| wire.pending.pop_front());
        let is_trying =
            || self.wires.values().any(|wire| wire.pending.iter().any(|one| matches!(one, RewrittenRequest::Take(_))));
        match request {
            Some(RewrittenRequest::TakeAgain) => Vec::new(),
            Some(RewrittenRequest::Extend)
                if self.flaw == RedisFlaw::IgnoresRefusedRenewals && matches!(reply.first(), Some(b':' | b'$')) =>
            {
                b":1\r\n".to_vec()
            }
            Some(RewrittenRequest::Take(sent)) if self.flaw == RedisFlaw::RetriesAtOnce && is_refusal(reply) => {
                let wire = self.wires.entry(conn).or_default();
                wire.rewritten.extend_from_slice(&sent);
                wire.pending.push_back(RewrittenRequest::Take(sent));
                Vec::new()
            }
            Some(RewrittenRequest::Wait)
                if self.flaw == RedisFlaw::ForgetsHints && reply.starts_with(b"*2") && is_trying() =>
            {
                b"*-1\r\n".to_vec()
            }
            Some(RewrittenRequest::Release(key)) => {
                if !reply.starts_with(b"-") {
                    self.deleted.insert(key);
                }
                reply.to_vec()
            }
            Some(
                RewrittenRequest::Take(_) | RewrittenRequest::Wait | RewrittenRequest::Extend | RewrittenRequest::Other,
            )
            | None => self.reply(conn.node(), reply),
        }
    }
}

impl RedisClient for Flawed<Client, ReplyRewriter> {
    const CLOSES_IDLE: bool = Client::CLOSES_IDLE;

    fn has_work(&self) -> bool {
        self.client.has_work()
    }
}

impl ByteClient for Flawed<Client, ReplyRewriter> {
    fn handle_received(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        let current = self.flaw.connections.get(&(conn.node(), conn.role())).and_then(|opened| opened.current);
        let mixes = self.flaw.flaw == RedisFlaw::MixesConnections;
        let conn = current.filter(|_| mixes).unwrap_or(conn);
        let mut received = core::mem::take(&mut self.flaw.wires.entry(conn).or_default().received);
        received.extend_from_slice(bytes);
        let (mut at, mut whole) = (0, Vec::new());
        while let Some(len) = reply_len(&received[at..]) {
            whole.extend(self.flaw.answer(conn, &received[at..at + len]));
            at += len;
        }
        self.flaw.wires.entry(conn).or_default().received = received.split_off(at);
        self.client.handle_received(now, conn, &whole);
    }

    fn poll_output(&mut self) -> Option<Output> {
        if let Some(lock) = self.withheld.pop() {
            self.flaw.ended.push(lock);
            return Some(Output::Event { lock, event: Event::Released(Release::Released) });
        }
        loop {
            let output = self.client.poll_output()?;
            if let Output::Connect { node, conn, .. } = &output {
                self.flaw.connections.entry((*node, conn.role())).or_default().opened(*conn);
            }
            if let Output::Disconnect { conn, .. } = &output {
                self.flaw.connections.entry((conn.node(), conn.role())).or_default().closed(*conn);
            }
            // The application gets no further events of it.
            let is_over = matches!(&output, Output::Event { lock, .. } if self.flaw.ended.contains(lock));
            let stays_open = self.flaw.flaw == RedisFlaw::KeepsWakeConnection
                && matches!(&output, Output::Disconnect { conn, .. } if conn.role() == Role::Wake);
            if is_over || stays_open {
                continue;
            }
            return Some(match output {
                Output::Event { lock, event: Event::Released(_) } if self.flaw.flaw == RedisFlaw::HidesLoss => {
                    Output::Event { lock, event: Event::Released(Release::Released) }
                }
                Output::Event { lock, event: Event::Granted(mut grant) }
                    if self.flaw.flaw == RedisFlaw::RepeatsTokens =>
                {
                    if let Some(fence) = grant.fence {
                        grant.fence = Some(*self.flaw.fences.entry(grant.token).or_insert(fence));
                    }
                    Output::Event { lock, event: Event::Granted(grant) }
                }
                Output::Stopped { .. } if self.flaw.flaw == RedisFlaw::HidesLeftovers => {
                    Output::Stopped { unreleased: 0 }
                }
                Output::Credentials { conn, mut request } if self.flaw.flaw == RedisFlaw::HidesRejections => {
                    request.rejected = None;
                    Output::Credentials { conn, request }
                }
                output @ (Output::Connect { .. }
                | Output::Credentials { .. }
                | Output::Disconnect { .. }
                | Output::Event { .. }
                | Output::Operation { .. }
                | Output::Stopped { .. }) => output,
            });
        }
    }

    fn outgoing(&mut self, conn: ConnId) -> &[u8] {
        let mut sent = core::mem::take(&mut self.flaw.wires.entry(conn).or_default().sent);
        loop {
            let bytes = self.client.outgoing(conn);
            if bytes.is_empty() {
                break;
            }
            sent.extend_from_slice(bytes);
            let len = bytes.len();
            self.client.consume(conn, len);
        }
        let (mut at, mut rewritten, mut requests) = (0, Vec::new(), Vec::new());
        let limits = InputLimits { max_bulk: sent.len(), authenticated: true };
        loop {
            let mut args = Vec::new();
            let ParsedInput::Request { len } = input::parse(&sent[at..], limits, &mut args) else { break };
            let kind = RewrittenRequest::of(&args, &sent[at..at + len]);
            let renews = kind == RewrittenRequest::Extend && self.flaw.flaw == RedisFlaw::NeverRenews;
            let lost = self.flaw.connections.get(&(conn.node(), Role::Wake)).is_some_and(|opened| opened.lost);
            let waits = kind == RewrittenRequest::Wait && self.flaw.flaw == RedisFlaw::NeverWaitsAgain;
            if renews || (waits && lost) {
                at += len;
                continue;
            }
            let args = self.flaw.request(&kind, &args);
            let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
            for arg in args {
                bytes.extend(format!("${}\r\n", arg.len()).into_bytes());
                bytes.extend(arg);
                bytes.extend(b"\r\n");
            }
            rewritten.extend_from_slice(&bytes);
            let repeats = self.flaw.flaw == RedisFlaw::SendsTwice && matches!(kind, RewrittenRequest::Take(_));
            requests.push(kind);
            if repeats {
                rewritten.extend(bytes);
                requests.push(RewrittenRequest::TakeAgain);
            }
            at += len;
        }
        let wire = self.flaw.wires.entry(conn).or_default();
        wire.pending.extend(requests);
        wire.sent = sent.split_off(at);
        wire.rewritten.extend(rewritten);
        &wire.rewritten
    }

    fn has_outgoing(&self, conn: ConnId) -> bool {
        let waits = self.flaw.wires.get(&conn).is_some_and(|wire| !wire.rewritten.is_empty());
        waits || self.client.has_outgoing(conn)
    }

    fn consume(&mut self, conn: ConnId, n: usize) {
        if let Some(wire) = self.flaw.wires.get_mut(&conn) {
            wire.rewritten.drain(..n);
        }
    }
}

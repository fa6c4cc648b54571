//! Random hosts and servers, replayed by seed.
// S2

use super::*;
use crate::Credentials;
use crate::jitter::mix;
use alloc::collections::BTreeMap;

struct RandomChannel {
    rig: ChannelRig,
    seed: u64,
    drawn: u64,
    /// Number of replies per request.
    answered: BTreeMap<CallId, u32>,
    /// Watches, and whether they are open.
    watches: BTreeMap<WatchId, bool>,
    conns: Vec<ConnId>,
    rpcs: Vec<RpcId>,
    streams: Vec<StreamId>,
}

impl RandomChannel {
    fn new(seed: u64) -> Self {
        let login = if seed.is_multiple_of(2) { Login::new("app", "pw") } else { Login::default() };
        let request_credentials = seed.is_multiple_of(4);
        let rig = ChannelRig::with(ChannelConfig { login, request_credentials, ..config(1 + (seed / 2 % 3) as u16) });
        let (answered, watches) = (BTreeMap::new(), BTreeMap::new());
        Self { rig, seed, drawn: 0, answered, watches, conns: Vec::new(), rpcs: Vec::new(), streams: Vec::new() }
    }

    fn dice(&mut self, sides: u64) -> u64 {
        self.drawn += 1;
        mix(self.seed, self.drawn) % sides
    }

    fn request(&mut self) {
        match self.dice(5) {
            0..3 => {
                let request = match self.dice(4) {
                    0 => grant(self.seed),
                    1 => Request::KeepAlive { lease: lease(1), ttl: 10 * SECOND },
                    _ => batch::create(["a", "a/b", "b", "c", "d"][self.dice(5) as usize]),
                };
                let timeout = MS * (1 + self.dice(2000) as u32);
                let call = self.rig.send_for(request, timeout);
                self.answered.insert(call, 0);
            }
            3 if self.watches.len() < 5 => {
                let watch = WatchId::new(self.drawn);
                self.rig.channel.watch(self.rig.now, watch, "k".into(), Bytes::new(), false);
                self.watches.insert(watch, false);
            }
            _ => {
                if let Some((watch, _)) = self.watches.pop_first() {
                    self.rig.channel.unwatch(self.rig.now, watch);
                }
            }
        }
    }

    /// Injects a fault, a delay or an unsolicited message.
    fn fault(&mut self) {
        let now = self.rig.now;
        let code = Code::from_number(self.dice(17) as i32);
        let words = ["etcdserver: not leader", "etcdserver: user name is empty", "x"][self.dice(3) as usize];
        match self.dice(6) {
            0 => {
                if let Some(conn) = self.conns.last() {
                    self.rig.channel.handle_disconnected(now, *conn, Fault::Reset);
                }
            }
            1 => {
                if let Some(stream) = self.streams.pop() {
                    self.rig.end(stream, code, words);
                }
            }
            2 | 3 => {
                if let Some(rpc) = self.rpcs.pop() {
                    self.rig.fail(rpc, code, words);
                }
            }
            4 => {
                if let Some(stream) = self.streams.last().copied() {
                    let watch_id = self.dice(20) as i64 - 2;
                    let (created, canceled) = (self.dice(2) == 0, self.dice(2) == 0);
                    let cancel_reason = ["", "permission denied"][self.dice(2) as usize].into();
                    let header = (self.dice(3) > 0).then_some(ResponseHeader { member_id: 1, revision: 3 });
                    let response =
                        WatchResponse { header, watch_id, created, canceled, cancel_reason, ..Default::default() };
                    self.rig.receive_watch(stream, response);
                }
            }
            _ => {
                let by = MS * self.dice(3000) as u32;
                self.rig.pass(by);
            }
        }
    }

    fn until_due(&mut self) {
        if let Some(due) = self.rig.channel.next_deadline() {
            self.rig.pass(due.since(self.rig.now));
        }
    }

    /// Carries out the output. An honest host and server carry out all of it.
    fn drain(&mut self, honest: bool) {
        for _ in 0..1000 {
            let Some(output) = self.rig.channel.poll_output() else { return };
            match output {
                ChannelOutput::Do(output) => self.carry_out(output, honest),
                ChannelOutput::Reply { call, .. } => *self.answered.get_mut(&call).unwrap() += 1,
                ChannelOutput::Watching { watch, .. } => {
                    let open = self.watches.get_mut(&watch).unwrap();
                    assert!(!core::mem::replace(open, true), "seed {}: {watch:?} twice", self.seed);
                }
                ChannelOutput::Unsubscribed { watch } => {
                    let open = self.watches.get_mut(&watch).unwrap();
                    assert!(core::mem::replace(open, false), "seed {}: {watch:?} twice", self.seed);
                }
                ChannelOutput::WatchRefused { watch, .. } => {
                    self.watches.remove(&watch).unwrap();
                }
                ChannelOutput::Changed { .. } => {}
            }
        }
        panic!("seed {}: endless output", self.seed);
    }

    fn carry_out(&mut self, output: Output, honest: bool) {
        let now = self.rig.now;
        match output {
            Output::Connect { conn, .. } => {
                self.conns.push(conn);
                if honest {
                    self.rig.channel.handle_connected(now, conn);
                }
            }
            Output::Credentials { conn, .. } => {
                // Longer than the longest silence: the reply to a login counts as life.
                let (valid_for, present) = (12 + self.dice(30), honest || self.dice(3) > 0);
                let credentials = Credentials::new("pw").valid_for(valid_for as u32 * SECOND);
                self.rig.channel.handle_credentials(now, conn, present.then_some(credentials));
            }
            Output::Call { rpc, request, .. } => {
                self.rpcs.push(rpc);
                let reply = match request {
                    Rpc::Authenticate(_) => {
                        RpcReply::Authenticate(AuthenticateResponse { header: None, token: "t".into() })
                    }
                    Rpc::Grant(request) => {
                        RpcReply::Grant(LeaseGrantResponse { header: None, id: request.id, ttl: 10 })
                    }
                    Rpc::Txn(request) => batch::done(&request),
                    Rpc::Range(probe) if probe.count_only => RpcReply::Range(RangeResponse::default()),
                    other @ (Rpc::Range(_) | Rpc::Revoke(_) | Rpc::MemberList(_)) => panic!("{other:?}"),
                };
                if honest {
                    self.rig.answer(rpc, Ok(reply));
                }
            }
            Output::Open { stream, .. } => self.streams.push(stream),
            Output::Send { stream, message: StreamSend::KeepAlive(message) } if honest => {
                let alive = LeaseKeepAliveResponse { header: None, id: message.id, ttl: 10 };
                self.rig.channel.handle_message(now, stream, StreamReceived::KeepAlive(alive));
            }
            Output::Send { stream, message: StreamSend::Watch(message) } if honest => {
                if let Some(WatchRequestUnion::Create(create)) = message.request {
                    let header = Some(ResponseHeader { member_id: 1, revision: 3 });
                    let watch_id = create.watch_id;
                    self.rig
                        .receive_watch(stream, WatchResponse { header, watch_id, created: true, ..Default::default() });
                }
            }
            Output::Send { .. } | Output::Disconnect { .. } | Output::Close { .. } => {}
            other @ (Output::Event { .. } | Output::Operation { .. } | Output::Stopped { .. }) => panic!("{other:?}"),
        }
    }
}

/// Each request gets exactly one reply, and watches open and close in turn. After the faults, every
/// pending request and watch succeeds.
#[test]
fn every_request_gets_one_reply_and_every_watch_opens_after_faults() {
    // S2
    let (mut open, mut refused) = (0, 0);
    for seed in 0..500 {
        let mut world = RandomChannel::new(seed);
        for _ in 0..300 {
            match world.dice(4) {
                0 => world.request(),
                1 | 2 => world.fault(),
                _ => world.until_due(),
            }
            let honest = world.dice(4) > 0;
            world.drain(honest);
        }
        let before = world.watches.len();
        let end = world.rig.now + 10 * SECOND;
        while world.rig.channel.next_deadline().is_some_and(|due| due <= end) {
            world.until_due();
            world.drain(true);
        }
        assert!(world.answered.values().all(|times| *times == 1), "seed {seed}: {:?}", world.answered);
        assert!(world.watches.values().all(|open| *open), "seed {seed}: {:?} {:?}", world.watches, world.rig.channel);
        open += world.watches.len();
        refused += before - world.watches.len();
    }
    assert!(open > 300 && refused < 100, "{open} opened, {refused} refused");
}

//! A client of etcd, in a store that no other client uses.

use core::time::Duration;
use lock_proto::{LockClient, Machine};
use std::collections::VecDeque;

use lock_proto::etcd::message::{
    DeleteRangeResponse, LeaseGrantResponse, LeaseKeepAliveResponse, Op, OpResponse, PutResponse, RangeResponse,
    RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse, WatchRequestUnion, WatchResponse,
};
use lock_proto::etcd::{Client, Config, Output, Rpc, RpcReply, StreamReceived, StreamSend};
use lock_proto::{Acquire, ClientId, Event, Instant, LockId};

use crate::rig::{self, Rig as _};

/// A client with one open connection and a lease, and its clock.
pub struct Rig {
    client: Client,
    now: Instant,
    revision: i64,
    events: VecDeque<(LockId, Event)>,
}

impl rig::Rig for Rig {
    type Client = Client;

    fn ready() -> Self {
        let now = Instant::from_millis(1_000);
        let config = Config::parse("etcd://127.0.0.1:2379").expect("a good URL");
        let client = Client::new(now, config, ClientId::from_bits(1), 2).expect("good settings");
        let mut rig = Self { client, now, revision: 1, events: VecDeque::with_capacity(16) };
        rig.cycle();
        rig
    }

    fn client(&mut self) -> (&mut Client, Instant) {
        (&mut self.client, self.now)
    }

    fn pass(&mut self, by: Duration) {
        self.now = self.now + by;
        if self.client.next_deadline().is_some_and(|at| at <= self.now) {
            self.client.handle_timeout(self.now);
            self.serve();
        }
    }

    fn granted(&mut self) -> LockId {
        self.serve();
        let Some((lock, Event::Granted(_))) = self.events.pop_front() else { panic!("not granted") };
        self.client.claim(self.now, lock).expect("an offer");
        lock
    }

    fn released(&mut self) {
        self.serve();
        let Some((_, Event::Released(_))) = self.events.pop_front() else { panic!("not released") };
    }
}

impl Rig {
    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { member_id: 1, revision: self.revision })
    }

    /// Carries out the client's output until there is none.
    fn serve(&mut self) {
        while let Some(output) = self.client.poll_output() {
            match output {
                Output::Connect { conn, .. } => self.client.handle_connected(self.now, conn),
                Output::Call { rpc, request, .. } => {
                    let reply = self.execute(request);
                    self.client.handle_reply(self.now, rpc, Ok(reply));
                }
                Output::Send { stream, message } => {
                    if let Some(message) = self.answer(message) {
                        self.client.handle_message(self.now, stream, message);
                    }
                }
                Output::Event { lock, event } => self.events.push_back((lock, event)),
                Output::Open { .. } | Output::Close { .. } => {}
                Output::Credentials { .. }
                | Output::Disconnect { .. }
                | Output::Operation { .. }
                | Output::Stopped { .. } => {
                    panic!("unexpected: {output:?}")
                }
            }
        }
    }

    fn execute(&mut self, request: Rpc) -> RpcReply {
        match request {
            Rpc::Grant(grant) => {
                RpcReply::Grant(LeaseGrantResponse { header: self.header(), id: grant.id, ttl: grant.ttl })
            }
            Rpc::Txn(txn) => {
                self.revision += 1;
                RpcReply::Txn(self.transaction(txn))
            }
            Rpc::Range(_) | Rpc::Revoke(_) | Rpc::Authenticate(_) | Rpc::MemberList(_) => {
                panic!("unexpected: {request:?}")
            }
        }
    }

    /// No other client writes, so every condition holds.
    fn transaction(&self, txn: TxnRequest) -> TxnResponse {
        let responses = txn.success.into_iter().map(|op| ResponseOp { response: Some(self.operation(op)) }).collect();
        TxnResponse { header: self.header(), succeeded: true, responses }
    }

    fn operation(&self, op: RequestOp) -> OpResponse {
        match op.request.expect("an operation") {
            Op::Put(_) => OpResponse::Put(PutResponse::default()),
            Op::Delete(_) => OpResponse::Delete(DeleteRangeResponse { deleted: 1, ..DeleteRangeResponse::default() }),
            // The client looks for keys of others.
            Op::Range(_) => OpResponse::Range(RangeResponse::default()),
            Op::Txn(inner) => OpResponse::Txn(self.transaction(inner)),
        }
    }

    fn answer(&self, message: StreamSend) -> Option<StreamReceived> {
        Some(match message {
            StreamSend::KeepAlive(alive) => {
                StreamReceived::KeepAlive(LeaseKeepAliveResponse { header: self.header(), id: alive.id, ttl: 10 })
            }
            StreamSend::Watch(watch) => {
                let Some(WatchRequestUnion::Create(create)) = watch.request else { return None };
                let (header, watch_id) = (self.header(), create.watch_id);
                StreamReceived::Watch(WatchResponse { header, watch_id, created: true, ..WatchResponse::default() })
            }
        })
    }

    /// Drains the events of a release, and claims the lock for its next holder.
    fn holder_next(&mut self) -> LockId {
        let granted = |event: &(LockId, Event)| matches!(event, (_, Event::Granted(_)));
        assert_eq!(self.events.iter().filter(|event| granted(event)).count(), 1, "one holder");
        let (holder, _) = self.events.iter().find(|event| granted(event)).expect("granted");
        let holder = *holder;
        self.events.clear();
        self.client.claim(self.now, holder).expect("an offer");
        holder
    }
}

/// Waiters for one name in one client, and its holder.
pub struct Line {
    rig: Rig,
    request: Acquire,
    holder: LockId,
}

impl Line {
    /// With this number of waiters.
    pub fn new(waiters: u32) -> Self {
        let mut rig = Rig::ready();
        let request = Acquire::new("invoice:42");
        for _ in 0..=waiters {
            rig.client.acquire(rig.now, &request).expect("a valid request");
        }
        rig.serve();
        let holder = rig.holder_next();
        Self { rig, request, holder }
    }

    /// Adds a waiter at the end of the queue, and cancels it.
    pub fn enter_and_leave(&mut self) {
        let lock = self.rig.client.acquire(self.rig.now, &self.request).expect("a valid request");
        self.rig.serve();
        self.rig.client.abandon(self.rig.now, lock);
        self.rig.serve();
    }

    /// The holder releases, the next waiter gets the lock, and a new waiter joins.
    pub fn turn(&mut self) {
        self.rig.client.release(self.rig.now, self.holder).expect("held");
        self.rig.serve();
        self.holder = self.rig.holder_next();
        self.rig.client.acquire(self.rig.now, &self.request).expect("a valid request");
        self.rig.serve();
    }
}

/// Sequential acquire and release cycles.
pub fn cycles() -> Box<dyn FnMut()> {
    let mut rig = Rig::ready();
    Box::new(move || (0..1_000).for_each(|_| rig.cycle()))
}

/// Hand-overs among 1 000 waiters.
pub fn turns() -> Box<dyn FnMut()> {
    let mut line = Line::new(1_000);
    Box::new(move || (0..1_000).for_each(|_| line.turn()))
}

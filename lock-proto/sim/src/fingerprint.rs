//! A digest of what the clients of a run did, independent of names.
//!
//! The log of a run contains names of types and fields, so a rename changes it. A fingerprint
//! covers only what a server and an application can observe: the bytes of every request, and every
//! event with its kind, client, lock and time. Two builds with equal fingerprints behave alike. The
//! numbers below must never change, because `make same-runs` compares builds by them.

use alloc::vec::Vec;

use lock_proto::Instant;
use lock_proto::etcd::{Rpc, StreamKind, StreamSend};
use lock_proto::register::Request;
use lock_proto::{Blocked, Event, Failure, Loss, OperationEvent, Release};
use lock_proto::{ConnId, LockId, Role};
use prost::Message as _;

/// Encodes a call.
pub(super) fn encoded(request: &Rpc) -> Vec<u8> {
    match request {
        Rpc::Range(request) => request.encode_to_vec(),
        Rpc::Txn(request) => request.encode_to_vec(),
        Rpc::Grant(request) => request.encode_to_vec(),
        Rpc::Revoke(request) => request.encode_to_vec(),
        Rpc::Authenticate(request) => request.encode_to_vec(),
        Rpc::MemberList(request) => request.encode_to_vec(),
    }
}

/// FNV-1a over the facts of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    on: bool,
    hash: u64,
}

impl Fingerprint {
    /// Creates an empty digest. Facts are counted only if `on` is set.
    pub(super) const fn new(on: bool) -> Self {
        // The offset basis of FNV-1a.
        Self { on, hash: 0xcbf2_9ce4_8422_2325 }
    }

    pub(super) const fn get(&self) -> u64 {
        self.hash
    }

    pub(super) fn sent(&mut self, now: Instant, client: usize, conn: ConnId, bytes: &[u8]) {
        self.connection(now, client, 1, conn);
        self.bytes(bytes);
    }

    pub(super) fn call(&mut self, now: Instant, client: usize, conn: ConnId, request: &Rpc) {
        if !self.on {
            return;
        }
        self.connection(now, client, 2, conn);
        self.bytes(request.path().as_bytes());
        self.bytes(&encoded(request));
    }

    pub(super) fn open(&mut self, now: Instant, client: usize, conn: ConnId, kind: StreamKind) {
        self.connection(now, client, 3, conn);
        self.bytes(kind.path().as_bytes());
    }

    pub(super) fn message(&mut self, now: Instant, client: usize, conn: ConnId, message: &StreamSend) {
        if !self.on {
            return;
        }
        self.connection(now, client, 4, conn);
        self.bytes(&match message {
            StreamSend::KeepAlive(message) => message.encode_to_vec(),
            StreamSend::Watch(message) => message.encode_to_vec(),
        });
    }

    pub(super) fn close(&mut self, now: Instant, client: usize, conn: ConnId, kind: StreamKind) {
        self.connection(now, client, 5, conn);
        self.bytes(kind.path().as_bytes());
    }

    pub(super) fn connect(&mut self, now: Instant, client: usize, conn: ConnId) {
        self.connection(now, client, 6, conn);
    }

    pub(super) fn disconnect(&mut self, now: Instant, client: usize, conn: ConnId) {
        self.connection(now, client, 7, conn);
    }

    pub(super) fn stopped(&mut self, now: Instant, client: usize, unreleased: u32) {
        self.fact(now, client, 8, &[unreleased.into()]);
    }

    pub(super) fn event(&mut self, now: Instant, client: usize, lock: LockId, event: &Event) {
        let nanos = |at: &Instant| at.as_nanos();
        let (kind, more) = match event {
            Event::Blocked(why) => (1, [blocked(*why), 0]),
            Event::Granted(grant) => (2, [grant.fence.map_or(0, |fence| fence.get()), nanos(&grant.valid_until)]),
            Event::Withdrawn => (3, [0, 0]),
            Event::Failed(why) => (4, [failure(why), 0]),
            Event::Renewed { valid_until } => (5, [nanos(valid_until), 0]),
            Event::Extended => (12, [0, 0]),
            Event::ExtendFailed(_) => (6, [0, 0]),
            Event::AtRisk { valid_until } => (7, [nanos(valid_until), 0]),
            Event::Lost(why) => (8, [loss(*why), 0]),
            Event::Released(found) => (9, [release(*found), 0]),
            Event::Proclaimed { revision } => (10, [revision.unsigned_abs(), 0]),
            Event::ProclaimFailed(_) => (11, [0, 0]),
        };
        self.fact(now, client, 9, &[lock.slot().into(), lock.generation().into(), kind, more[0], more[1]]);
    }

    pub(super) fn election(&mut self, now: Instant, client: usize, event: &OperationEvent) {
        let (kind, revision, key) = match event {
            OperationEvent::Leader(leader) => (1, leader.mod_revision.unsigned_abs(), &leader.key[..]),
            OperationEvent::NoLeader => (2, 0, &b""[..]),
            OperationEvent::Disconnected => (3, 0, &b""[..]),
            OperationEvent::Failed(why) => (4, failure(why), &b""[..]),
            OperationEvent::Done => (5, 0, &b""[..]),
        };
        self.fact(now, client, 10, &[kind, revision]);
        self.bytes(key);
    }

    pub(super) fn register(&mut self, now: Instant, client: usize, request: &Request) {
        if !self.on {
            return;
        }
        self.fact(now, client, 11, &[]);
        self.bytes(request.key());
        if let Request::Write { record, expected, .. } = request {
            self.bytes(&record.encode());
            self.bytes(expected.as_ref().map_or(b"", |entry| entry.revision.as_bytes()));
        }
    }

    fn connection(&mut self, now: Instant, client: usize, kind: u64, conn: ConnId) {
        let role = match conn.role() {
            Role::Commands => 0,
            Role::Wake => 1,
        };
        self.fact(now, client, kind, &[conn.node().index() as u64, role, conn.generation()]);
    }

    fn fact(&mut self, now: Instant, client: usize, kind: u64, more: &[u64]) {
        if self.on {
            for number in [now.as_nanos(), client as u64, kind].iter().chain(more) {
                self.add(&number.to_le_bytes());
            }
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if self.on {
            self.add(&(bytes.len() as u64).to_le_bytes());
            self.add(bytes);
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// A variant that this version does not know.
const UNKNOWN: u64 = 99;

const fn blocked(why: Blocked) -> u64 {
    match why {
        Blocked::Local => 1,
        Blocked::Held => 2,
        Blocked::HeldWithoutExpiry => 3,
        Blocked::Unreachable => 4,
        Blocked::RecentlyRestarted => 5,
        Blocked::UnstableIdentity => 6,
        _ => UNKNOWN,
    }
}

const fn failure(why: &Failure) -> u64 {
    match why {
        Failure::TimedOut(_) => 1,
        Failure::KeyInUse(_) => 2,
        Failure::Refused(_) => 3,
        Failure::EqualNodes(_, _) => 4,
        Failure::ShuttingDown => 5,
        Failure::SequenceExhausted(_) => 6,
        _ => UNKNOWN,
    }
}

const fn loss(why: Loss) -> u64 {
    match why {
        Loss::Expired => 1,
        Loss::Gone => 2,
        Loss::Taken => 3,
        Loss::MaxHold => 4,
        Loss::ShutDown => 5,
        Loss::EqualNodes => 6,
        _ => UNKNOWN,
    }
}

const fn release(found: Release) -> u64 {
    match found {
        Release::Released => 1,
        Release::Expired => 2,
        Release::Taken => 3,
        Release::Unknown => 4,
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_proto::NodeId;

    #[test]
    fn different_facts_have_different_fingerprints() {
        let conn = |generation| ConnId::new(NodeId::new(0), Role::Commands, generation);
        let at = Instant::from_millis;
        let sent = |now, client, conn, bytes: &[u8]| {
            let mut one = Fingerprint::new(true);
            one.sent(now, client, conn, bytes);
            one.get()
        };
        let all = [
            sent(at(1), 0, conn(1), b"GET a"),
            sent(at(2), 0, conn(1), b"GET a"),
            sent(at(1), 1, conn(1), b"GET a"),
            sent(at(1), 0, conn(2), b"GET a"),
            sent(at(1), 0, conn(1), b"GET b"),
            Fingerprint::new(true).get(),
        ];
        let different: alloc::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
        let mut off = Fingerprint::new(false);
        off.sent(at(1), 0, conn(1), b"GET a");
        assert_eq!(off.get(), Fingerprint::new(true).get());
    }
}

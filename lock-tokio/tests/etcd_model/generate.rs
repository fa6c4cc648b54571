//! Generates sequences of steps from a seed.

use bytes::Bytes;
use lock_proto::etcd::message::{
    Compare, CompareWith, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, NO_DELETE, NO_PUT, Op, PutRequest,
    RangeRequest, RequestOp, TxnRequest, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest,
    WatchRequestUnion,
};
use lock_proto::etcd::{Ahead, LeaseId, Older, Queue, Request, Rpc};
use lock_sim::Rng;
use lock_sim::etcd::Cluster;

/// How deep transactions are nested.
const DEPTH: usize = 2;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Call { conn: usize, user: usize, rpc: Rpc },
    Watch { stream: usize, request: WatchRequestUnion },
    KeepAlive { lease: i64 },
    Compact { revision: i64 },
}

const KEYS: [&str; 6] = ["k0", "k1", "k2", "k3", "m", "z"];
const NAMES: [&str; 2] = ["lock", "stock/4d"];
const ENDS: [&str; 7] = ["", "", "k2", "l", "z", "\0", "a"];
const VALUES: [&str; 4] = ["", "v", "w", "some longer value"];

pub(crate) struct Generator {
    rng: Rng,
    conns: usize,
    users: usize,
    streams: usize,
    /// Whether watches may start in the past.
    pub(crate) past: bool,
}

impl Generator {
    pub(crate) fn new(seed: u64, conns: usize, users: usize, streams: usize) -> Self {
        Self { rng: Rng::new(seed), conns, users, streams, past: true }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.rng.below(bound as u64)).unwrap()
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        self.rng.pick(items).copied().unwrap()
    }

    /// Draws the next step. `model` provides interesting revisions.
    pub(crate) fn step(&mut self, model: &Cluster) -> Step {
        match self.rng.below(20) {
            0..8 => self.call(|g| g.locking(model)),
            8..13 => self.call(|g| Rpc::Txn(g.txn(model, DEPTH))),
            13 => self.call(|g| Rpc::Range(g.range(model))),
            14 | 15 => self.call(Self::lease),
            16 => Step::KeepAlive { lease: self.lease_id() },
            17 | 18 => Step::Watch { stream: self.below(self.streams), request: self.watch(model) },
            _ => {
                if self.rng.one_in(4) {
                    let back = i64::try_from(self.rng.below(12)).unwrap() - 1;
                    Step::Compact { revision: model.revision() - back }
                } else {
                    self.call(|g| g.locking(model))
                }
            }
        }
    }

    /// Draws the end of a range from `key`. With users, empty ranges are avoided as irrelevant.
    fn end(&mut self, key: &Bytes) -> Bytes {
        let end: Bytes = self.pick(&ENDS).into();
        if self.users > 1 && *end != [0] && end <= key { Bytes::new() } else { end }
    }

    fn call(&mut self, rpc: impl FnOnce(&mut Self) -> Rpc) -> Step {
        let (conn, user) = (self.below(self.conns), self.below(self.users));
        Step::Call { conn, user, rpc: rpc(self) }
    }

    fn lease_id(&mut self) -> i64 {
        i64::try_from(self.rng.below(5)).unwrap() + 10
    }

    fn key(&mut self) -> Bytes {
        if self.rng.one_in(3) {
            let queue = Queue::new(b"", self.pick(&NAMES).as_bytes());
            let lease = LeaseId::from_bits(self.lease_id().unsigned_abs());
            queue.key(lease)
        } else if self.rng.one_in(60) {
            Bytes::new()
        } else {
            self.pick(&KEYS).into()
        }
    }

    /// Draws a revision: often the key's, otherwise one near the current.
    fn revision(&mut self, model: &Cluster, key: &[u8], created: bool) -> i64 {
        let found = model.get(key);
        match (self.rng.below(6), found) {
            (0..4, Some(kv)) => {
                if created {
                    kv.create_revision
                } else {
                    kv.mod_revision
                }
            }
            (0..3, None) => 0,
            _ => (model.revision() + 2 - i64::try_from(self.rng.below(8)).unwrap()).max(0),
        }
    }

    fn locking(&mut self, model: &Cluster) -> Rpc {
        let queue = Queue::new(b"", self.pick(&NAMES).as_bytes());
        let lease = LeaseId::from_bits(self.lease_id().unsigned_abs());
        let value: Bytes = self.pick(&VALUES).into();
        let key = queue.key(lease);
        let modified = self.revision(model, &key, false);
        let before = self.revision(model, &key, true).max(1);
        let request = match self.rng.below(7) {
            0 | 1 => {
                let other = LeaseId::from_bits(self.lease_id().unsigned_abs());
                let expects = self.rng.one_in(2).then(|| queue.key(other));
                let long = expects.is_some() && self.rng.one_in(2);
                Request::Create { queue, lease, value, alone: self.rng.one_in(2), expects, long }
            }
            2 => {
                let mut older = || {
                    let key = queue.key(LeaseId::from_bits(self.lease_id().unsigned_abs()));
                    let created = self.revision(model, &key, true).max(1);
                    Older { key, created }
                };
                let (next, rest) = (older(), vec![older(), older()]);
                let ahead = self.rng.one_in(2).then(|| Ahead { next, rest: self.rng.one_in(2).then_some(rest) });
                Request::Look { queue, lease, before: (!self.rng.one_in(3)).then_some(before), ahead }
            }
            3 => Request::Put { queue, lease, value, modified, before },
            4 => Request::Delete { queue, lease, modified },
            5 => Request::First { queue },
            _ if self.rng.one_in(2) => Request::Grant { lease, ttl: 100_000 },
            _ => Request::Revoke { lease },
        };
        request.rpc().unwrap()
    }

    fn lease(&mut self) -> Rpc {
        // None of these expires during the test.
        let ttl = self.pick(&[100_000, 200_000, 9_000_000_000, 9_000_000_001]);
        let id = self.lease_id();
        if self.rng.one_in(4) {
            Rpc::Revoke(LeaseRevokeRequest { id })
        } else {
            Rpc::Grant(LeaseGrantRequest { ttl, id })
        }
    }

    fn range(&mut self, model: &Cluster) -> RangeRequest {
        let key = self.key();
        let mut range = RangeRequest {
            range_end: self.end(&key),
            limit: self.pick(&[0, 0, 1, 2, 3, -1]),
            keys_only: self.rng.one_in(3),
            count_only: self.rng.one_in(6),
            sort_order: self.pick(&[0, 1, 2, 2]),
            key,
            ..RangeRequest::default()
        };
        if self.rng.one_in(2) {
            range.max_create_revision = model.revision() - i64::try_from(self.rng.below(10)).unwrap();
        }
        let mut near = || model.revision() - i64::try_from(self.rng.below(40)).unwrap() + 2;
        let (revision, bound) = (near(), near());
        match self.rng.below(12) {
            0 => range.min_mod_revision = bound,
            1 => range.max_mod_revision = bound,
            2 => range.min_create_revision = bound,
            3 | 4 => range.revision = revision,
            5 => range.serializable = true,
            _ => {}
        }
        // etcd does not define the order of equal values beyond a dozen keys. So only small ranges
        // are sorted by anything but the key.
        if self.rng.one_in(2) {
            let (key, end) = self.pick(&[("k0", "l"), ("lock/", "lock0"), ("stock/4d/", "stock/4d0")]);
            (range.key, range.range_end) = (key.into(), end.into());
            range.sort_target = self.pick(&[0, 1, 2, 2, 2, 3, 4]);
        }
        range
    }

    /// Draws a transaction with others nested up to `depth`.
    fn txn(&mut self, model: &Cluster, depth: usize) -> TxnRequest {
        let compare = (0..self.below(3)).map(|_| self.compare(model)).collect();
        let success = self.branch(model, depth, 5);
        let failure = self.branch(model, depth, 4);
        TxnRequest { compare, success, failure }
    }

    fn branch(&mut self, model: &Cluster, depth: usize, most: usize) -> Vec<RequestOp> {
        let mut ops: Vec<RequestOp> = (0..self.below(most)).map(|_| self.op(model, depth)).collect();
        // etcd 3.4 crashes if a put keeps a part of a key that the same transaction deletes.
        if ops.len() > 1 || depth < DEPTH {
            for op in &mut ops {
                if let Some(Op::Put(put)) = &mut op.request {
                    (put.ignore_value, put.ignore_lease) = (false, false);
                }
            }
        }
        ops
    }

    fn compare(&mut self, model: &Cluster) -> Compare {
        let key = self.key();
        let created = self.rng.one_in(2);
        let revision = self.revision(model, &key, created);
        let with = match self.rng.below(8) {
            0 => None,
            1..3 => Some(CompareWith::CreateRevision(revision)),
            3..5 => Some(CompareWith::ModRevision(revision)),
            5 => Some(CompareWith::Version(i64::try_from(self.rng.below(4)).unwrap())),
            6 => Some(CompareWith::Value(self.pick(&VALUES).into())),
            _ => Some(CompareWith::Lease(self.lease_id())),
        };
        // Mostly the field that the value is for.
        let field = match &with {
            Some(CompareWith::Version(_)) => 0,
            Some(CompareWith::CreateRevision(_)) => 1,
            Some(CompareWith::ModRevision(_)) => 2,
            Some(CompareWith::Value(_)) => 3,
            Some(CompareWith::Lease(_)) => 4,
            None => self.pick(&[0, 1, 2, 3, 4]),
        };
        Compare {
            result: self.pick(&[0, 0, 0, 1, 2, 3]),
            target: if self.rng.one_in(5) { self.pick(&[0, 1, 2, 3, 4]) } else { field },
            range_end: self.end(&key),
            key,
            with,
        }
    }

    fn op(&mut self, model: &Cluster, depth: usize) -> RequestOp {
        let request = match self.rng.below(10) {
            _ if depth > 0 && self.rng.one_in(6) => Op::Txn(self.txn(model, depth - 1)),
            0..5 => Op::Put(PutRequest {
                key: self.key(),
                value: self.pick(&VALUES).into(),
                lease: if self.rng.one_in(3) { self.lease_id() } else { 0 },
                prev_kv: self.rng.one_in(3),
                ignore_value: self.rng.one_in(20),
                ignore_lease: self.rng.one_in(20),
            }),
            5..7 => {
                let key = self.key();
                Op::Delete(DeleteRangeRequest { range_end: self.end(&key), key, prev_kv: self.rng.one_in(2) })
            }
            // A past revision inside of a transaction can crash etcd 3.4.
            _ => Op::Range(RangeRequest { revision: 0, ..self.range(model) }),
        };
        RequestOp { request: (!self.rng.one_in(100)).then_some(request) }
    }

    fn watch(&mut self, model: &Cluster) -> WatchRequestUnion {
        let watch_id = i64::try_from(self.rng.below(6)).unwrap();
        match self.rng.below(8) {
            0 | 1 => WatchRequestUnion::Cancel(WatchCancelRequest { watch_id }),
            2 => WatchRequestUnion::Progress(WatchProgressRequest {}),
            _ => {
                let key = self.key();
                let start_revision = match self.rng.below(4) {
                    0 if self.past => model.revision() + 3 - i64::try_from(self.rng.below(16)).unwrap(),
                    1 => model.revision() + 1,
                    _ => 0,
                };
                // A watch from the past must report something, so that the test knows that it is up
                // to date.
                let filters = match self.rng.below(6) {
                    0 if start_revision == 0 => vec![NO_DELETE],
                    1 if start_revision == 0 => vec![NO_PUT],
                    _ => Vec::new(),
                };
                WatchRequestUnion::Create(WatchCreateRequest {
                    range_end: self.end(&key),
                    key,
                    start_revision,
                    filters,
                    prev_kv: self.rng.one_in(3),
                    progress_notify: false,
                    watch_id,
                    fragment: self.rng.one_in(3),
                })
            }
        }
    }
}

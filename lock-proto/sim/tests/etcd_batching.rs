//! Batched requests of whole clients (`etcd::Client`) on a simulated cluster. Cases with a network
//! are in `tests/etcd_world.rs`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::wildcard_enum_match_arm, reason = "a test may panic")]

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use lock_proto::etcd::message::WatchRequestUnion;
use lock_proto::etcd::{Client, Endpoint, Output, RpcId, StreamId, StreamSend};
use lock_proto::{Acquire, ClientId, ConnId, Event, Fault, Fence, Instant, LockClient, LockId, Machine};
use lock_sim::etcd::{Cluster, ClusterConfig, ClusterOutput, Condition, User};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

struct Simulation {
    now: Instant,
    cluster: Cluster,
    clients: Vec<Client>,
    events: Vec<(usize, LockId, Event)>,
    conns: BTreeMap<u64, (usize, ConnId)>,
    rpcs: BTreeMap<u64, RpcId>,
    streams: BTreeMap<u64, StreamId>,
    number: u64,
    starts: Vec<i64>,
}

impl Simulation {
    fn new(members: usize, clients: usize) -> Self {
        Self::with(members, clients, ClusterConfig::new(members, 7))
    }

    fn with(members: usize, clients: usize, cluster: ClusterConfig) -> Self {
        let now = Instant::from_millis(1_000);
        let endpoints = || (0..members).map(|n| Endpoint::parse(&format!("127.0.0.1:{}", 2379 + n)).unwrap());
        let client = |id| {
            let config = lock_proto::etcd::Config::new(endpoints());
            Client::new(now, config, ClientId::from_bits(id), id as u64).unwrap()
        };
        Self {
            now,
            cluster: Cluster::new(now, cluster),
            clients: (1..=clients as u128).map(client).collect(),
            events: Vec::new(),
            conns: BTreeMap::new(),
            rpcs: BTreeMap::new(),
            streams: BTreeMap::new(),
            number: 0,
            starts: Vec::new(),
        }
    }

    fn number<T: PartialEq>(names: &BTreeMap<u64, T>, name: &T) -> Option<u64> {
        names.iter().find(|(_, known)| *known == name).map(|(number, _)| *number)
    }

    fn pump(&mut self) {
        loop {
            let mut quiet = true;
            for client in 0..self.clients.len() {
                while let Some(output) = self.clients[client].poll_output() {
                    quiet = false;
                    self.carry_out(client, output);
                }
            }
            while let Some(output) = self.cluster.poll_output() {
                quiet = false;
                self.receive(output);
            }
            if quiet {
                return;
            }
        }
    }

    fn carry_out(&mut self, client: usize, output: Output) {
        let now = self.now;
        self.number += 1;
        let number = self.number;
        let conn_of = |conns: &BTreeMap<_, _>, conn| Self::number(conns, &(client, conn)).unwrap_or(u64::MAX);
        match output {
            Output::Connect { node, conn, .. } => {
                self.conns.insert(number, (client, conn));
                self.cluster.handle_connected(now, node.index(), number);
                if self.cluster.is_up(node.index()) {
                    self.clients[client].handle_connected(now, conn);
                }
            }
            Output::Credentials { conn, .. } => panic!("{conn}: nobody asked for it"),
            Output::Disconnect { conn, .. } => self.cluster.handle_disconnected(now, conn_of(&self.conns, conn)),
            Output::Call { rpc, request, token } => {
                self.rpcs.insert(number, rpc);
                let conn = conn_of(&self.conns, rpc.conn());
                self.cluster.handle_call(now, conn, number, token.as_ref().map(|token| token.expose()), &request);
            }
            Output::Open { stream, token } => {
                self.streams.insert(number, stream);
                let conn = conn_of(&self.conns, stream.conn());
                let token = token.as_ref().map(|token| token.expose());
                self.cluster.handle_open(now, conn, number, stream.kind(), token);
            }
            Output::Send { stream, message } => {
                if let StreamSend::Watch(ask) = &message
                    && let Some(WatchRequestUnion::Create(create)) = &ask.request
                {
                    self.starts.push(create.start_revision);
                }
                let (conn, number) = (conn_of(&self.conns, stream.conn()), Self::number(&self.streams, &stream));
                self.cluster.handle_send(now, conn, number.unwrap(), &message);
            }
            Output::Close { stream } => {
                let (conn, number) = (conn_of(&self.conns, stream.conn()), Self::number(&self.streams, &stream));
                self.cluster.handle_close(now, conn, number.unwrap());
            }
            Output::Event { lock, event } => {
                let granted = matches!(event, Event::Granted(_));
                self.events.push((client, lock, event));
                if granted {
                    self.clients[client].claim(now, lock).unwrap();
                }
            }
            Output::Operation { .. } | Output::Stopped { .. } => {}
        }
    }

    fn receive(&mut self, output: ClusterOutput) {
        let now = self.now;
        let Some((client, conn)) = self.conns.get(&output.conn()).copied() else { return };
        let client = &mut self.clients[client];
        match output {
            ClusterOutput::Reply { rpc, reply, .. } => client.handle_reply(now, self.rpcs[&rpc], reply),
            ClusterOutput::Message { stream, message, .. } => {
                client.handle_message(now, self.streams[&stream], message)
            }
            ClusterOutput::Ended { stream, status, .. } => {
                client.handle_stream_ended(now, self.streams[&stream], status)
            }
            ClusterOutput::Dropped { .. } => client.handle_disconnected(now, conn, Fault::Closed),
        }
    }

    fn run_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            self.pump();
            assert_eq!(self.cluster.parked_count(), 0, "no watch begins in the past (requirement E5)");
            if done(self) {
                return true;
            }
            let hubs = self.clients.iter().filter_map(Client::next_deadline);
            let next = hubs.chain(self.cluster.next_deadline()).min().unwrap_or(Instant::MAX).max(self.now);
            if next > end {
                self.now = end;
                self.cluster.handle_timeout(end);
                return false;
            }
            self.now = next;
            self.cluster.handle_timeout(next);
            self.clients.iter_mut().for_each(|client| client.handle_timeout(next));
        }
    }

    fn run_for(&mut self, time: Duration) {
        self.run_until(time, |_| false);
    }

    fn acquire(&mut self, client: usize, want: Acquire) -> LockId {
        let lock = self.clients[client].acquire(self.now, &want).unwrap();
        self.pump();
        lock
    }

    fn acquire_all(&mut self, client: usize, names: usize) -> Vec<LockId> {
        let want = |n| Acquire::new(format!("{n}"));
        let now = self.now;
        (0..names).map(|n| self.clients[client].acquire(now, &want(n)).unwrap()).collect()
    }

    fn transactions(&self) -> u64 {
        self.cluster.calls().get("/etcdserverpb.KV/Txn").copied().unwrap_or(0)
    }

    fn release(&mut self, client: usize, lock: LockId) {
        self.clients[client].release(self.now, lock).unwrap();
        self.pump();
    }

    fn is_held(&self, client: usize, lock: LockId) -> bool {
        self.clients[client].valid_until(lock).is_some_and(|until| until > self.now)
    }

    #[track_caller]
    fn end(&mut self) {
        for client in &mut self.clients {
            client.shutdown(self.now, secs(20));
        }
        self.run_for(secs(25));
        assert!(self.cluster.keys().is_empty() && self.cluster.leases().is_empty(), "{:?}", self.cluster.keys());
        assert_eq!(self.cluster.connection_count(), 0);
    }
}

#[test]
fn locks_requested_at_once_share_calls() {
    // E11
    let mut w = Simulation::new(1, 2);
    let first = w.acquire(0, Acquire::new("first"));
    let mut fences: Vec<Option<Fence>> = vec![None; 60];
    for round in 0..6 {
        // The last rounds are the other client's, whose fences must be greater.
        let client = round / 4;
        let before = w.transactions();
        let locks = w.acquire_all(client, 60);
        w.pump();
        assert_eq!(w.transactions() - before, 2, "32 at most in one");
        let created: BTreeSet<i64> = w.cluster.keys().iter().map(|kv| kv.create_revision).collect();
        assert_eq!((w.cluster.keys().len(), created.len()), (61, 3), "together they have one revision");
        for (lock, last) in locks.iter().zip(&mut fences) {
            assert!(w.is_held(client, *lock));
            let fence = w.events.iter().find_map(|(c, l, event)| match event {
                Event::Granted(grant) if (*c, *l) == (client, *lock) => grant.fence,
                _ => None,
            });
            assert!(fence > *last);
            *last = fence;
        }
        let before = w.transactions();
        locks.iter().for_each(|lock| w.clients[client].release(w.now, *lock).unwrap());
        w.pump();
        assert_eq!(w.transactions() - before, 2);
        assert_eq!(w.cluster.keys().len(), 1);
    }
    w.release(0, first);
    w.end();
}

/// A server with a low operation limit rejects large batches. Each request is repeated alone, and
/// later batches are smaller.
#[test]
fn server_with_low_operation_limit_serves_all() {
    // E11
    for most in [2, 3, 5, 12] {
        let mut w = Simulation::with(1, 1, ClusterConfig::new(1, 7).max_txn_ops(most));
        w.acquire(0, Acquire::new("first"));
        for _ in 0..4 {
            let locks = w.acquire_all(0, 40);
            w.pump();
            assert!(locks.iter().all(|lock| w.is_held(0, *lock)), "{:?}", w.events);
            locks.iter().for_each(|lock| w.clients[0].release(w.now, *lock).unwrap());
            w.pump();
            assert_eq!(w.cluster.keys().len(), 1);
        }
        w.end();
    }
}

/// etcd does not check permissions and quota of nested transactions. It still rejects ours.
#[test]
fn batch_does_not_bypass_quota_or_permissions() {
    // E11
    let mut w = Simulation::new(1, 1);
    let first = w.acquire(0, Acquire::new("first"));
    w.cluster.set(w.now, Condition::NoSpace, true);
    let locks = w.acquire_all(0, 20);
    w.run_for(secs(1));
    assert_eq!(w.cluster.keys().len(), 1, "{:?}", w.cluster.keys());
    assert!(w.is_held(0, first));
    w.cluster.set(w.now, Condition::NoSpace, false);
    assert!(w.run_until(secs(5), |w| locks.iter().all(|lock| w.is_held(0, *lock))));
    w.end();
    // Users are enabled while a client works without a login.
    let mut w = Simulation::new(1, 1);
    let first = w.acquire(0, Acquire::new("first"));
    w.cluster.set_user(w.now, User::new("root", "pw").root());
    let locks = w.acquire_all(0, 20);
    w.run_for(secs(1));
    assert_eq!(w.cluster.keys().len(), 1, "{:?}", w.cluster.keys());
    assert!(!locks.iter().any(|lock| w.is_held(0, *lock)) && w.is_held(0, first));
}

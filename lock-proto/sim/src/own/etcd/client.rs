//! The client that runs own locks on etcd.

use alloc::string::String;

use super::calls::{Calls, Gone, Received};
use super::context::Context;
use super::lock::{Failed, OwnLock, Watched};
use crate::check::Rule;
use crate::etcd::EtcdClient;
use crate::own;
use crate::own::client::EXCUSED;
use crate::own::transport::{Verbs, verbs};
use crate::world::Builder;
use crate::world::etcd::EtcdServers;
use lock_proto::Instant;
use lock_proto::Misuse;
use lock_proto::etcd::{Config, Output, OwnerKey, RpcId, RpcReply, Status, StreamId, StreamReceived};
use lock_proto::{ClientId, ConnId, LockId};

/// A client whose acquisitions are [`OwnLock`]s on etcd.
///
/// [`Builder::own_lock`](crate::etcd::Builder) creates it. It connects to a member when the
/// first call is made, and to the next member after a connection has ended. It does not log in.
pub type OwnClient<L> = own::OwnClient<L, Calls>;

impl<L: OwnLock> OwnClient<L> {
    /// Creates a client with the members of the settings. The TTL of requests without one is that
    /// of a session.
    #[must_use]
    pub fn of_cluster(config: &Config, id: ClientId, seed: u64, lock: L) -> Self {
        let calls = Calls::new(config.endpoints().to_vec(), config.connect_timeout);
        Self::with(calls, config.store.session_ttl, id, seed, lock)
    }

    fn deliver(&mut self, now: Instant, received: impl IntoIterator<Item = (LockId, Received)>) {
        for (id, received) in received {
            self.arrived(now, id, |lock, cx| match received {
                Received::KeepAlive { lease, sent, ttl } => lock.handle_keep_alive(cx, lease, sent, ttl),
                Received::Watch(tag, watched) => lock.handle_watch(cx, tag, watched),
            });
        }
    }
}

impl<L: OwnLock> Verbs<Calls> for L {
    verbs!(OwnLock, Calls);

    fn handle_gone(&mut self, cx: &mut Context<'_>, _: ConnId, gone: Gone) {
        match gone {
            Gone::Call(call) => {
                cx.answered();
                self.handle_reply(cx, call, Err(Failed::Lost));
            }
            Gone::Watch(tag) => self.handle_watch(cx, tag, Watched::Ended),
        }
    }
}

impl<L: OwnLock> EtcdClient for OwnClient<L> {
    const PROVES: bool = false;
    const EXCUSED: &'static [Rule] = &EXCUSED;

    fn handle_reply(&mut self, now: Instant, rpc: RpcId, reply: Result<RpcReply, Status>) {
        let Some((id, call)) = self.transport.handle_reply(rpc) else { return };
        self.arrived(now, id, |lock, cx| {
            cx.answered();
            lock.handle_reply(cx, call, reply.map_err(Failed::Refused));
        });
    }

    fn handle_message(&mut self, now: Instant, stream: StreamId, message: StreamReceived) {
        let received = self.transport.handle_message(stream, message);
        self.deliver(now, received);
    }

    fn handle_stream_ended(&mut self, now: Instant, stream: StreamId, _: Status) {
        let received = self.transport.handle_stream_ended(stream);
        self.deliver(now, received);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.transport.poll_output()
    }

    fn poll_violation(&mut self) -> Option<(Rule, String)> {
        self.next_violation()
    }

    fn owner(&self, _: LockId) -> Option<OwnerKey> {
        None
    }

    fn owner_guard(&mut self, _: Instant, lock: LockId) -> Result<OwnerKey, Misuse> {
        Err(Misuse::NotHeld(lock))
    }
}

impl Builder<EtcdServers> {
    /// Runs a lock of your own instead of [`etcd::Client`](lock_proto::etcd::Client). Each acquisition
    /// begins with a clone of `lock`.
    pub fn own_lock<L: OwnLock + 'static>(self, lock: L) -> Builder<EtcdServers<OwnClient<L>>> {
        self.machine(move |_, config, id, seed| Ok(OwnClient::of_cluster(&config, id, seed, lock.clone())))
    }
}

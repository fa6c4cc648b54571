//! A lock on etcd: a key that exists while it is held, attached to a lease.

use std::time::Duration;

use lock_proto::etcd::RpcReply;
use lock_proto::etcd::message::{LeaseGrantRequest, LeaseRevokeRequest};
use lock_proto::{Instant, Release};
use lock_sim::own::Call;
use lock_sim::own::etcd::{Context, Failed, OwnLock, Txn};

#[derive(Clone, Debug, Hash)]
pub struct Leased {
    /// The repair: a hold ends with its lease, which is older than the key.
    pub counts_from_lease: bool,
    /// The lease, and when it was requested.
    pub lease: Option<(i64, Instant)>,
}

const LEASE: u64 = 1;
const TAKE: u64 = 2;
const FREE: u64 = 3;

impl OwnLock for Leased {
    fn acquire(&mut self, cx: &mut Context<'_>) {
        match self.lease {
            None => cx.call(LEASE, LeaseGrantRequest { ttl: cx.ttl().as_secs() as i64, id: 0 }),
            Some((lease, _)) => cx.call(TAKE, Txn::new().if_absent(cx.name()).put(cx.name(), cx.token(), lease)),
        }
    }

    fn release(&mut self, cx: &mut Context<'_>) {
        let id = self.lease.map_or(0, |(lease, _)| lease);
        cx.call(FREE, LeaseRevokeRequest { id });
    }

    fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RpcReply, Failed>) {
        match (call.tag, reply) {
            (LEASE, Ok(RpcReply::Grant(lease))) => {
                self.lease = Some((lease.id, call.sent));
                self.acquire(cx);
            }
            (TAKE, Ok(RpcReply::Txn(txn))) if txn.succeeded => {
                let since = self.lease.filter(|_| self.counts_from_lease).map_or(call.sent, |(_, sent)| sent);
                cx.grant(since + cx.ttl() * 98 / 100, None);
            }
            // Busy, or the lease has expired: then the next attempt gets another one.
            (LEASE | TAKE, reply) => {
                self.lease = self.lease.filter(|_| reply.is_ok());
                cx.retry(Duration::from_millis(100));
            }
            (_, Ok(_)) => cx.released(Release::Released),
            (_, Err(_)) => cx.released(Release::Unknown),
        }
    }
}

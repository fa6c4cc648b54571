//! Own locks on etcd.

use core::time::Duration;

use lock_proto::etcd::message::{DELETED, LeaseGrantRequest, LeaseRevokeRequest};
use lock_proto::etcd::{Code, RpcReply};
use lock_proto::{Acquire, Instant, Loss, Release};
use lock_sim::own::Call;
use lock_sim::own::etcd::{Context, Failed, OwnLock, Txn, Watched, find};
use lock_sim::own::search::SmallWorld;
use lock_sim::scenario::{Backend, Bounds};
use lock_sim::{Keep, Plan, Rule, Scenario, etcd, scenarios};

const LEASE: u64 = 1;
const TAKE: u64 = 2;
const FREE: u64 = 3;
const RENEW: u64 = 4;
const GONE: u64 = 5;
const RETRY: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_secs(5);

/// A key with a lease, renewed by keep-alives. Waits for its deletion by a watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Leased {
    lease: i64,
    until: Instant,
    flaw: Flaw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Flaw {
    None,
    /// A waiter takes the key with the lease that it got when it began to wait, and believes to
    /// have a whole TTL.
    OldLease,
    /// A release deletes the key, whoever has it.
    DeletesAnything,
    /// The key has no lease.
    NoLease,
    /// A release says that it has deleted the key, and does nothing.
    KeepsKey,
}

const fn leased(flaw: Flaw) -> Leased {
    Leased { lease: 0, until: Instant::ZERO, flaw }
}

impl Leased {
    fn take(&self, cx: &mut Context<'_>) {
        let lease = if self.flaw == Flaw::NoLease { 0 } else { self.lease };
        cx.call(TAKE, Txn::new().if_absent(cx.name()).put(cx.name(), cx.token(), lease));
    }

    fn try_again(&mut self, cx: &mut Context<'_>) {
        cx.unwatch(GONE);
        cx.cancel(GONE);
        if self.flaw == Flaw::OldLease { self.take(cx) } else { self.acquire(cx) }
    }

    /// When a lease that was granted or renewed then ends, on a slow clock.
    fn end(cx: &Context<'_>, sent: Instant) -> Instant {
        sent + cx.ttl() * 98 / 100
    }
}

impl OwnLock for Leased {
    fn acquire(&mut self, cx: &mut Context<'_>) {
        cx.call(LEASE, LeaseGrantRequest { ttl: cx.ttl().as_secs().cast_signed(), id: 0 });
    }

    fn release(&mut self, cx: &mut Context<'_>) {
        cx.cancel(RENEW);
        cx.cancel(GONE);
        if self.flaw == Flaw::KeepsKey {
            return cx.released(Release::Released);
        }
        if self.flaw == Flaw::DeletesAnything {
            return cx.call(FREE, Txn::new().delete(cx.name()));
        }
        cx.call(FREE, LeaseRevokeRequest { id: self.lease });
    }

    fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RpcReply, Failed>) {
        match (call.tag, reply) {
            (LEASE, Ok(RpcReply::Grant(lease))) => {
                (self.lease, self.until) = (lease.id, Self::end(cx, call.sent));
                self.take(cx);
            }
            (TAKE, Ok(RpcReply::Txn(txn))) => {
                let revision = txn.header.unwrap_or_default().revision;
                if !txn.succeeded {
                    // A watch may lose events.
                    cx.after(LOOK, GONE);
                    return cx.watch(GONE, cx.name(), revision + 1);
                }
                if self.flaw == Flaw::OldLease {
                    self.until = Self::end(cx, call.sent);
                }
                // A late reply: another client may have got the lock meanwhile.
                if self.until <= cx.now() && cx.is_waiting() {
                    return cx.retry(RETRY);
                }
                cx.grant(self.until, Some(revision.cast_unsigned()));
                cx.after(cx.ttl() / 3, RENEW);
            }
            (LEASE | TAKE, _) => cx.retry(RETRY),
            (_, Ok(_)) => cx.released(Release::Released),
            (_, Err(Failed::Refused(status))) if status.code == Code::NotFound => cx.released(Release::Expired),
            (_, Err(Failed::Refused(_))) => cx.released(Release::Unknown),
            (_, Err(Failed::Lost)) => self.release(cx),
        }
    }

    fn handle_watch(&mut self, cx: &mut Context<'_>, _: u64, watched: Watched) {
        match watched {
            Watched::Open(_) => {}
            Watched::Changed(events) if !events.iter().any(|event| event.kind == DELETED) => {}
            Watched::Changed(_) => self.try_again(cx),
            Watched::Ended => {
                cx.cancel(GONE);
                cx.retry(RETRY);
            }
        }
    }

    fn handle_timeout(&mut self, cx: &mut Context<'_>, timer: u64) {
        if timer == GONE {
            return self.try_again(cx);
        }
        cx.keep_alive(self.lease);
        cx.after(cx.ttl() / 3, RENEW);
    }

    fn handle_keep_alive(&mut self, cx: &mut Context<'_>, _: i64, sent: Instant, ttl: i64) {
        match ttl {
            0 => {
                cx.cancel(RENEW);
                cx.lost(Loss::Gone);
            }
            _ if cx.is_held() => cx.grant(Self::end(cx, sent), None),
            _ => {}
        }
    }

    fn abandon(&mut self, cx: &mut Context<'_>) {
        self.release(cx);
    }
}

#[test]
fn sound_lock_keeps_its_promises_in_every_scenario() {
    let within =
        scenarios().iter().filter(|scenario| scenario.backend == Backend::Etcd && scenario.bounds == Bounds::Within);
    let mut grants = 0;
    for scenario in within {
        for seed in 0..6 {
            let plan = Plan::from_seed(scenario, seed);
            let outcome = plan.run_own_etcd(Keep::Nothing, leased(Flaw::None));
            // One deletion wakes every waiter, and each of them tries.
            let sound = outcome.violations.iter().all(|found| found.rule == Rule::Bounded);
            assert!(sound, "{plan}\n{}", plan.run_own_etcd(Keep::Lines(200), leased(Flaw::None)));
            grants += outcome.grants;
        }
    }
    assert!(grants > 500, "{grants}");
}

#[test]
fn flaws_are_found_by_scenarios() {
    for (flaw, scenario, rule) in [
        (Flaw::OldLease, "etcd-pauses", Rule::MutualExclusion),
        (Flaw::DeletesAnything, "etcd-pauses", Rule::MutualExclusion),
        (Flaw::NoLease, "etcd-contention", Rule::Liveness),
    ] {
        let found = find(&leased(flaw), scenario, 0..200, rule);
        let found = found.unwrap_or_else(|| panic!("{flaw:?} is not found in {scenario}"));
        println!("{found}");
        assert!(found.plan.len() <= 12, "{found}");
        assert!(found.picture().contains("client 0"));
    }
}

/// Regression: nothing recognised the key of an own lock.
#[test]
fn release_that_deletes_nothing_is_found() {
    for scenario in ["etcd-contention", "etcd-pauses"] {
        let found = find(&leased(Flaw::KeepsKey), scenario, 0..20, Rule::TrueLoss).unwrap();
        assert!(found.to_string().contains("reports that its key is gone, and it exists: Released"), "{found}");
        assert!(found.to_string().ends_with(", Rule::TrueLoss)"), "{found}");
        assert!(found.to_string().contains("\nagain: etcd::find(&lock, \"etcd-"), "{found}");
    }
}

#[test]
fn story_by_hand_renews_loses_and_fences() {
    let mut w = etcd::World::cluster(3).clients(2).own_lock(leased(Flaw::None)).build();
    let second = Duration::from_secs(1);
    let want = || Acquire::new("stock").ttl(3 * second);
    let first = w.acquire(0, want());
    w.expect(second, "the first holds", |w| w.is_held(0, first));
    let next = w.acquire(1, want());
    w.run_for(20 * second);
    assert!(w.is_held(0, first), "renewed");
    // The member that it speaks to dies, and the next one renews.
    w.kill_member(w.cluster_now().leader().unwrap());
    w.run_for(20 * second);
    assert!(w.is_held(0, first) || w.is_held(1, next));
    w.pause_client(0);
    w.expect(10 * second, "the second holds", |w| w.is_held(1, next));
    w.resume_client(0);
    w.run_for(second);
    assert!(!w.is_held(0, first));
    assert!(w.grant(1, next).unwrap().fence > w.grant(0, first).unwrap().fence);
}

#[test]
fn plans_of_redis_are_refused() {
    let plan = Plan::from_seed(Scenario::named("redis-pauses").unwrap(), 0);
    let run = std::panic::catch_unwind(|| plan.run_own_etcd(Keep::Nothing, leased(Flaw::None)));
    assert!(run.is_err());
}

/// Polls, and does not renew. With `old`, it believes to have a whole TTL from the reply on.
#[derive(Clone, Debug, Hash)]
struct Polling {
    old: bool,
    lease: Option<(i64, Instant)>,
}

impl OwnLock for Polling {
    fn acquire(&mut self, cx: &mut Context<'_>) {
        match self.lease {
            Some((lease, _)) => cx.call(TAKE, Txn::new().if_absent(cx.name()).put(cx.name(), cx.token(), lease)),
            None => cx.call(LEASE, LeaseGrantRequest { ttl: 2, id: 0 }),
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
                let sent = self.lease.filter(|_| !self.old).map_or(call.sent, |(_, sent)| sent);
                cx.grant(Leased::end(cx, sent), None);
            }
            (TAKE | LEASE, reply) => {
                self.lease = self.lease.filter(|_| reply.is_ok());
                cx.retry(cx.ttl() / 2);
            }
            (_, Ok(_)) => cx.released(Release::Released),
            (_, Err(_)) => cx.released(Release::Unknown),
        }
    }
}

#[test]
fn search_finds_old_lease_and_nothing_in_its_repair() {
    // S12
    let world = |old| SmallWorld::on_etcd(Polling { old, lease: None }).acquires(2);
    let outcome = world(true).search(24);
    println!("{outcome}");
    let found = outcome.counterexample.unwrap();
    println!("{found}");
    assert_eq!(found.rule, "client 0 and client 1 both hold the lock");
    let repaired = world(false).search(24);
    println!("{repaired}");
    assert!(repaired.counterexample.is_none() && repaired.states > 1_000, "{repaired}");
    assert_eq!(repaired.unreached().count(), 0, "{repaired}");
}

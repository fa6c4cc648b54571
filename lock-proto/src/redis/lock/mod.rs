//! The lock on Redis: one lock name within one client, on one node or a quorum.
//!
//! The head takes the lock in rounds of attempts ([`attempt`], [`redlock`]), and polls or waits for
//! a wake-up in between ([`polling`], [`wakeup`]). The client keeps at most one live token per
//! name. All older tokens are retired, except those of lost holds whose guard still exists.

mod attempt;
mod calls;
mod cleanup;
mod context;
mod held;
mod pending_release;
mod polling;
mod redlock;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests")]
mod tests;
mod wakeup;
mod watchdog;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;

use calls::{Purpose, RedisCall, RedisCalls};
use cleanup::{Cleanup, Cleanups, Delete, Send};
pub use context::RedisContext;
pub(crate) use context::RedisEnv;
use context::{NodeSet, RedisShared};
use pending_release::DeleteResults;
use redlock::Round;
pub(crate) use redlock::answer_to_take;
use wakeup::Subscription;
use watchdog::QuorumHold;

use super::config::{Config, Settings, Wake};
use super::key::{Key, RESERVED};
use super::output::LocksOutput;
use super::request::{Reply, Request};
use super::token::Retired;
use super::validity::Ttl;
use crate::error::{Invalid, Misuse};
use crate::fault::Fault;
use crate::id::{LockId, NodeId};
use crate::lock::{
    self, Acquire, Answer, Blocked, Cause, DEFAULT_TTL, ErrorClass, Fact, Grant, Holding, Order, Release, Store, Terms,
    check_name,
};
use crate::time::Instant;

/// State machine for one lock name within one client. See [`step`](super::step).
pub type RedisLock = lock::Lock<Redis>;

/// A waiting acquisition.
pub type RedisWaiter = lock::Waiter<Ttl>;

/// The store machine of one lock name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Redis {
    key: Key,
    /// The waiter for which the client contends.
    head: Option<RedisWaiter>,
    contention: Contention,
    hold: Option<QuorumHold>,
    /// What lost holds have left, whose guard is still alive.
    left: Vec<(LockId, Remains)>,
    releases: Vec<DeleteResults>,
    calls: RedisCalls,
    cleanups: Cleanups,
    subscription: Option<Subscription>,
    /// The nodes' last replies, for reports: to an attempt while there are waiters, and to a delete
    /// that failed while there are none. Empty before the first.
    answers: Vec<Answer>,
    /// Attempts since the last grant.
    tries: u32,
    /// Why the last attempt for the head failed.
    blocked: Option<Blocked>,
    /// Consecutive split votes. While the holder lacks a node, every attempt wins that node, so
    /// each round looks split.
    split_votes: u32,
    /// Yield to the woken waiter until then. Set when a release of this client woke another client.
    // A7
    backoff_until: Option<Instant>,
    /// The attempt in flight, or the hold that it got, overtook a waiter of another client, which
    /// the release before it woke.
    // A7
    overtook: bool,
}

/// Progress of the head of the queue towards the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
enum Contention {
    #[default]
    Idle,
    /// The head waits until its next attempt.
    Paused { until: Instant },
    /// The head waits for the reply to this client's last release, which says whether others wait.
    Releasing { until: Instant },
    /// A round of attempts is in flight.
    Trying(Round),
}

/// The nodes that may still have the token of an ended hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Remains {
    number: u64,
    /// When the validity of the keys ends.
    valid_until: Instant,
    nodes: NodeSet,
    /// Nodes on which another client's value was seen.
    others: NodeSet,
}

impl Terms for Ttl {
    /// No request shortens the life of a key: a renewal in flight could follow it.
    fn may_follow(&self, holder: &Self) -> bool {
        self >= holder
    }
}

impl Store for Redis {
    type Key = Key;
    type Terms = Ttl;
    type Settings = Settings;
    type Shared = RedisShared;
    type Output = LocksOutput;

    fn new(key: Key) -> Self {
        Self {
            key,
            head: None,
            contention: Contention::Idle,
            hold: None,
            left: Vec::new(),
            releases: Vec::new(),
            calls: RedisCalls::default(),
            cleanups: Cleanups::default(),
            subscription: None,
            answers: Vec::new(),
            tries: 0,
            blocked: None,
            split_votes: 0,
            backoff_until: None,
            overtook: false,
        }
    }

    fn key(&self) -> &Key {
        &self.key
    }

    fn terms_of(config: &Config, request: &Acquire) -> Result<(Key, Ttl), Misuse> {
        check_name(&request.name)?;
        let key = config.store.layout.key(&config.prefix, &request.name);
        if key.lock().windows(RESERVED.len()).any(|part| part == RESERVED.as_bytes()) {
            return Err(Invalid::NameReserved.into());
        }
        Ok((key, Ttl::new(request.ttl.unwrap_or(DEFAULT_TTL), request.renew, config)?))
    }

    fn order(&mut self, env: &mut RedisEnv, order: Order<Ttl>) {
        match order {
            Order::Contend(head) => self.contend(env, head),
            Order::Claim(_) => {
                if let Some(hold) = &mut self.hold {
                    hold.is_claimed = true;
                }
                self.renew(env);
            }
            Order::Extend(_) => {
                if let Some(hold) = &mut self.hold {
                    hold.extend(env.now);
                }
                self.renew(env);
            }
            Order::HandOver { to, .. } => self.hand_over(env, &to),
            // While the guard is alive, nothing is sent that would delete the key.
            // H6
            Order::Leave { id, .. } => {
                let remains = self.end_hold(env);
                self.left.extend(remains.map(|remains| (id, remains)));
            }
            Order::End { id, answer, yields, .. } => self.end(env, id, answer, yields),
            Order::GiveUp(id) => {
                if let Some(place) = self.releases.iter().position(|release| release.id == id) {
                    let release = self.releases.swap_remove(place);
                    self.released(env, &release, Release::Unknown);
                }
            }
            Order::ShutDown => self.backoff_until = None,
        }
    }

    fn timeout(&mut self, env: &mut RedisEnv) {
        self.renew(env);
        self.backoff_until = self.backoff_until.filter(|until| *until > env.now);
        match &self.contention {
            Contention::Trying(_) => self.judge(env),
            Contention::Paused { until } | Contention::Releasing { until } if *until <= env.now => {
                self.start_round(env);
            }
            Contention::Paused { .. } | Contention::Releasing { .. } | Contention::Idle => {}
        }
        for node in self.cleanups.due(env.now).iter() {
            self.run_cleanup(env, node, Send::Now);
        }
        self.answer_releases(env);
    }

    #[inline]
    fn deadline(&self, _: &RedisEnv) -> Option<(Instant, &'static str)> {
        let mut next = match &self.contention {
            Contention::Idle => None,
            Contention::Paused { until } => Some((*until, "next attempt")),
            Contention::Releasing { until } => Some((*until, "own release")),
            Contention::Trying(round) => Some((round.deadline, "end of a round")),
        };
        let mut or_at = |at: Option<Instant>, why: &'static str| {
            if let Some(at) = at
                && next.is_none_or(|(first, _)| at < first)
            {
                next = Some((at, why));
            }
        };
        if let Some(hold) = &self.hold {
            or_at(hold.deadline(), "watchdog");
        }
        or_at(self.backoff_until, "yielding to a woken waiter");
        for cleanup in self.cleanups.iter() {
            or_at(cleanup.deadline(), "compensating delete");
        }
        next
    }

    #[inline]
    fn holding(&self, env: &RedisEnv, id: LockId) -> Option<Holding> {
        let hold = self.hold.as_ref().filter(|hold| hold.id == id)?;
        Some(hold.holding(env.now, env.quorum()))
    }

    fn answers(&self) -> Box<[Answer]> {
        match (&self.hold, &self.contention) {
            (Some(hold), _) => hold.report(),
            (None, Contention::Trying(round)) => self.answers_with(round).into(),
            (None, Contention::Idle | Contention::Paused { .. } | Contention::Releasing { .. }) => {
                self.answers.iter().cloned().collect()
            }
        }
    }

    #[inline]
    fn after_step(&mut self, _: &mut RedisEnv) {
        self.cleanups.tidy();
    }

    /// Ignores pending deletes on a silent minority. They block nobody, and the keys expire.
    fn is_drained(&self, env: &RedisEnv) -> bool {
        let stalled = |node| self.cleanups.get(node).is_some_and(Cleanup::is_stalled);
        let mut open = self.cleanups.iter().filter(|cleanup| !cleanup.is_clear() && !cleanup.is_only_a_check());
        let silent = self.cleanups.iter().filter(|cleanup| cleanup.is_stalled()).count();
        let all_stalled = silent < env.quorum() && open.all(Cleanup::is_stalled);
        self.is_idle() && all_stalled && !self.calls.any_take(|node| !stalled(node))
    }

    fn is_over(&self) -> bool {
        let is_clear = self.cleanups.is_empty() && !self.calls.any_take(|_| true);
        self.is_idle() && is_clear && self.left.is_empty() && self.backoff_until.is_none()
    }
}

impl RedisLock {
    /// Returns true if the cleanup needs no connection now.
    pub(crate) fn may_rest(&self) -> bool {
        let rests = |cleanup: &Cleanup| cleanup.is_clear() || cleanup.is_only_a_check();
        self.store.cleanups.iter().all(rests) && !self.store.calls.any_take(|_| true)
    }

    /// Processes an input of the store machine.
    fn store_step<R>(&mut self, ctx: &mut RedisContext, input: impl FnOnce(&mut Redis, &mut RedisEnv) -> R) -> R {
        self.step(ctx, |lock, ctx| input(&mut lock.store, &mut ctx.env))
    }

    /// Handles the reply to the call with this serial.
    pub fn reply(&mut self, ctx: &mut RedisContext, serial: u64, reply: &Reply) {
        self.store_step(ctx, |store, env| store.reply(env, serial, reply));
    }

    /// Handles a new connection to a node.
    pub fn node_up(&mut self, ctx: &mut RedisContext, node: NodeId) {
        self.store_step(ctx, |store, env| store.node_up(env, node));
    }

    /// The node confirmed the subscription to releases.
    pub fn subscribed(&mut self, ctx: &mut RedisContext, node: NodeId) {
        self.store_step(ctx, |store, env| store.subscribed(env, node));
    }

    /// The node no longer reports releases.
    pub fn unsubscribed(&mut self, ctx: &mut RedisContext, node: NodeId) {
        self.store_step(ctx, |store, env| store.unsubscribed(env, node));
    }

    /// The node reported a release. Returns true if a waiter here needs it.
    pub fn signalled(&mut self, ctx: &mut RedisContext, node: NodeId) -> bool {
        self.store_step(ctx, |store, env| store.signalled(env, node))
    }

    /// Verifies the hold on the node, and returns the serial of the request.
    // Q7
    pub(crate) fn verify(&mut self, ctx: &mut RedisContext, node: NodeId) -> Option<u64> {
        self.store_step(ctx, |store, env| {
            store.hold.as_mut()?.verify(env.now, node);
            store.renew(env);
            store.calls.renewal(node)
        })
    }
}

impl Redis {
    fn is_idle(&self) -> bool {
        self.hold.is_none() && self.releases.is_empty() && self.contention == Contention::Idle
    }

    /// Contends for this waiter, or for nobody.
    fn contend(&mut self, env: &mut RedisEnv, head: Option<RedisWaiter>) {
        let before = mem::replace(&mut self.head, head);
        match (before, self.head) {
            (_, None) => self.nobody_waits(env),
            (Some(_), Some(head)) => self.new_head(env, &head),
            // The hold before it was released, and other clients go first.
            (None, Some(_)) if self.contention != Contention::Idle => {}
            (None, Some(_)) => self.begin(env),
        }
    }

    /// The new head takes over a round in flight, unless its keys would outlive their holder by more
    /// than the head's TTL.
    // A8
    fn new_head(&mut self, env: &mut RedisEnv, head: &RedisWaiter) {
        self.blocked = None;
        match mem::take(&mut self.contention) {
            Contention::Trying(round) if round.ttl <= head.terms => self.contention = Contention::Trying(round),
            Contention::Trying(round) => {
                self.end_round(env, &round, false);
                self.start_round(env);
            }
            Contention::Idle | Contention::Paused { .. } | Contention::Releasing { .. } => self.start_round(env),
        }
    }

    fn nobody_waits(&mut self, env: &mut RedisEnv) {
        self.forward_signal(env);
        self.unsubscribe(env);
        self.tries = 0;
        self.answers.clear();
        if let Contention::Trying(round) = mem::take(&mut self.contention) {
            self.end_round(env, &round, true);
        }
    }

    fn hand_over(&mut self, env: &mut RedisEnv, to: &RedisWaiter) {
        let quorum = env.quorum();
        let complete = self.hold.as_mut().is_some_and(|hold| hold.hand_over(env.now, to, quorum, env.seed));
        if complete {
            self.offer(env);
        } else {
            self.renew(env);
        }
    }

    /// Reports the complete grant.
    fn offer(&mut self, env: &mut RedisEnv) {
        let quorum = env.quorum();
        let Some(hold) = &mut self.hold else { return };
        hold.is_offered = true;
        let grant = Grant {
            token: env.shared.identity.token(hold.number),
            fence: hold.fence(),
            fence_ahead_ms: hold.fence_ahead_ms(),
            ttl: hold.keys_ttl.duration(),
            valid_until: hold.keys_until(quorum).unwrap_or(env.now),
        };
        env.report(Fact::Granted(hold.id, grant));
    }

    fn end_hold(&mut self, env: &RedisEnv) -> Option<Remains> {
        let hold = self.hold.take()?;
        let valid_until = hold.keys_until(env.quorum()).unwrap_or(env.now);
        Some(Remains { number: hold.number, valid_until, nodes: self.nodes_of(&hold), others: hold.others() })
    }

    /// Deletes what the hold of this acquisition has left. `yields`: other clients go first.
    fn end(&mut self, env: &mut RedisEnv, id: LockId, answer: bool, yields: bool) {
        if yields && let Some(hold) = &self.hold {
            // For one wake-up round trip. The acquisition may have taken longer, such as to open the
            // connection.
            let store = &env.config.store;
            let pause = store.handover_pause + hold.round_trip.min(store.poll.every);
            self.contention = Contention::Paused { until: env.now + pause };
        }
        let left = self.left.iter().position(|(left, _)| *left == id).map(|place| self.left.swap_remove(place).1);
        let Some(remains) = left.or_else(|| self.end_hold(env)) else { return };
        if answer {
            self.releases.push(DeleteResults::new(id, env.now, remains, self.cleanups.deleting()));
        }
        self.schedule_all(env, remains.nodes, remains.number);
        self.answer_releases(env);
    }

    fn answer_releases(&mut self, env: &mut RedisEnv) {
        let quorum = env.quorum();
        let mut place = 0;
        while let Some(release) = self.releases.get(place) {
            if let Some(outcome) = release.outcome(quorum) {
                let release = self.releases.remove(place);
                self.released(env, &release, outcome);
            } else {
                place += 1;
            }
        }
    }

    fn released(&self, env: &mut RedisEnv, release: &DeleteResults, outcome: Release) {
        let nodes = if outcome == Release::Unknown { self.not_released(env, release) } else { Box::default() };
        env.report(Fact::Released(release.id, outcome, nodes));
    }

    /// Returns the last reply of each server to an unconfirmed release; empty if none has failed.
    #[cold]
    fn not_released(&self, env: &RedisEnv, release: &DeleteResults) -> Box<[Answer]> {
        let answer = |(index, node): (usize, &context::NodeHealth)| {
            if !release.awaits(NodeId::new(index as u16)) {
                return Answer::Granted;
            }
            match (self.answers.get(index).cloned().unwrap_or_default(), &node.login_refused) {
                // A delete that failed with its connection waits for the next one.
                (Answer::Unreachable(_) | Answer::Unknown(Cause::Fault(_)), Some(error)) => {
                    Answer::Unreachable(error.clone().into())
                }
                (answer, _) => answer,
            }
        };
        let answers: Box<[Answer]> = env.shared.nodes.iter().enumerate().map(answer).collect();
        let none_failed = answers.iter().all(|answer| matches!(answer, Answer::Silent | Answer::Granted));
        if none_failed { Box::default() } else { answers }
    }

    /// Passes a reply on by the purpose of its call. Replies to unknown calls are dropped.
    fn reply(&mut self, env: &mut RedisEnv, serial: u64, reply: &Reply) {
        let Some(call) = self.calls.settle(serial) else { return };
        match call.purpose {
            Purpose::Take(take) => self.take_answered(env, call, take, reply),
            Purpose::Renew { number, ttl } => self.renewal_answered(env, call, number, ttl, reply),
            Purpose::Delete => self.delete_answered(env, call, reply),
        }
    }

    fn delete_answered(&mut self, env: &mut RedisEnv, call: RedisCall, reply: &Reply) {
        let node = call.node;
        let takes = self.calls.takes(node);
        let cleanup = self.cleanups.of(node);
        let Some(delete) = cleanup.deleting() else { return };
        let refused = matches!(reply, Reply::Rejected(error) if error.class == ErrorClass::Refused);
        if let Reply::Rejected(error) = reply
            && refused
            && delete.announce
        {
            env.shared.wake_refusals.insert(env.now, node, &self.key, error);
        }
        let elsewhere = Reply::NotSent(Fault::NotNeeded.into());
        let (found, send) = match env.shared.away_until(env.now, node) {
            Some(until) => (&elsewhere, cleanup.led_elsewhere(takes, delete, until)),
            None => (reply, cleanup.answered(takes, env.now, delete, reply)),
        };
        let failed = refused || matches!(found, Reply::NotSent(_) | Reply::Unknown(Cause::Fault(_)));
        let given_up = failed && cleanup.is_clear() && takes.are_settled(delete.covers);
        if let Reply::Rejected(_) | Reply::NotSent(_) | Reply::Unknown(_) = found {
            self.delete_failed(env, node, found);
        }
        // No other client has the key if a later acquisition of this one has.
        // U1
        let own = matches!(found, Reply::Taken) && self.has_token_since(node, delete);
        let seen = if own { &Reply::Absent } else { found };
        for release in &mut self.releases {
            release.answered(node, delete, seen);
            if given_up && refused {
                release.refused(node);
            } else if given_up {
                release.has_none(node);
            }
        }
        self.run_cleanup(env, node, send);
        self.answer_releases(env);
        if let Reply::Deleted { awaited, .. } = reply {
            self.overtook = *awaited && matches!(self.contention, Contention::Trying(_));
            if *awaited {
                self.yield_to_woken(env, delete.emitted);
            }
        }
        self.own_release_answered(env);
    }

    /// Returns true if the node has confirmed a token that the delete was not to remove: it is held,
    /// lost, about to be held, or about to be deleted.
    fn has_token_since(&self, node: NodeId, delete: Delete) -> bool {
        let held = self.hold.as_ref().filter(|hold| hold.has(node)).map(|hold| hold.number);
        let left = self.left.iter().filter(|(_, remains)| remains.nodes.contains(node));
        let granted = match &self.contention {
            Contention::Trying(round) if round.has_granted(node) => Some(round.number),
            Contention::Trying(_) | Contention::Paused { .. } | Contention::Releasing { .. } | Contention::Idle => None,
        };
        let takes = self.calls.takes(node);
        let to_delete = self.cleanups.get(node).and_then(|cleanup| cleanup.answered_number(takes));
        let mut numbers = left.map(|(_, remains)| remains.number).chain(held).chain(granted).chain(to_delete);
        numbers.any(|number| !delete.may_remove(number))
    }

    /// Records the reply for a report. Waiters have their own.
    #[cold]
    fn delete_failed(&mut self, env: &RedisEnv, node: NodeId, reply: &Reply) {
        if self.hold.is_none() && self.head.is_none() {
            self.answers.resize(env.shared.nodes.len(), Answer::Silent);
            if let Some(answer) = self.answers.get_mut(node.index()) {
                *answer = answer_to_take(reply);
            }
        }
    }

    fn node_up(&mut self, env: &mut RedisEnv, node: NodeId) {
        if let Some(cleanup) = self.cleanups.get(node) {
            let send = cleanup.node_up();
            self.run_cleanup(env, node, send);
        }
        if let Some(hold) = &mut self.hold {
            if hold.node_up(env, node) {
                self.cleanups.of(node).granted(hold.number);
            }
            // It may have lost its quorum.
            if let Some(loss) = hold.loss(env.now, env.quorum()) {
                return env.report(Fact::Lost(hold.id, loss));
            }
            return self.renew(env);
        }
        match &self.contention {
            Contention::Paused { .. } if self.below_quorum() || env.shared.duplicates.is_some() => {
                self.start_round(env);
            }
            Contention::Trying(_) => {
                self.withdraw_excluded(env, node);
                self.judge(env);
            }
            Contention::Paused { .. } | Contention::Releasing { .. } | Contention::Idle => {}
        }
    }

    /// Returns the end of validity if the node must confirm the hold: it may be another server, or
    /// a renewal or a top-up failed there.
    pub(crate) fn to_verify(&self, node: NodeId, changed: bool, quorum: usize) -> Option<Instant> {
        let hold = self.hold.as_ref().filter(|hold| changed && hold.has(node) || hold.missed_renewal(node))?;
        hold.keys_until(quorum)
    }

    /// Returns true if the head lacks reachable nodes, rather than waits for a holder.
    const fn below_quorum(&self) -> bool {
        matches!(self.blocked, Some(Blocked::Unreachable | Blocked::RecentlyRestarted | Blocked::UnstableIdentity))
    }

    /// Returns the token numbers that may be replaced or deleted now.
    fn retired(&self, env: &RedisEnv) -> Retired {
        let last = match (&self.hold, &self.contention) {
            (Some(hold), _) => hold.number - 1,
            (None, Contention::Trying(round)) => round.number - 1,
            (None, Contention::Idle | Contention::Paused { .. } | Contention::Releasing { .. }) => env.number,
        };
        let left = self.left.iter().map(|(_, remains)| remains.number);
        match (left.clone().min(), left.max()) {
            (Some(first), Some(after)) => Retired { upto: first - 1, after, last: last.max(after) },
            (_, _) => Retired::all_to(last),
        }
    }

    /// Schedules deletes on these nodes, and on the node that wakes waiters.
    // A7
    fn schedule_all(&mut self, env: &mut RedisEnv, nodes: NodeSet, number: u64) {
        for node in self.with_wake_node(env, nodes).iter() {
            if nodes.contains(node) {
                self.schedule(env, node, number, true);
            } else {
                let send = self.cleanups.of(node).schedule_announcement(number);
                self.run_cleanup(env, node, send);
            }
        }
    }

    fn schedule(&mut self, env: &mut RedisEnv, node: NodeId, number: u64, announce: bool) {
        let send = self.cleanups.of(node).schedule(self.calls.takes(node), number, announce);
        self.run_cleanup(env, node, send);
    }

    fn run_cleanup(&mut self, env: &mut RedisEnv, node: NodeId, send: Send) {
        if send == Send::No {
            return;
        }
        let retired = self.retired(env);
        let cleanup = self.cleanups.of(node);
        let announce =
            cleanup.announces() && env.config.store.wake == Wake::Notify && !env.refuses_wake(node, &self.key);
        let last = retired.last;
        let takes = self.calls.takes(node);
        let (number, retired) = cleanup.numbers_to_delete(takes, retired);
        cleanup.delete_sent(takes, env.now, last, announce);
        let request = Request::Release { key: self.key.clone(), number, retired, announce };
        self.calls.send(env, node, request, Purpose::Delete);
    }
}

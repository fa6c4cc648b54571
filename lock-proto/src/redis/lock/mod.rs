//! The lock on Redis: one lock name within one client, on one node or a quorum.
//!
//! The head takes the lock in rounds of attempts ([`attempt`], [`redlock`]), and polls or waits for
//! a wake-up in between ([`polling`], [`wakeup`]). The client keeps at most one live token per
//! name. All older tokens are retired, except those of lost holds whose guard still exists.

mod attempt;
mod cleanup;
mod context;
mod held;
mod pending_release;
mod per_node;
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
use core::time::Duration;

use cleanup::{Cleanup, Cleanups, Delete, Send};
pub use context::Context;
use context::{NodeSet, Shared};
use pending_release::Releasing;
use redlock::Round;
pub(crate) use redlock::answer_to_take;
use wakeup::Subscription;
use watchdog::Hold;

use super::config::{Config, Settings, Wake};
use super::output::LocksOutput;
use super::request::{FENCE_NAME, Key, RESERVED, Reply, Request};
use super::token::Retired;
use super::validity::Ttl;
use crate::error::{Invalid, Misuse};
use crate::fault::Fault;
use crate::id::{CallId, LockId, NodeId};
use crate::lock::{
    self, Acquire, Answer, Blocked, Cause, DEFAULT_TTL, Ended, ErrorClass, Event, Failure, Grant, Loss, MAX_TTL,
    Release, Store, Tenure, Terms, check_name,
};
use crate::time::Instant;

/// State machine for one lock name within one client. See [`step`](super::step).
pub type Lock = lock::Lock<Redis>;

/// A waiting acquisition.
pub type Waiter = lock::Waiter<Ttl>;

/// Redis-specific state of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Redis {
    cleanups: Cleanups,
    subscription: Option<Subscription>,
    /// The nodes' last replies, for reports: to an attempt while there are waiters, and to a delete
    /// that failed while there are none. Empty before the first.
    answers: Vec<Answer>,
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
pub enum Contention {
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
pub struct Remains {
    number: u64,
    nodes: NodeSet,
    /// Nodes on which another client's value was seen.
    others: NodeSet,
}

impl Store for Redis {
    type Key = Key;
    type Terms = Ttl;
    type Contention = Contention;
    type Hold = Hold;
    type Remains = Remains;
    type Releasing = Releasing;
    type Settings = Settings;
    type Shared = Shared;
    type Request = Request;
    type Output = LocksOutput;

    fn new() -> Self {
        Self {
            cleanups: Cleanups::default(),
            subscription: None,
            answers: Vec::new(),
            split_votes: 0,
            backoff_until: None,
            overtook: false,
        }
    }

    fn refuses(ctx: &Context) -> Option<Failure> {
        ctx.shared.duplicates.map(|(a, b)| Failure::EqualNodes(a, b))
    }

    fn contend(lock: &mut Lock, ctx: &mut Context) {
        lock.begin(ctx);
    }

    fn new_head(lock: &mut Lock, ctx: &mut Context, _: &Waiter) {
        // The new head takes over a round in flight, unless its keys would outlive their holder by
        // more than the head's TTL.
        // A8
        if let Contention::Trying(round) = &lock.contention {
            if lock.waiters.head().is_none_or(|head| round.ttl <= head.terms) {
                return;
            }
            let round = round.clone();
            lock.contention = Contention::Idle;
            lock.end_round(ctx, &round, false);
        }
        lock.start_round(ctx);
    }

    fn nobody_waits(lock: &mut Lock, ctx: &mut Context) {
        lock.forward_signal(ctx);
        lock.unsubscribe(ctx);
        lock.tries = 0;
        lock.store.answers.clear();
        if let Contention::Trying(round) = mem::take(&mut lock.contention) {
            lock.end_round(ctx, &round, true);
        }
    }

    fn answers(lock: &Lock) -> Box<[Answer]> {
        match (&lock.hold, &lock.contention) {
            (Some(hold), _) => hold.report(),
            (None, Contention::Trying(round)) => lock.answers_with(round).into(),
            (None, Contention::Idle | Contention::Paused { .. } | Contention::Releasing { .. }) => {
                lock.store.answers.iter().cloned().collect()
            }
        }
    }

    fn tenure(hold: &Hold) -> &Tenure<Ttl> {
        &hold.tenure
    }

    fn tenure_mut(hold: &mut Hold) -> &mut Tenure<Ttl> {
        &mut hold.tenure
    }

    #[inline]
    fn terms(hold: &Hold, ctx: &Context) -> Terms {
        Terms { until: hold.keys_until(ctx.quorum()), ttl: hold.ttl().nanos(), at_risk: ctx.config.at_risk }
    }

    fn loss(hold: &Hold, ctx: &Context) -> Option<Loss> {
        hold.loss(ctx.now, ctx.quorum())
    }

    fn grant(hold: &mut Hold, ctx: &mut Context) -> Grant {
        let valid_until = hold.tenure.valid_until(hold.keys_until(ctx.quorum()));
        Grant {
            token: ctx.shared.identity.token(hold.number),
            fence: hold.fence(),
            fence_ahead_ms: hold.fence_ahead_ms(),
            ttl: hold.keys_ttl.duration(),
            valid_until,
        }
    }

    fn keep(lock: &mut Lock, ctx: &mut Context) {
        lock.send_due(ctx);
    }

    fn extend(lock: &mut Lock, ctx: &mut Context) {
        if let Some(hold) = &mut lock.hold {
            hold.extend(ctx.now);
        }
        lock.watch(ctx);
    }

    fn may_hand_over(hold: &Hold, next: &Waiter, ctx: &Context) -> bool {
        // No request shortens the life of a key: a renewal in flight could follow it.
        let outlives_next = hold.keys_ttl > next.terms;
        ctx.now < hold.keys_until(ctx.quorum()) && ctx.now < hold.handover_until && !outlives_next
    }

    fn hand_over(lock: &mut Lock, ctx: &mut Context, next: Waiter) {
        let Some(hold) = &mut lock.hold else { return };
        if hold.hand_over(ctx.now, next, ctx.quorum(), ctx.seed) {
            lock.offer(ctx);
        } else {
            lock.watch(ctx);
        }
    }

    fn end(lock: &mut Lock, _: &mut Context, hold: &Hold, _: Option<Loss>) -> Remains {
        Remains { number: hold.number, nodes: lock.nodes_of(hold), others: hold.others() }
    }

    /// While the guard is alive, nothing is sent that would delete the key.
    // H6
    fn lost(lock: &mut Lock, ctx: &mut Context, ended: &Ended<Self>, guarded: bool) {
        if !guarded {
            Self::clean_up(lock, ctx, ended);
        }
    }

    fn clean_up(lock: &mut Lock, ctx: &mut Context, ended: &Ended<Self>) {
        lock.schedule_all(ctx, ended.remains.nodes, ended.remains.number);
    }

    /// Backs off for one wake-up round trip, so that other processes can take the lock. The
    /// acquisition may have taken longer, such as to open the connection.
    fn handover_window_ended(lock: &mut Lock, ctx: &mut Context, hold: &Hold) {
        let store = &ctx.config.store;
        let pause = store.handover_pause + hold.round_trip.min(store.poll.every);
        lock.contention = Contention::Paused { until: ctx.now + pause };
    }

    fn releasing(lock: &Lock, ctx: &Context, ended: &Ended<Self>) -> Releasing {
        Releasing::new(ctx.now, ended, lock.store.cleanups.deleting())
    }

    fn released(releasing: &Releasing, ctx: &Context) -> Option<Release> {
        releasing.outcome(ctx.quorum())
    }

    fn not_released(&self, releasing: &Releasing, ctx: &Context) -> Box<[Answer]> {
        let answer = |(index, node): (usize, &context::Node)| {
            if !releasing.awaits(NodeId::new(index as u16)) {
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
        let answers: Box<[Answer]> = ctx.shared.nodes.iter().enumerate().map(answer).collect();
        let none_failed = answers.iter().all(|answer| matches!(answer, Answer::Silent | Answer::Granted));
        if none_failed { Box::default() } else { answers }
    }

    fn timeout(lock: &mut Lock, ctx: &mut Context) {
        lock.store.backoff_until = lock.store.backoff_until.filter(|until| *until > ctx.now);
        match &lock.contention {
            Contention::Trying(_) => lock.judge(ctx),
            Contention::Paused { until } | Contention::Releasing { until } if *until <= ctx.now => {
                lock.start_round(ctx)
            }
            Contention::Paused { .. } | Contention::Releasing { .. } | Contention::Idle => {}
        }
        for node in lock.store.cleanups.due(ctx.now).iter() {
            lock.run_cleanup(ctx, node, Send::Now);
        }
    }

    fn contention_deadline(contention: &Contention) -> Option<(Instant, &'static str)> {
        match contention {
            Contention::Idle => None,
            Contention::Paused { until } => Some((*until, "next attempt")),
            Contention::Releasing { until } => Some((*until, "own release")),
            Contention::Trying(round) => Some((round.deadline, "end of a round")),
        }
    }

    fn hold_deadline(hold: &Hold, _: &Context) -> (Instant, &'static str) {
        (hold.deadline(), "watchdog")
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let deletes = self.cleanups.iter().filter_map(Cleanup::deadline).min().map(|at| (at, "compensating delete"));
        match (self.backoff_until, deletes) {
            (Some(at), Some((delete, _))) if delete < at => deletes,
            (Some(at), _) => Some((at, "yielding to a woken waiter")),
            (None, deletes) => deletes,
        }
    }

    fn shutdown(lock: &mut Lock, _: &mut Context) {
        lock.store.backoff_until = None;
    }

    /// Ignores pending deletes on a silent minority. They block nobody, and the keys expire.
    fn is_drained(&self, ctx: &Context) -> bool {
        let mut open = self.cleanups.iter().filter(|cleanup| !cleanup.is_clear() && !cleanup.is_only_a_check());
        let silent = self.cleanups.iter().filter(|cleanup| cleanup.is_stalled()).count();
        silent < ctx.quorum() && open.all(Cleanup::is_stalled)
    }

    fn is_over(&self) -> bool {
        self.cleanups.is_empty() && self.backoff_until.is_none()
    }

    fn terms_of(config: &Config, request: &Acquire) -> Result<(Key, Ttl), Misuse> {
        check_name(&request.name)?;
        let key = Key::new(&config.prefix, &request.name);
        if key.lock().windows(RESERVED.len()).any(|part| part == RESERVED.as_bytes()) {
            return Err(Invalid::NameReserved.into());
        }
        Ok((key, Ttl::new(request.ttl.unwrap_or(DEFAULT_TTL), request.renew, config)?))
    }

    fn request(call: CallId, request: Request, _: Duration) -> LocksOutput {
        LocksOutput::Send { call, request }
    }

    fn event(lock: LockId, event: Event) -> LocksOutput {
        LocksOutput::Event { lock, event }
    }

    fn servers(ctx: &Context) -> u16 {
        ctx.shared.nodes.len() as u16
    }

    /// An extension of a token that does not exist changes nothing, and needs the same permissions
    /// as a lock: to run scripts, and to read the fence counter. The TTL does not limit how long it
    /// may wait for the connection.
    fn ping(ctx: &mut Context) -> Request {
        let key = Key::new(&ctx.config.prefix, FENCE_NAME.as_bytes());
        Request::Extend { key, number: 0, ttl_ms: MAX_TTL.as_millis() as u64, fence_block: 0 }
    }

    fn stopped(_: &mut lock::Locks<Self>, unreleased: u32) -> LocksOutput {
        LocksOutput::Stopped { unreleased }
    }

    #[inline]
    fn after_step(lock: &mut Lock, _: &mut Context) {
        lock.store.cleanups.tidy();
    }
}

impl Lock {
    /// Returns true if the cleanup needs no connection now.
    pub(crate) fn may_rest(&self) -> bool {
        self.store.cleanups.iter().all(|cleanup| cleanup.is_clear() || cleanup.is_only_a_check())
    }

    /// Handles the reply to the call with this serial.
    pub fn reply(&mut self, ctx: &mut Context, node: NodeId, serial: u64, reply: &Reply) {
        self.expire(ctx);
        if let Contention::Trying(round) = &self.contention
            && let Some(take) = round.take(node).filter(|take| take.serial == serial)
        {
            if matches!(reply, Reply::Unknown(_)) {
                self.store.cleanups.of(node).ended_unknown(take);
            }
            return self.take_answered(ctx, node, take, reply);
        }
        if let Some(cleanup) = self.store.cleanups.get_mut(node)
            && let Some(take) = cleanup.settle(serial, reply)
        {
            return self.take_answered(ctx, node, take, reply);
        }
        if let Some(cleanup) = self.store.cleanups.get_mut(node)
            && let Some(delete) = cleanup.delete(serial)
        {
            let refused = matches!(reply, Reply::Rejected(error) if error.class == ErrorClass::Refused);
            if let Reply::Rejected(error) = reply
                && refused
                && delete.announce
            {
                ctx.shared.wake_refusals.insert(ctx.now, node, &self.key, error);
            }
            let elsewhere = Reply::NotSent(Fault::NotNeeded.into());
            let (found, send) = match ctx.shared.away_until(ctx.now, node) {
                Some(until) => (&elsewhere, cleanup.led_elsewhere(until)),
                None => (reply, cleanup.answered(ctx.now, delete, reply)),
            };
            let failed = refused || matches!(found, Reply::NotSent(_) | Reply::Unknown(Cause::Fault(_)));
            let given_up = failed && cleanup.is_clear();
            if let Reply::Rejected(_) | Reply::NotSent(_) | Reply::Unknown(_) = found {
                self.delete_failed(ctx, node, found);
            }
            // No other client has the key if a later acquisition of this one has.
            // U1
            let own = matches!(found, Reply::Taken) && self.has_token_since(node, delete);
            let seen = if own { &Reply::Absent } else { found };
            for back in &mut self.releases {
                back.store.answered(node, delete, seen);
                if given_up && refused {
                    back.store.refused(node);
                } else if given_up {
                    back.store.has_none(node);
                }
            }
            self.run_cleanup(ctx, node, send);
            self.answer_releases(ctx);
            if let Reply::Deleted { awaited, .. } = reply {
                self.store.overtook = *awaited && matches!(self.contention, Contention::Trying(_));
                if *awaited {
                    self.yield_to_woken(ctx, delete.emitted);
                }
            }
            self.own_release_answered(ctx);
            return;
        }
        self.renewal_answered(ctx, node, serial, reply);
    }

    /// Returns true if the node has confirmed a token that the delete was not to remove: it is held,
    /// lost, about to be held, or about to be deleted.
    fn has_token_since(&self, node: NodeId, delete: Delete) -> bool {
        let held = self.hold.as_ref().filter(|hold| hold.has(node)).map(|hold| hold.number);
        let lost = self.lost.iter().map(|lost| lost.remains).filter(|lost| lost.nodes.contains(node));
        let granted = match &self.contention {
            Contention::Trying(round) if round.has_granted(node) => Some(round.number),
            Contention::Trying(_) | Contention::Paused { .. } | Contention::Releasing { .. } | Contention::Idle => None,
        };
        let to_delete = self.store.cleanups.get(node).and_then(Cleanup::answered_number);
        let mut numbers = lost.map(|lost| lost.number).chain(held).chain(granted).chain(to_delete);
        numbers.any(|number| !delete.may_remove(number))
    }

    /// Records the reply for a report. Waiters have their own.
    #[cold]
    fn delete_failed(&mut self, ctx: &Context, node: NodeId, reply: &Reply) {
        if self.hold.is_none() && self.waiters.is_empty() {
            self.store.answers.resize(ctx.shared.nodes.len(), Answer::Silent);
            if let Some(answer) = self.store.answers.get_mut(node.index()) {
                *answer = answer_to_take(reply);
            }
        }
    }

    /// Handles a new connection to a node.
    pub fn node_up(&mut self, ctx: &mut Context, node: NodeId) {
        self.expire(ctx);
        if let Some(cleanup) = self.store.cleanups.get(node) {
            let send = cleanup.node_up();
            self.run_cleanup(ctx, node, send);
        }
        let below_quorum = self.below_quorum();
        if let Some(hold) = &mut self.hold {
            if hold.node_up(ctx, node) {
                self.store.cleanups.of(node).granted(hold.number);
            }
            // The hold may have lost its quorum.
            self.expire(ctx);
            return self.watch(ctx);
        }
        match &self.contention {
            Contention::Paused { .. } if below_quorum || ctx.shared.duplicates.is_some() => {
                self.start_round(ctx);
            }
            Contention::Trying(_) => {
                self.withdraw_excluded(ctx, node);
                self.judge(ctx);
            }
            Contention::Paused { .. } | Contention::Releasing { .. } | Contention::Idle => {}
        }
    }

    /// Returns the end of validity if the node must confirm the hold: it may be another server, or
    /// a renewal or a top-up failed there.
    pub(crate) fn to_verify(&self, node: NodeId, changed: bool, quorum: usize) -> Option<Instant> {
        let hold = self.hold.as_ref().filter(|hold| changed && hold.has(node) || hold.missed_renewal(node))?;
        Some(hold.tenure.valid_until(hold.keys_until(quorum)))
    }

    /// Verifies the hold on the node and returns the serial of the request.
    // Q7
    pub(crate) fn verify(&mut self, ctx: &mut Context, node: NodeId) -> Option<u64> {
        self.expire(ctx);
        if let Some(hold) = &mut self.hold {
            hold.verify(ctx.now, node);
            self.watch(ctx);
        }
        self.hold.as_ref()?.shares.get(node.index())?.call.map(|call| call.serial)
    }

    /// Returns true if the head lacks reachable nodes, rather than waits for a holder.
    const fn below_quorum(&self) -> bool {
        matches!(self.blocked, Some(Blocked::Unreachable | Blocked::RecentlyRestarted | Blocked::UnstableIdentity))
    }

    /// Returns the token numbers that may be replaced or deleted now.
    fn retired(&self, ctx: &Context) -> Retired {
        let last = match (&self.hold, &self.contention) {
            (Some(hold), _) => hold.number - 1,
            (None, Contention::Trying(round)) => round.number - 1,
            (None, Contention::Idle | Contention::Paused { .. } | Contention::Releasing { .. }) => ctx.number,
        };
        let lost = self.lost.iter().map(|ended| ended.remains.number);
        match (lost.clone().min(), lost.max()) {
            (Some(first), Some(after)) => Retired { upto: first - 1, after, last: last.max(after) },
            (_, _) => Retired::all_to(last),
        }
    }

    /// Schedules deletes on these nodes, and on the node that wakes waiters.
    // A7
    fn schedule_all(&mut self, ctx: &mut Context, nodes: NodeSet, number: u64) {
        for node in self.with_wake_node(ctx, nodes).iter() {
            if nodes.contains(node) {
                self.schedule(ctx, node, number, true);
            } else {
                let send = self.store.cleanups.of(node).schedule_announcement(number);
                self.run_cleanup(ctx, node, send);
            }
        }
    }

    fn schedule(&mut self, ctx: &mut Context, node: NodeId, number: u64, announce: bool) {
        let send = self.store.cleanups.of(node).schedule(number, announce);
        self.run_cleanup(ctx, node, send);
    }

    fn run_cleanup(&mut self, ctx: &mut Context, node: NodeId, send: Send) {
        if send == Send::No {
            return;
        }
        let retired = self.retired(ctx);
        let cleanup = self.store.cleanups.of(node);
        let announce =
            cleanup.announces() && ctx.config.store.wake == Wake::Notify && !ctx.refuses_wake(node, &self.key);
        let last = retired.last;
        let (number, retired) = cleanup.numbers_to_delete(retired);
        let request = Request::Release { key: self.key.clone(), number, retired, announce };
        let serial = ctx.send(node, request);
        cleanup.delete_sent(serial, ctx.now, last, announce);
    }
}

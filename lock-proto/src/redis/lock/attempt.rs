//! Attempts to take the lock: one request to every node, and the handling of the replies.
// A2 to A4, A10, Q1, Q2

use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::cleanup::{Cleanup, Take};
use super::context::{Context, NodeSet};
use super::redlock::{FatalReason, Round, Verdict, Vote, answer_to_take};
use super::watchdog::{Call, Hold};
use super::{Contention, Lock, Waiter};
use crate::id::NodeId;
use crate::lock::{Answer, Blocked, ErrorClass, Expiry, Failure, ServerError, Wait};
use crate::redis::config::Wake;
use crate::redis::request::{Reply, Request};
use crate::time::millis_up;

/// Slowdown of polling while a node reports releases. Polling is then only a safety net.
pub(super) const NOTIFIED_POLL_FACTOR: u32 = 10;
/// Maximum further slowdown, which grows while a waiter waits.
pub(super) const NOTIFIED_POLL_GROWTH: u32 = 4;
/// Lifetime of a waiter's marker, in polls of the slowest rate. Each poll renews it.
const MARKED_POLLS: u32 = 2 * NOTIFIED_POLL_GROWTH;
/// Minimum lifetime of a marker, to outlive a slow attempt.
const MARKED_AT_LEAST: Duration = Duration::from_secs(2);

impl Lock {
    /// Fails all waiters, because two nodes turned out to be the same server.
    // Q6
    pub(super) fn reject_duplicate_nodes(&mut self, ctx: &mut Context) {
        let Some((a, b)) = ctx.shared.duplicates else { return };
        self.fail_all(ctx, |_| Failure::EqualNodes(a, b));
    }

    /// Starts a round for the head: one attempt on every node.
    pub(super) fn start_round(&mut self, ctx: &mut Context) {
        if ctx.shared.duplicates.is_some() {
            return self.reject_duplicate_nodes(ctx);
        }
        self.contention = Contention::Idle;
        let Some(&head) = self.waiters.head() else { return };
        // All earlier numbers are retired; the new one is live from here on.
        let retired = self.retired(ctx);
        ctx.number += 1;
        let number = ctx.number;
        let first = self.tries == 0;
        self.tries = self.tries.saturating_add(1);
        if let Some(subscription) = &mut self.store.subscription {
            subscription.signalled = false;
        }
        let nodes = ctx.shared.nodes.len();
        let fence_block = ctx.fence_block();
        let (mut marked, mut plain) = (NodeSet::default(), NodeSet::default());
        let send_take = |index: usize| {
            let node = NodeId::new(index as u16);
            if let Some(answer) = ctx.excluded(node) {
                return Vote::No(answer);
            }
            if self.store.cleanups.get(node).is_some_and(Cleanup::awaits_take) {
                return Vote::Deferred;
            }
            let runs_scripts = ctx.shared.nodes.get(index).is_some_and(|node| node.runs_scripts);
            let clean = first
                && (runs_scripts || fence_block > 0)
                && self.store.cleanups.get(node).is_none_or(Cleanup::is_clear);
            let (key, ttl_ms) = (self.key.clone(), head.terms.ms());
            let waiting_ms = self.marker_ms(ctx, node);
            if waiting_ms > 0 {
                marked.insert(node);
            }
            let request = Request::Take { key, number, retired, ttl_ms, fence_block, clean, waiting_ms };
            if request.script().is_none() {
                plain.insert(node);
            }
            Vote::Pending { serial: ctx.send(node, request) }
        };
        let votes = (0..nodes).map(send_take).collect();
        self.contention = Contention::Trying(Round {
            number,
            started: ctx.now,
            deadline: head.terms.round_end(ctx.now, &ctx.config),
            ttl: head.terms,
            votes,
            fence: None,
            signalled: false,
            marked,
            plain,
        });
        self.judge(ctx);
    }

    /// TTL in ms of the marker that asks a node for a wake-up; 0 for none. Every attempt after the
    /// first refusal sets one, on the node that wakes the head.
    // A7
    fn marker_ms(&mut self, ctx: &Context, node: NodeId) -> u64 {
        let single = !ctx.config.is_quorum();
        let listens = self.store.subscription.as_mut().filter(|subscription| subscription.node == node);
        if ctx.config.store.wake == Wake::Poll
            || self.tries <= 1
            || !(single || listens.is_some())
            || ctx.refuses_wake(node, &self.key)
        {
            return 0;
        }
        if let Some(subscription) = listens {
            subscription.marked = true;
        }
        millis_up((ctx.config.store.poll.max * NOTIFIED_POLL_FACTOR * MARKED_POLLS).max(MARKED_AT_LEAST))
    }

    /// Repeats a refused attempt without the marker, whose key may be forbidden or on another
    /// cluster node. Returns false if no marker was set.
    pub(super) fn try_unmarked(&mut self, ctx: &mut Context, node: NodeId, error: &ServerError) -> bool {
        let Contention::Trying(round) = &mut self.contention else { return false };
        if !round.marked.contains(node) {
            return false;
        }
        round.marked.remove(node);
        ctx.shared.wake_refusals.insert(ctx.now, node, &self.key, error);
        self.repeat_take(ctx, node);
        true
    }

    /// Follows a plain `SET` that found the key taken by the script, which looks at the key: at
    /// another type, or at a missing expiry. Otherwise the wait might end without that. Returns
    /// false if another attempt follows anyway, or if the key was looked at.
    // A10
    fn look_at_key(&mut self, ctx: &mut Context, node: NodeId) -> bool {
        let next_attempt = ctx.now + ctx.config.store.poll.every;
        let ends = |head: &Waiter| head.wait == Wait::Try || head.deadline().is_some_and(|end| end <= next_attempt);
        let Contention::Trying(round) = &mut self.contention else { return false };
        if !round.plain.contains(node) || !self.waiters.head().is_some_and(ends) {
            return false;
        }
        round.plain.remove(node);
        self.repeat_take(ctx, node);
        true
    }

    /// Makes another attempt on one node in the current round.
    fn repeat_take(&mut self, ctx: &mut Context, node: NodeId) {
        let retired = self.retired(ctx);
        let waiting_ms = self.marker_ms(ctx, node);
        let Contention::Trying(round) = &mut self.contention else { return };
        if waiting_ms > 0 {
            round.marked.insert(node);
        }
        let (key, number, ttl_ms) = (self.key.clone(), round.number, round.ttl.ms());
        let fence_block = ctx.fence_block();
        let request = Request::Take { key, number, retired, ttl_ms, fence_block, clean: false, waiting_ms };
        let serial = ctx.send(node, request);
        if let Some(vote) = round.votes.get_mut(node.index()) {
            *vote = Vote::Pending { serial };
        }
    }

    /// Handles a late reply to an earlier attempt: the head may try again on the node.
    fn late_take_answered(&mut self, ctx: &mut Context, node: NodeId) {
        let reachable = self.below_quorum() && self.why_blocked(ctx.quorum()) == Blocked::Held;
        let unmarked =
            self.store.subscription.is_some_and(|subscription| subscription.node == node && subscription.is_unmarked());
        match &mut self.contention {
            Contention::Trying(round) if round.votes.get(node.index()) == Some(&Vote::Deferred) => {
                self.repeat_take(ctx, node);
            }
            // The last round set no marker there, so no release would wake the head.
            Contention::Paused { .. } if unmarked => self.start_round(ctx),
            // Not at once: the next reply may be as late.
            Contention::Paused { until } if reachable => *until = (*until).min(ctx.now + ctx.config.store.poll.every),
            Contention::Trying(_) | Contention::Paused { .. } | Contention::Releasing { .. } | Contention::Idle => {}
        }
    }

    pub(super) fn take_answered(&mut self, ctx: &mut Context, node: NodeId, take: Take, reply: &Reply) {
        let until = take.ttl.until(take.emitted, &ctx.config);
        let of_round = matches!(&self.contention, Contention::Trying(round) if round.number == take.number);
        if let Reply::Rejected(error) = reply
            && error.class == ErrorClass::Refused
            && of_round
            && self.try_unmarked(ctx, node, error)
        {
            return;
        }
        let untold = matches!(reply, Reply::Busy { expires: Expiry::Unknown });
        if untold && of_round && self.look_at_key(ctx, node) {
            return;
        }
        if let Contention::Trying(round) = &mut self.contention
            && round.number == take.number
        {
            round.answer(node, until, reply);
            self.withdraw_excluded(ctx, node);
            self.judge(ctx);
        } else if let Some(hold) = self.hold.as_mut().filter(|hold| hold.number == take.number) {
            let call = Call { serial: take.serial, emitted: take.emitted, ttl: take.ttl };
            hold.answered(ctx, node, call, reply);
            self.after_answer(ctx);
        } else {
            let before = self.store.answers.get_mut(node.index()).filter(|answer| **answer == Answer::Silent);
            if let Some(answer) = before {
                *answer = answer_to_take(reply);
            }
            if let Some(lost) = self.lost.iter_mut().find(|lost| lost.remains.number == take.number) {
                // The guard of the lost hold is still alive: delete nothing before it is returned.
                // H6
                lost.remains.nodes.insert(node);
            } else if let Some(cleanup) = self.store.cleanups.get_mut(node) {
                let send = cleanup.late_reply(take.number, reply);
                if cleanup.is_clear() {
                    self.releases.iter_mut().for_each(|back| back.store.has_none(node));
                }
                self.run_cleanup(ctx, node, send);
                self.answer_releases(ctx);
            }
            self.late_take_answered(ctx, node);
        }
    }

    /// A node that was restarted or replaced may not vote, even if it granted before. Cleanup
    /// deletes what it granted.
    // Q6, Q7
    pub(super) fn withdraw_excluded(&mut self, ctx: &Context, node: NodeId) {
        if let Contention::Trying(round) = &mut self.contention
            && let Some(answer) = ctx.excluded(node)
            && round.withdraw(node, answer)
        {
            self.store.cleanups.of(node).granted(round.number);
        }
    }

    /// Decides the round as early as possible.
    pub(super) fn judge(&mut self, ctx: &mut Context) {
        if ctx.shared.duplicates.is_some() {
            return self.reject_duplicate_nodes(ctx);
        }
        let Contention::Trying(round) = &self.contention else { return };
        match round.verdict(ctx.now, ctx.quorum()) {
            Verdict::Open => {}
            Verdict::Won => self.win(ctx),
            Verdict::Lost => self.lose_round(ctx),
        }
    }

    pub(super) fn win(&mut self, ctx: &mut Context) {
        let Contention::Trying(round) = mem::take(&mut self.contention) else { return };
        self.tries = 0;
        self.store.answers = Vec::new();
        if ctx.config.is_quorum() {
            // The other nodes may have granted the lock before the release consumed the marker.
            // Passing the signal on makes another waiter try, and set the marker again.
            self.forward_signal(ctx);
        }
        self.unsubscribe(ctx);
        let Some(waiter) = self.waiters.pop() else {
            // All waiters left after the round had started.
            self.end_round(ctx, &round, true);
            return;
        };
        self.move_takes_to_cleanup(&round);
        let mut hold = Hold::new(ctx.now, &round, waiter, &ctx.config, ctx.seed);
        // The round may have been started for another head with a shorter TTL.
        let too_short = waiter.terms > round.ttl;
        if too_short {
            hold.extend(ctx.now);
        }
        self.hold = Some(hold);
        if too_short {
            self.watch(ctx);
        } else {
            self.offer(ctx);
        }
    }

    /// Hands the attempts in flight of an ended round over to cleanup.
    pub(super) fn move_takes_to_cleanup(&mut self, round: &Round) {
        for index in 0..round.votes.len() {
            let node = NodeId::new(index as u16);
            if let Some(take) = round.take(node) {
                self.store.cleanups.of(node).take_sent(take);
            }
        }
    }

    /// Schedules deletes wherever the round may have written its token.
    pub(super) fn end_round(&mut self, ctx: &mut Context, round: &Round, announce: bool) {
        self.move_takes_to_cleanup(round);
        let mut landed = NodeSet::default();
        for (index, vote) in round.votes.iter().enumerate() {
            let node = NodeId::new(index as u16);
            let here = match vote {
                Vote::Yes { .. } | Vote::Pending { .. } | Vote::No(Answer::Unknown(_)) => true,
                Vote::Deferred | Vote::No(_) => self.store.cleanups.get(node).is_some_and(Cleanup::has_granted),
            };
            if here {
                landed.insert(node);
            }
        }
        if announce {
            return self.schedule_all(ctx, landed, round.number);
        }
        for node in landed.iter() {
            self.schedule(ctx, node, round.number, false);
        }
    }

    pub(super) fn lose_round(&mut self, ctx: &mut Context) {
        let Contention::Trying(round) = mem::take(&mut self.contention) else { return };
        let quorum = ctx.quorum();
        self.store.answers = self.answers_with(&round);
        self.end_round(ctx, &round, false);
        if self.waiters.is_empty() {
            return self.nobody_waits(ctx);
        }
        match round.fatal_reason(quorum) {
            Some(FatalReason::KeyInUse) => return self.fail_all(ctx, Failure::KeyInUse),
            Some(FatalReason::Refused) => return self.fail_all(ctx, Failure::Refused),
            None => {}
        }
        if self.end_try(ctx) {
            return;
        }
        let blocked = self.why_blocked(quorum);
        self.notify_blocked(ctx, blocked);
        let mut signalled = false;
        if let Some(subscription) = &mut self.store.subscription
            && subscription.fired
        {
            // Another client won; requeue.
            subscription.fired = false;
            signalled = true;
            ctx.listen(subscription.node, &self.key, true);
        }
        if matches!(blocked, Blocked::Held | Blocked::HeldWithoutExpiry) {
            self.subscribe(ctx);
        }
        let until = self.next_attempt(ctx, &round, blocked, signalled);
        self.contention = Contention::Paused { until };
        if round.signalled {
            // A release was signalled during the round: retry at once, so as not to miss it.
            self.start_round(ctx);
        }
    }

    /// Returns the replies of a round. For a node that is still silent, returns its previous reply.
    pub(super) fn answers_with(&self, round: &Round) -> Vec<Answer> {
        let before = |index: usize| self.store.answers.get(index).cloned().unwrap_or_default();
        let answers = round.answers().enumerate();
        answers.map(|(index, answer)| if answer == Answer::Silent { before(index) } else { answer }).collect()
    }
}

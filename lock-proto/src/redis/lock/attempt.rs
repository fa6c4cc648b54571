//! Attempts to take the lock: one request to every node, and the handling of the replies.
// A2 to A4, A10, Q1, Q2

use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::calls::{Purpose, RedisCall, Take};
use super::cleanup::Cleanup;
use super::context::{NodeSet, RedisEnv};
use super::redlock::{FatalReason, Round, Verdict, Vote, answer_to_take};
use super::watchdog::QuorumHold;
use super::{Contention, Redis, RedisWaiter};
use crate::id::NodeId;
use crate::lock::{Answer, Blocked, ErrorClass, Expiry, Fact, Hopeless, ServerError, Wait};
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

impl Redis {
    /// Starts a round for the head: one attempt on every node.
    pub(super) fn start_round(&mut self, env: &mut RedisEnv) {
        if let Some((a, b)) = env.shared.duplicates {
            // Q6
            return env.report(Fact::Hopeless(Hopeless::EqualNodes(a, b)));
        }
        self.contention = Contention::Idle;
        let Some(head) = self.head else { return };
        // All earlier numbers are retired; the new one is live from here on.
        let retired = self.retired(env);
        env.number += 1;
        let number = env.number;
        let first = self.tries == 0;
        self.tries = self.tries.saturating_add(1);
        if let Some(subscription) = &mut self.subscription {
            subscription.signalled = false;
        }
        let nodes = env.shared.nodes.len();
        let fence_block = env.fence_block();
        let (mut marked, mut plain) = (NodeSet::default(), NodeSet::default());
        let send_take = |index: usize| {
            let node = NodeId::new(index as u16);
            if let Some(answer) = env.excluded(node) {
                return Vote::No(answer);
            }
            if !self.calls.takes(node).is_empty() {
                return Vote::Deferred;
            }
            let runs_scripts = env.shared.nodes.get(index).is_some_and(|node| node.runs_scripts);
            let clean =
                first && (runs_scripts || fence_block > 0) && self.cleanups.get(node).is_none_or(Cleanup::is_clear);
            let (key, ttl_ms) = (self.key.clone(), head.terms.ms());
            let waiting_ms = self.marker_ms(env, node);
            if waiting_ms > 0 {
                marked.insert(node);
            }
            let request = Request::Take { key, number, retired, ttl_ms, fence_block, clean, waiting_ms };
            if request.script().is_none() {
                plain.insert(node);
            }
            let take = Take { number, ttl: head.terms, top_up: false };
            self.calls.send(env, node, request, Purpose::Take(take));
            Vote::Pending
        };
        let votes = (0..nodes).map(send_take).collect();
        self.contention = Contention::Trying(Round {
            number,
            started: env.now,
            deadline: head.terms.round_end(env.now, &env.config),
            ttl: head.terms,
            votes,
            fence: None,
            signalled: false,
            marked,
            plain,
        });
        self.judge(env);
    }

    /// TTL in ms of the marker that asks a node for a wake-up; 0 for none. Every attempt after the
    /// first refusal sets one, on the node that wakes the head.
    // A7
    fn marker_ms(&mut self, env: &RedisEnv, node: NodeId) -> u64 {
        let single = !env.config.is_quorum();
        let listens = self.subscription.as_mut().filter(|subscription| subscription.node == node);
        if env.config.store.wake == Wake::Poll
            || self.tries <= 1
            || !(single || listens.is_some())
            || env.refuses_wake(node, &self.key)
        {
            return 0;
        }
        if let Some(subscription) = listens {
            subscription.marked = true;
        }
        millis_up((env.config.store.poll.max * NOTIFIED_POLL_FACTOR * MARKED_POLLS).max(MARKED_AT_LEAST))
    }

    /// Repeats a refused attempt without the marker, whose key may be forbidden or on another
    /// cluster node. Returns false if no marker was set.
    fn try_unmarked(&mut self, env: &mut RedisEnv, node: NodeId, error: &ServerError) -> bool {
        let Contention::Trying(round) = &mut self.contention else { return false };
        if !round.marked.contains(node) {
            return false;
        }
        round.marked.remove(node);
        env.shared.wake_refusals.insert(env.now, node, &self.key, error);
        self.repeat_take(env, node);
        true
    }

    /// Follows a plain `SET` that found the key taken by the script, which looks at the key: at
    /// another type, or at a missing expiry. Otherwise the wait might end without that. Returns
    /// false if another attempt follows anyway, or if the key was looked at.
    // A10
    fn look_at_key(&mut self, env: &mut RedisEnv, node: NodeId) -> bool {
        let next_attempt = env.now + env.config.store.poll.every;
        let ends =
            |head: &RedisWaiter| head.wait == Wait::Try || head.deadline().is_some_and(|end| end <= next_attempt);
        let Contention::Trying(round) = &mut self.contention else { return false };
        if !round.plain.contains(node) || !self.head.as_ref().is_some_and(ends) {
            return false;
        }
        round.plain.remove(node);
        self.repeat_take(env, node);
        true
    }

    /// Makes another attempt on one node in the current round.
    fn repeat_take(&mut self, env: &mut RedisEnv, node: NodeId) {
        let retired = self.retired(env);
        let waiting_ms = self.marker_ms(env, node);
        let Contention::Trying(round) = &mut self.contention else { return };
        if waiting_ms > 0 {
            round.marked.insert(node);
        }
        let (key, number, ttl_ms) = (self.key.clone(), round.number, round.ttl.ms());
        let fence_block = env.fence_block();
        let request = Request::Take { key, number, retired, ttl_ms, fence_block, clean: false, waiting_ms };
        let take = Take { number, ttl: round.ttl, top_up: false };
        self.calls.send(env, node, request, Purpose::Take(take));
        if let Some(vote) = round.votes.get_mut(node.index()) {
            *vote = Vote::Pending;
        }
    }

    /// Handles a late reply to an earlier attempt: the head may try again on the node.
    fn late_take_answered(&mut self, env: &mut RedisEnv, node: NodeId) {
        let reachable = self.below_quorum() && self.why_blocked(env.quorum()) == Blocked::Held;
        let unmarked =
            self.subscription.is_some_and(|subscription| subscription.node == node && subscription.is_unmarked());
        match &mut self.contention {
            Contention::Trying(round) if round.votes.get(node.index()) == Some(&Vote::Deferred) => {
                self.repeat_take(env, node);
            }
            // The last round set no marker there, so no release would wake the head.
            Contention::Paused { .. } if unmarked => self.start_round(env),
            // Not at once: the next reply may be as late.
            Contention::Paused { until } if reachable => *until = (*until).min(env.now + env.config.store.poll.every),
            Contention::Trying(_) | Contention::Paused { .. } | Contention::Releasing { .. } | Contention::Idle => {}
        }
    }

    /// Handles the reply to an attempt: of the round, of the hold, or of one that is retired.
    pub(super) fn take_answered(&mut self, env: &mut RedisEnv, call: RedisCall, take: Take, reply: &Reply) {
        let node = call.node;
        if let Reply::Unknown(_) = reply {
            self.cleanups.of(node).ended_unknown(take.ttl);
        }
        if matches!(&self.contention, Contention::Trying(round) if round.number == take.number) {
            return self.vote_answered(env, call, take, reply);
        }
        if let Some(hold) = self.hold.as_mut().filter(|hold| hold.number == take.number) {
            hold.answered(env, call, take.ttl, reply);
            return self.after_answer(env);
        }
        let before = self.answers.get_mut(node.index()).filter(|answer| **answer == Answer::Silent);
        if let Some(answer) = before {
            *answer = answer_to_take(reply);
        }
        if let Some((_, remains)) = self.left.iter_mut().find(|(_, remains)| remains.number == take.number) {
            // The guard of the lost hold is still alive: delete nothing before it is returned.
            // H6
            remains.nodes.insert(node);
        } else {
            let last = self.retired(env).last;
            let takes = self.calls.takes(node);
            let cleanup = self.cleanups.of(node);
            let send = cleanup.late_reply(takes, take.number, reply);
            if cleanup.is_clear() && takes.are_settled(last) {
                self.releases.iter_mut().for_each(|release| release.has_none(node));
            }
            self.run_cleanup(env, node, send);
            self.answer_releases(env);
        }
        self.late_take_answered(env, node);
    }

    /// Handles the reply to an attempt of the round.
    fn vote_answered(&mut self, env: &mut RedisEnv, call: RedisCall, take: Take, reply: &Reply) {
        let node = call.node;
        if let Reply::Rejected(error) = reply
            && error.class == ErrorClass::Refused
            && self.try_unmarked(env, node, error)
        {
            return;
        }
        if matches!(reply, Reply::Busy { expires: Expiry::Unknown }) && self.look_at_key(env, node) {
            return;
        }
        if let Contention::Trying(round) = &mut self.contention {
            round.answer(node, take.ttl.until(call.emitted, &env.config), reply);
        }
        self.withdraw_excluded(env, node);
        self.judge(env);
    }

    /// A node that was restarted or replaced may not vote, even if it granted before. Cleanup
    /// deletes what it granted.
    // Q6, Q7
    pub(super) fn withdraw_excluded(&mut self, env: &RedisEnv, node: NodeId) {
        if let Contention::Trying(round) = &mut self.contention
            && let Some(answer) = env.excluded(node)
            && round.withdraw(node, answer)
        {
            self.cleanups.of(node).granted(round.number);
        }
    }

    /// Decides the round as early as possible.
    pub(super) fn judge(&mut self, env: &mut RedisEnv) {
        if let Some((a, b)) = env.shared.duplicates {
            // Q6
            return env.report(Fact::Hopeless(Hopeless::EqualNodes(a, b)));
        }
        match mem::take(&mut self.contention) {
            Contention::Trying(round) => match round.verdict(env.now, env.quorum()) {
                Verdict::Open => self.contention = Contention::Trying(round),
                Verdict::Won => self.win(env, &round),
                Verdict::Lost => self.lose_round(env, &round),
            },
            other @ (Contention::Idle | Contention::Paused { .. } | Contention::Releasing { .. }) => {
                self.contention = other;
            }
        }
    }

    fn win(&mut self, env: &mut RedisEnv, round: &Round) {
        let Some(waiter) = self.head.take() else { return self.end_round(env, round, true) };
        self.tries = 0;
        self.answers = Vec::new();
        if env.config.is_quorum() {
            // The other nodes may have granted the lock before the release consumed the marker.
            // Passing the signal on makes another waiter try, and set the marker again.
            self.forward_signal(env);
        }
        self.unsubscribe(env);
        let hold = self.hold.insert(QuorumHold::new(env.now, round, &waiter, &env.config, env.seed));
        let too_short = waiter.terms > round.ttl;
        if too_short {
            // The round was started for another head with a shorter TTL.
            hold.extend(env.now);
        }
        let holding = hold.holding(env.now, env.quorum());
        env.report(Fact::Taken(waiter.id, holding));
        if too_short {
            self.renew(env);
        } else {
            self.offer(env);
        }
    }

    /// Schedules deletes wherever the round may have written its token.
    pub(super) fn end_round(&mut self, env: &mut RedisEnv, round: &Round, announce: bool) {
        let mut landed = NodeSet::default();
        for (index, vote) in round.votes.iter().enumerate() {
            let node = NodeId::new(index as u16);
            let here = match vote {
                Vote::Yes { .. } | Vote::Pending | Vote::No(Answer::Unknown(_)) => true,
                Vote::Deferred | Vote::No(_) => self.cleanups.get(node).is_some_and(Cleanup::has_granted),
            };
            if here {
                landed.insert(node);
            }
        }
        if announce {
            return self.schedule_all(env, landed, round.number);
        }
        for node in landed.iter() {
            self.schedule(env, node, round.number, false);
        }
    }

    fn lose_round(&mut self, env: &mut RedisEnv, round: &Round) {
        let quorum = env.quorum();
        self.answers = self.answers_with(round);
        self.end_round(env, round, false);
        match round.fatal_reason(quorum) {
            Some(FatalReason::KeyInUse) => return env.report(Fact::Hopeless(Hopeless::KeyInUse)),
            Some(FatalReason::Refused) => return env.report(Fact::Hopeless(Hopeless::Refused)),
            None => {}
        }
        if self.head.is_some_and(|head| head.wait == Wait::Try) {
            return env.report(Fact::NotTaken);
        }
        let blocked = self.why_blocked(quorum);
        self.report_blocked(env, blocked);
        let mut signalled = false;
        if let Some(subscription) = &mut self.subscription
            && subscription.fired
        {
            // Another client won; requeue.
            subscription.fired = false;
            signalled = true;
            env.listen(subscription.node, &self.key, true);
        }
        if matches!(blocked, Blocked::Held | Blocked::HeldWithoutExpiry) {
            self.subscribe(env);
        }
        let until = self.next_attempt(env, round, blocked, signalled);
        self.contention = Contention::Paused { until };
        if round.signalled {
            // A release was signalled during the round: retry at once, so as not to miss it.
            self.start_round(env);
        }
    }

    /// Records why the last attempt for the head failed, and reports it.
    pub(super) fn report_blocked(&mut self, env: &mut RedisEnv, why: Blocked) {
        self.blocked = Some(why);
        env.blocked(why);
    }

    /// Returns the replies of a round. For a node that is still silent, returns its previous reply.
    pub(super) fn answers_with(&self, round: &Round) -> Vec<Answer> {
        let before = |index: usize| self.answers.get(index).cloned().unwrap_or_default();
        let answers = round.answers().enumerate();
        answers.map(|(index, answer)| if answer == Answer::Silent { before(index) } else { answer }).collect()
    }
}

//! Attempts to take the lock: one request to every node, and what its answers mean (requirements A2 to A4, A10, Q1, Q2).

use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::cleanup::{Cleanup, Take};
use super::context::{Context, NodeSet};
use super::redlock::{Hopeless, Round, Verdict, Vote, answer_to_take};
use super::watchdog::{Call, Hold};
use super::{Contention, Lock};
use crate::id::NodeId;
use crate::lock::{Answer, Blocked, ErrorClass, Failure};
use crate::redis::config::Wake;
use crate::redis::request::{Reply, Request};
use crate::time::millis_up;

/// While a node will tell of the release, polling is the safety net only.
pub(super) const NOTIFIED_POLL_FACTOR: u32 = 10;
/// And so many times slower still, the longer a waiter waits.
pub(super) const NOTIFIED_POLL_GROWTH: u32 = 4;
/// How many of its slowest polls a waiter's marker outlives; each of them sets it anew. One that is left by a dead waiter costs a
/// signal that nobody takes.
const MARKED_POLLS: u32 = 2 * NOTIFIED_POLL_GROWTH;
/// But not less than this: an attempt may take its time.
const MARKED_AT_LEAST: Duration = Duration::from_secs(2);

impl Lock {
    /// Two nodes turned out to be one server: nobody gets a lock from them (requirement Q6).
    pub(super) fn refuse_equal_nodes(&mut self, ctx: &mut Context) {
        let Some((a, b)) = ctx.shared.equal else { return };
        self.fail_all(ctx, |_| Failure::EqualNodes(a, b));
    }

    /// One attempt on every node, for the head.
    pub(super) fn start_round(&mut self, ctx: &mut Context) {
        if ctx.shared.equal.is_some() {
            return self.refuse_equal_nodes(ctx);
        }
        self.contention = Contention::Idle;
        let Some(&head) = self.waiters.head() else { return };
        // Whatever came before is spent; from here on the new number is alive.
        let retired = self.retired(ctx);
        ctx.number += 1;
        let number = ctx.number;
        let first = self.tries == 0;
        self.tries = self.tries.saturating_add(1);
        if let Some(subscription) = &mut self.store.subscription {
            subscription.hinted = false;
        }
        let nodes = ctx.shared.nodes.len();
        let fence_block = ctx.fence_block();
        let mut marked = NodeSet::default();
        let ask = |index: usize| {
            let node = NodeId::new(index as u16);
            if let Some(answer) = ctx.excluded(node) {
                return Vote::No(answer);
            }
            if self.store.cleanups.get(node).is_some_and(Cleanup::awaits_take) {
                return Vote::Waiting;
            }
            let clean = first && self.store.cleanups.get(node).is_none_or(Cleanup::is_clear);
            let (key, ttl_ms) = (self.key.clone(), head.terms.ms());
            let waiting_ms = self.marker_ms(ctx, node);
            if waiting_ms > 0 {
                marked.insert(node);
            }
            let request = Request::Take { key, number, retired, ttl_ms, fence_block, clean, waiting_ms };
            Vote::Asked { serial: ctx.send(node, request) }
        };
        let votes = (0..nodes).map(ask).collect();
        self.contention = Contention::Trying(Round {
            number,
            started: ctx.now,
            deadline: head.terms.round_end(ctx.now, &ctx.config),
            ttl: head.terms,
            votes,
            fence: None,
            hinted: false,
            marked,
        });
        self.judge(ctx);
    }

    /// Lifetime in ms of the marker that an attempt sets on the node to ask for a wake-up; 0 for no marker. Every attempt
    /// after the first refusal sets one, on the node that wakes the head.
    // A7
    fn marker_ms(&mut self, ctx: &Context, node: NodeId) -> u64 {
        let single = !ctx.config.is_quorum();
        let listens = self.store.subscription.as_mut().filter(|subscription| subscription.node == node);
        if ctx.config.store.wake == Wake::Poll
            || self.tries <= 1
            || !(single || listens.is_some())
            || ctx.shared.quiet.contains(node)
        {
            return 0;
        }
        if let Some(subscription) = listens {
            subscription.marked = true;
        }
        millis_up((ctx.config.store.poll.max * NOTIFIED_POLL_FACTOR * MARKED_POLLS).max(MARKED_AT_LEAST))
    }

    /// The node refused the attempt, which also set the marker of those who wait: once more without it, as that key may be forbidden, or
    /// lie elsewhere in a cluster. A release does not wake us then, and polling takes over. False if it was not marked.
    pub(super) fn try_unmarked(&mut self, ctx: &mut Context, node: NodeId) -> bool {
        let Contention::Trying(round) = &mut self.contention else { return false };
        if !round.marked.contains(node) {
            return false;
        }
        round.marked.remove(node);
        ctx.shared.quiet.insert(node);
        self.ask_again(ctx, node);
        true
    }

    /// An attempt on one node in the round under way, beside those that left when it began.
    fn ask_again(&mut self, ctx: &mut Context, node: NodeId) {
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
            *vote = Vote::Asked { serial };
        }
    }

    /// An earlier attempt on the node has its answer at last: the head may try there again.
    fn late_answer(&mut self, ctx: &mut Context, node: NodeId) {
        let reachable = self.lacks_nodes() && self.why_blocked(ctx.quorum()) == Blocked::Held;
        let unmarked =
            self.store.subscription.is_some_and(|subscription| subscription.node == node && subscription.is_unmarked());
        match &mut self.contention {
            Contention::Trying(round) if round.votes.get(node.index()) == Some(&Vote::Waiting) => {
                self.ask_again(ctx, node);
            }
            // The last round did not set the marker there, so no release would wake the head.
            Contention::Paused { .. } if unmarked => self.start_round(ctx),
            // Not at once: the answer may be as late each time.
            Contention::Paused { until } if reachable => *until = (*until).min(ctx.now + ctx.config.store.poll.every),
            Contention::Trying(_) | Contention::Paused { .. } | Contention::Releasing { .. } | Contention::Idle => {}
        }
    }

    /// An attempt has its answer.
    pub(super) fn take_answered(&mut self, ctx: &mut Context, node: NodeId, take: Take, reply: &Reply) {
        let until = take.ttl.until(take.emitted, &ctx.config);
        let refused = matches!(reply, Reply::Rejected(error) if error.class == ErrorClass::Refused);
        let of_round = matches!(&self.contention, Contention::Trying(round) if round.number == take.number);
        if refused && of_round && self.try_unmarked(ctx, node) {
            return;
        }
        if let Contention::Trying(round) = &mut self.contention
            && round.number == take.number
        {
            // A node that turned out to be young may not vote, and what it granted is given back with the rest.
            match (ctx.excluded(node), reply) {
                (Some(answer), Reply::Granted { .. }) => {
                    if let Some(vote) = round.votes.get_mut(node.index()) {
                        *vote = Vote::No(answer);
                    }
                    self.store.cleanups.of(node).found(take.number);
                }
                (Some(_) | None, _) => round.answer(node, until, reply),
            }
            self.judge(ctx);
        } else if let Some(hold) = self.hold.as_mut().filter(|hold| hold.number == take.number) {
            let call = Call { serial: take.serial, emitted: take.emitted, ttl: take.ttl };
            hold.answered(ctx, node, call, reply);
            self.after_answer(ctx);
        } else if let Some(lost) = self.lost.iter_mut().find(|lost| lost.remains.number == take.number) {
            // The holder was notified, and its guard is alive: nothing is deleted before it comes back (requirement H6).
            lost.remains.nodes.insert(node);
        } else {
            let before = self.store.answers.get_mut(node.index()).filter(|answer| **answer == Answer::Silent);
            if let Some(answer) = before {
                *answer = answer_to_take(reply);
            }
            if let Some(cleanup) = self.store.cleanups.get_mut(node) {
                let send = cleanup.straggled(take.number, reply);
                self.run_cleanup(ctx, node, send);
            }
            self.late_answer(ctx, node);
        }
    }

    /// Decides the round as early as it can be decided.
    pub(super) fn judge(&mut self, ctx: &mut Context) {
        if ctx.shared.equal.is_some() {
            return self.refuse_equal_nodes(ctx);
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
            // The other nodes may have granted the lock before the release reached the node that wakes waiters, where it
            // consumed the marker. Passing the signal on makes another waiter try, and set the marker again.
            self.pass_signal_on(ctx);
        }
        self.unsubscribe(ctx);
        let Some(waiter) = self.waiters.pop() else {
            // Everybody left; the round was kept for a head that is gone.
            self.end_round(ctx, &round, true);
            return;
        };
        self.leave_open(&round);
        let mut hold = Hold::new(ctx.now, &round, waiter, &ctx.config, ctx.seed);
        // The round may have been started for another head with a shorter TTL.
        let short = waiter.terms > round.ttl;
        if short {
            hold.extend(ctx.now);
        }
        self.hold = Some(hold);
        if short {
            self.watch(ctx);
        } else {
            self.offer(ctx);
        }
    }

    /// The attempts of a round that has ended, but for their answers.
    pub(super) fn leave_open(&mut self, round: &Round) {
        for index in 0..round.votes.len() {
            let node = NodeId::new(index as u16);
            if let Some(take) = round.take(node) {
                self.store.cleanups.of(node).take_sent(take);
            }
        }
    }

    /// Gives back what the round may have won.
    pub(super) fn end_round(&mut self, ctx: &mut Context, round: &Round, announce: bool) {
        self.leave_open(round);
        let mut landed = NodeSet::default();
        for (index, vote) in round.votes.iter().enumerate() {
            let node = NodeId::new(index as u16);
            let here = match vote {
                Vote::Yes { .. } | Vote::Asked { .. } | Vote::No(Answer::Unknown(_)) => true,
                Vote::Waiting | Vote::No(_) => self.store.cleanups.get(node).is_some_and(Cleanup::has_found),
            };
            if here {
                landed.insert(node);
            }
        }
        let nodes = if announce { self.with_wake_node(ctx, landed) } else { landed };
        for node in nodes.iter() {
            self.schedule(ctx, node, round.number, announce);
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
        match round.hopeless(quorum) {
            Some(Hopeless::KeyInUse) => return self.fail_all(ctx, Failure::KeyInUse),
            Some(Hopeless::Refused) => return self.fail_all(ctx, Failure::Refused),
            None => {}
        }
        if self.end_try(ctx) {
            return;
        }
        let blocked = self.why_blocked(quorum);
        self.notify_blocked(ctx, blocked);
        let mut signalled = false;
        if let Some(subscription) = &mut self.store.subscription
            && subscription.told
        {
            // Another client won; requeue.
            subscription.told = false;
            signalled = true;
            ctx.listen(subscription.node, &self.key, true);
        }
        if matches!(blocked, Blocked::Held | Blocked::HeldWithoutExpiry) {
            self.subscribe(ctx);
        }
        let until = self.next_attempt(ctx, &round, blocked, signalled);
        self.contention = Contention::Paused { until };
        if round.hinted {
            // A release was signalled while the attempt was under way: once more, and no release falls between.
            self.start_round(ctx);
        }
    }

    /// The answers of a round; where a node has not answered yet, what it said before.
    pub(super) fn answers_with(&self, round: &Round) -> Vec<Answer> {
        let before = |index: usize| self.store.answers.get(index).cloned().unwrap_or_default();
        let answers = round.answers().enumerate();
        answers.map(|(index, answer)| if answer == Answer::Silent { before(index) } else { answer }).collect()
    }
}

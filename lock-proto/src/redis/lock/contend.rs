//! Waiting and trying: rounds, polling, wake-ups (requirements A2-A8, A10, Q1, Q2).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::context::{Context, Node, NodeSet};
use super::debt::{Debt, Take};
use super::round::{Hopeless, Round, Verdict, Vote, answer_to_take};
use super::watchdog::{Call, Hold, Holder, Phase};
use super::{Listening, Lock, Stage, Waiter};
use crate::id::NodeId;
use crate::jitter::{doubled, jitter};
use crate::lock::{Answer, Blocked, Event, Failure, Report};
use crate::lock::{ErrorClass, Expiry};
use crate::redis::config::Wake;
use crate::redis::request::{Reply, Request};
use crate::time::{Instant, millis_up};

/// While a node will tell of the release, polling is the safety net only.
const NOTIFIED_POLL_FACTOR: u32 = 10;
/// The first node of a quorum has told of a release: the others get this long to follow.
const HINT_GATHERING: Duration = Duration::from_millis(5);
/// How many of its slowest polls a waiter's marker outlives; each of them sets it anew. One that is left by a dead waiter costs a
/// signal that nobody takes.
const MARKED_POLLS: u32 = 4;
/// But not less than this: an attempt may take its time.
const MARKED_AT_LEAST: Duration = Duration::from_secs(2);
/// Waiters that all wait for the same expiry are spread over this.
const EXPIRY_SPREAD: Duration = Duration::from_millis(10);

impl Lock {
    /// Two nodes turned out to be one server: nobody gets a lock from them (requirement Q6).
    pub(super) fn refuse_equal_nodes(&mut self, ctx: &mut Context<'_>) {
        let Some((a, b)) = ctx.equal else { return };
        while let Some(waiter) = self.next_waiter() {
            ctx.end(waiter.id, Event::Failed(Failure::EqualNodes(a, b)));
        }
        self.nobody_waits(ctx);
    }

    /// One attempt on every node, for the head.
    pub(super) fn start_round(&mut self, ctx: &mut Context<'_>) {
        if ctx.equal.is_some() {
            return self.refuse_equal_nodes(ctx);
        }
        let Some(&head) = self.queue.front() else {
            self.stage = Stage::Idle;
            return;
        };
        // Whatever came before is spent; from here on the new number is alive.
        self.stage = Stage::Idle;
        let spent = self.spent(ctx);
        *ctx.number += 1;
        #[cfg(test)]
        if ctx.identity.flaw == Some(crate::redis::request::Flaw::SameToken) {
            *ctx.number = 1;
        }
        let number = *ctx.number;
        let first = self.tries == 0;
        self.tries = self.tries.saturating_add(1);
        if let Some(listening) = &mut self.listening {
            listening.hinted = NodeSet::default();
        }
        let nodes = ctx.nodes;
        let quorum = nodes.len() > 1;
        let fence_block = ctx.fence_block();
        // Whoever was refused once waits, and asks the releases to tell (requirement A7).
        let waiting_ms = match ctx.config.wake {
            Wake::Notify if !first => {
                millis_up((ctx.config.poll.max * NOTIFIED_POLL_FACTOR * MARKED_POLLS).max(MARKED_AT_LEAST))
            }
            Wake::Notify | Wake::Poll => 0,
        };
        let mut marked = NodeSet::default();
        let ask = |(index, known): (usize, &Node)| {
            if let Some(answer) = known.excluded(ctx.now) {
                return Vote::No(answer);
            }
            let node = NodeId::new(index as u16);
            let clean = first && self.debts.get(node).is_none_or(Debt::is_clear);
            let (key, ttl_ms) = (self.key.clone(), head.ttl.ms());
            let waiting_ms = if ctx.quiet.contains(node) { 0 } else { waiting_ms };
            if waiting_ms > 0 {
                marked.insert(node);
            }
            let request = Request::Take { key, number, spent, ttl_ms, fence_block, clean, waiting_ms };
            Vote::Asked { serial: ctx.send(node, request, head.ttl.patience(ctx.config)) }
        };
        let votes = nodes.iter().enumerate().map(ask).collect();
        self.stage = Stage::Trying(Round {
            number,
            started: ctx.now,
            deadline: quorum.then(|| ctx.now + head.ttl.round_timeout(ctx.config)),
            ttl: head.ttl,
            votes,
            fence: None,
            hinted: false,
            marked,
        });
        self.judge(ctx);
    }

    /// The node refused the attempt, which also set the marker of those who wait: once more without it, as that key may be forbidden, or
    /// lie elsewhere in a cluster. A release does not wake us then, and polling takes over. False if it was not marked.
    fn try_unmarked(&mut self, ctx: &mut Context<'_>, node: NodeId) -> bool {
        let spent = self.spent(ctx);
        let Stage::Trying(round) = &mut self.stage else { return false };
        if !round.marked.contains(node) {
            return false;
        }
        round.marked.remove(node);
        ctx.quiet.insert(node);
        let (key, number, ttl_ms) = (self.key.clone(), round.number, round.ttl.ms());
        let fence_block = ctx.fence_block();
        let request = Request::Take { key, number, spent, ttl_ms, fence_block, clean: false, waiting_ms: 0 };
        let serial = ctx.send(node, request, round.ttl.patience(ctx.config));
        if let Some(vote) = round.votes.get_mut(node.index()) {
            *vote = Vote::Asked { serial };
        }
        true
    }

    /// An attempt has its answer.
    pub(super) fn take_answered(&mut self, ctx: &mut Context<'_>, node: NodeId, take: Take, reply: &Reply) {
        let until = take.ttl.until(take.emitted, ctx.config);
        let refused = matches!(reply, Reply::Rejected(error) if error.class == ErrorClass::Refused);
        let of_round = matches!(&self.stage, Stage::Trying(round) if round.number == take.number);
        if refused && of_round && self.try_unmarked(ctx, node) {
            return;
        }
        match &mut self.stage {
            Stage::Trying(round) if round.number == take.number => {
                // A node that turned out to be young may not vote, and what it granted is given back with the rest.
                match (ctx.nodes.get(node.index()).and_then(|node| node.excluded(ctx.now)), reply) {
                    (Some(answer), Reply::Granted { .. }) => {
                        if let Some(vote) = round.votes.get_mut(node.index()) {
                            *vote = Vote::No(answer);
                        }
                        self.debts.of(node).found(take.number);
                    }
                    (Some(_) | None, _) => round.answer(node, until, reply),
                }
                self.judge(ctx);
            }
            Stage::Held(hold) if hold.number == take.number => {
                let call = Call { serial: take.serial, emitted: take.emitted, ttl: take.ttl };
                hold.answered(ctx.now, node, call, reply, ctx.config);
                self.after_answer(ctx);
            }
            Stage::Idle | Stage::Paused { .. } | Stage::Trying(_) | Stage::Held(_) => {
                if let Some(lost) = self.lost.iter_mut().find(|lost| lost.number == take.number) {
                    // Told Lost, guard still out: nothing is deleted before it comes back (requirement H6).
                    lost.nodes.insert(node);
                    return;
                }
                if let Some(answer) = self.answers.get_mut(node.index()).filter(|answer| **answer == Answer::Silent) {
                    *answer = answer_to_take(reply);
                }
                if let Some(debt) = self.debts.get_mut(node) {
                    let send = debt.straggled(take.number, reply);
                    self.settle_debt(ctx, node, send);
                }
            }
        }
    }

    /// Decides the round as early as it can be decided.
    pub(super) fn judge(&mut self, ctx: &mut Context<'_>) {
        if ctx.equal.is_some() {
            return self.refuse_equal_nodes(ctx);
        }
        let Stage::Trying(round) = &self.stage else { return };
        match round.verdict(ctx.now, ctx.quorum()) {
            Verdict::Open => {}
            Verdict::Won => self.win(ctx),
            Verdict::Lost => self.lose_round(ctx),
        }
    }

    fn win(&mut self, ctx: &mut Context<'_>) {
        let Stage::Trying(round) = mem::replace(&mut self.stage, Stage::Idle) else { return };
        self.tries = 0;
        self.answers = Vec::new();
        self.stop_listening(ctx);
        let Some(waiter) = self.next_waiter() else {
            // Everybody left; the round was kept for a head that is gone.
            self.end_round(ctx, &round, true);
            return;
        };
        self.leave_open(&round);
        let holder = Holder::new(ctx.now, waiter);
        let mut hold = Hold::new(ctx.now, &round, holder, ctx.config, ctx.seed);
        // The round may have been started for another head with a shorter TTL.
        if waiter.ttl > round.ttl {
            hold.holder.phase = Phase::Preparing;
            hold.extend(ctx.now);
        }
        self.wait_on(&hold.holder);
        self.stage = Stage::Held(hold);
        self.offer(ctx);
        self.watch(ctx);
    }

    /// The attempts of a round that has ended, but for their answers.
    fn leave_open(&mut self, round: &Round) {
        for index in 0..round.votes.len() {
            let node = NodeId::new(index as u16);
            if let Some(take) = round.take(node) {
                self.debts.of(node).take_sent(take);
            }
        }
    }

    /// Gives back what the round may have won.
    fn end_round(&mut self, ctx: &mut Context<'_>, round: &Round, announce: bool) {
        self.leave_open(round);
        for (index, vote) in round.votes.iter().enumerate() {
            let node = NodeId::new(index as u16);
            let landed = match vote {
                Vote::Yes { .. } | Vote::Asked { .. } | Vote::No(Answer::Unknown(_)) => true,
                Vote::No(_) => self.debts.get(node).is_some_and(Debt::has_found),
            };
            if landed {
                self.owe(ctx, node, round.number, announce);
            }
        }
    }

    fn lose_round(&mut self, ctx: &mut Context<'_>) {
        let Stage::Trying(round) = mem::replace(&mut self.stage, Stage::Idle) else { return };
        let quorum = ctx.quorum();
        self.answers = self.answers_with(&round);
        self.end_round(ctx, &round, false);
        let Some(&head) = self.queue.front() else {
            self.nobody_waits(ctx);
            return;
        };
        if let Some(hopeless) = round.hopeless(quorum) {
            return self.fail_all(ctx, hopeless);
        }
        if head.wait == crate::lock::Wait::Try {
            self.tell_failure(ctx, 0, Failure::TimedOut);
            return self.leave_queue(ctx, 0);
        }
        let blocked = self.why_blocked(quorum);
        self.tell_blocked(ctx, blocked);
        if let Some(listening) = &mut self.listening
            && listening.told
        {
            // Somebody was faster: to the end of the line.
            listening.told = false;
            ctx.listen(&self.key, true);
        }
        if matches!(blocked, Blocked::Held | Blocked::HeldWithoutExpiry) {
            self.start_listening(ctx);
        }
        let until = self.next_attempt(ctx, &round, blocked);
        self.stage = Stage::Paused { until };
        if round.hinted {
            // A release was signalled while the attempt was under way: once more, and no release falls between.
            self.start_round(ctx);
        }
    }

    /// The answers of a round; where a node has not answered yet, what it said before.
    fn answers_with(&self, round: &Round) -> Vec<Answer> {
        let before = |index: usize| self.answers.get(index).cloned().unwrap_or_default();
        let answers = round.answers().enumerate();
        answers.map(|(index, answer)| if answer == Answer::Silent { before(index) } else { answer }).collect()
    }

    fn why_blocked(&self, quorum: usize) -> Blocked {
        let count = |wanted: fn(&Answer) -> bool| self.answers.iter().filter(|answer| wanted(answer)).count();
        let reachable = count(|answer| matches!(answer, Answer::Granted | Answer::Taken(_)));
        let young = count(|answer| matches!(answer, Answer::TooYoung));
        let unstable = count(|answer| matches!(answer, Answer::UnstableIdentity));
        if reachable < quorum && reachable + young >= quorum {
            Blocked::TooYoung
        } else if reachable < quorum && reachable + young + unstable >= quorum {
            Blocked::UnstableIdentity
        } else if reachable < quorum {
            Blocked::Unreachable
        } else if count(|answer| matches!(answer, Answer::Taken(Expiry::Never))) > self.answers.len() - quorum {
            Blocked::HeldWithoutExpiry
        } else {
            Blocked::Held
        }
    }

    fn next_attempt(&self, ctx: &Context<'_>, round: &Round, blocked: Blocked) -> Instant {
        let n = *ctx.number;
        let poll = ctx.config.poll;
        let mut every = doubled(poll.every, self.tries.saturating_sub(1), poll.max);
        let notified = self.listening.is_some_and(|listening| listening.heard.len() >= ctx.quorum());
        if notified || matches!(blocked, Blocked::Unreachable | Blocked::TooYoung | Blocked::UnstableIdentity) {
            every *= NOTIFIED_POLL_FACTOR;
        }
        let mut at = ctx.now + every.saturating_sub(jitter(ctx.seed, n, every / 4));
        if let Some(left) = round.free_in(ctx.quorum()) {
            // A key expires when its time is *over*; and not all waiters may come at once.
            let spread = jitter(ctx.seed ^ 1, n, EXPIRY_SPREAD.min(every));
            at = at.min(ctx.now + left + Duration::from_millis(1) + spread);
        }
        let granted = self.answers.iter().any(|answer| matches!(answer, Answer::Granted));
        if granted && self.answers.len() > 1 && blocked == Blocked::Held {
            // A split vote: after a random delay longer than a round (requirement Q2).
            let took = ctx.now.since(round.started);
            at = at.min(ctx.now + took + jitter(ctx.seed ^ 2, n, took * 2 + poll.every / 2));
        }
        at
    }

    // --- wake-up (requirement A7) ---

    /// A release that was asked for at `asked` woke somebody. Whoever is next here lets them have the lock, and waits in line behind them:
    /// asked for at once it would be taken back before they hear of it, again and again.
    pub(super) fn give_way(&mut self, ctx: &Context<'_>, asked: Instant) {
        // Those who wait here already stay away as it is.
        if matches!(self.stage, Stage::Idle) && !ctx.stopping {
            self.yields_until = Some(ctx.now + ctx.config.turn_pause + ctx.now.since(asked));
        }
    }

    /// The head begins: with an attempt, unless it is others' turn.
    pub(super) fn begin(&mut self, ctx: &mut Context<'_>) {
        let alone = self.queue.front().is_some_and(|head| head.wait == crate::lock::Wait::Try);
        if alone || self.yields_until.take().is_none_or(|until| until <= ctx.now) {
            return self.start_round(ctx);
        }
        self.tell_blocked(ctx, Blocked::Held);
        // It is a waiter already: it is signalled in its turn, and its own attempt, which sets the marker, is the safety net.
        self.tries = 1;
        self.stage = Stage::Paused { until: ctx.now + ctx.config.poll.every };
        self.start_listening(ctx);
        if let Some(listening) = &mut self.listening {
            // The attempt that follows the announcement is the one that comes by itself.
            listening.retried = true;
        }
    }

    fn start_listening(&mut self, ctx: &mut Context<'_>) {
        if ctx.config.wake == Wake::Notify && self.listening.is_none() {
            self.listening = Some(Listening::default());
            ctx.listen(&self.key, true);
        }
    }

    pub(super) fn stop_listening(&mut self, ctx: &mut Context<'_>) {
        self.blocked = None;
        if self.listening.take().is_some() {
            ctx.listen(&self.key, false);
        }
    }

    /// A node will tell of a release from now on: announce, try again, wait, so that no release falls between.
    pub fn listens(&mut self, ctx: &mut Context<'_>, node: NodeId) {
        self.catch_up(ctx);
        let quorum = ctx.quorum();
        let Some(listening) = &mut self.listening else { return };
        listening.heard.insert(node);
        if listening.retried || listening.heard.len() < quorum {
            return;
        }
        listening.retried = true;
        self.attempt_soon(ctx);
    }

    /// A node will not tell of a release any more.
    pub fn deaf(&mut self, ctx: &mut Context<'_>, node: NodeId) {
        self.catch_up(ctx);
        let Some(listening) = &mut self.listening else { return };
        listening.heard.remove(node);
        listening.retried = false;
        if let Stage::Paused { until } = &mut self.stage {
            *until = (*until).min(ctx.now + ctx.config.poll.every);
        }
    }

    /// A node tells of a release. Whether somebody here waits for it.
    pub fn hint(&mut self, ctx: &mut Context<'_>, node: NodeId) -> bool {
        self.catch_up(ctx);
        let quorum = ctx.quorum();
        let Some(listening) = &mut self.listening else { return false };
        listening.hinted.insert(node);
        listening.told = true;
        if listening.hinted.len() >= quorum {
            self.attempt_soon(ctx);
        } else if let Stage::Paused { until } = &mut self.stage {
            *until = (*until).min(ctx.now + HINT_GATHERING);
        } else {
            self.attempt_soon(ctx);
        }
        true
    }

    fn attempt_soon(&mut self, ctx: &mut Context<'_>) {
        match &mut self.stage {
            Stage::Paused { .. } => self.start_round(ctx),
            Stage::Trying(round) => round.hinted = true,
            Stage::Idle | Stage::Held(_) => {}
        }
    }

    // --- the queue ---

    pub(super) fn next_waiter(&mut self) -> Option<Waiter> {
        let waiter = self.queue.pop_front()?;
        if self.queue.is_empty() {
            // A lock that is held quietly keeps no room for waiters.
            self.queue = VecDeque::new();
        }
        self.waits.end(waiter.id, waiter.deadline());
        Some(waiter)
    }

    /// Puts a waiter back to the front, who had been next.
    pub(super) fn back_to_front(&mut self, waiter: Waiter) {
        self.waits.begin(waiter.id, waiter.deadline());
        self.queue.push_front(waiter);
    }

    /// Tells the head why it waits, when that changes.
    fn tell_blocked(&mut self, ctx: &mut Context<'_>, why: Blocked) {
        if let Some(head) = self.queue.front()
            && self.blocked.replace(why) != Some(why)
        {
            ctx.tell(head.id, Event::Blocked(why));
        }
    }

    /// The waiter at `place` has failed.
    fn tell_failure(&self, ctx: &mut Context<'_>, place: usize, failure: impl FnOnce(Report) -> Failure) {
        let Some(waiter) = self.queue.get(place).copied() else { return };
        let waited = ctx.now.since(waiter.since);
        let nodes: Box<[Answer]> = match &self.stage {
            Stage::Trying(round) => self.answers_with(round).into(),
            Stage::Held(_) => Box::default(),
            Stage::Idle | Stage::Paused { .. } => self.answers.iter().cloned().collect(),
        };
        ctx.end(waiter.id, Event::Failed(failure(Report { waited, nodes })));
    }

    /// No attempt can succeed: every waiter is told, each with its own time.
    fn fail_all(&mut self, ctx: &mut Context<'_>, hopeless: Hopeless) {
        let nodes: Box<[Answer]> = self.answers.iter().cloned().collect();
        while let Some(waiter) = self.next_waiter() {
            let report = Report { waited: ctx.now.since(waiter.since), nodes: nodes.clone() };
            let failure = match hopeless {
                Hopeless::KeyInUse => Failure::KeyInUse(report),
                Hopeless::Refused => Failure::Refused(report),
            };
            ctx.end(waiter.id, Event::Failed(failure));
        }
        self.nobody_waits(ctx);
    }

    /// Tells the waiters whose time is up, then lets the next one try.
    pub(super) fn end_waits(&mut self, ctx: &mut Context<'_>) {
        let mut head_left = false;
        while let Some(id) = self.waits.pop_due(ctx.now) {
            if let Some(place) = self.queue.iter().position(|waiter| waiter.id == id) {
                self.tell_failure(ctx, place, Failure::TimedOut);
                self.queue.remove(place);
                head_left |= place == 0;
            } else {
                self.give_up_preparing(ctx);
            }
        }
        self.after_leaving(ctx, head_left);
    }

    /// A waiter leaves. The round under way goes on for the next one; a new head never sleeps on.
    pub(super) fn leave_queue(&mut self, ctx: &mut Context<'_>, place: usize) {
        if let Some(waiter) = self.queue.remove(place) {
            self.waits.end(waiter.id, waiter.deadline());
        }
        self.after_leaving(ctx, place == 0);
    }

    fn after_leaving(&mut self, ctx: &mut Context<'_>, head_left: bool) {
        if self.queue.is_empty() {
            return self.nobody_waits(ctx);
        }
        if head_left {
            self.blocked = None;
            match &mut self.stage {
                Stage::Idle | Stage::Paused { .. } => self.start_round(ctx),
                Stage::Trying(_) | Stage::Held(_) => {}
            }
        }
    }

    /// The last waiter has left: what was under way is given back.
    pub(super) fn nobody_waits(&mut self, ctx: &mut Context<'_>) {
        // Signals that were taken here and led to no attempt are somebody else's.
        for node in self.listening.iter().flat_map(|listening| listening.hinted.iter()) {
            let request = Request::Announce { key: self.key.clone() };
            ctx.send(node, request, ctx.config.request_timeout);
        }
        self.stop_listening(ctx);
        self.tries = 0;
        self.answers.clear();
        match mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Trying(round) => self.end_round(ctx, &round, true),
            Stage::Held(hold) => self.stage = Stage::Held(hold),
            Stage::Idle | Stage::Paused { .. } => {}
        }
    }
}

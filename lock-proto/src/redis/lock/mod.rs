//! The machine of one lock name in one client: who waits, who contends, who holds, and what is owed.
//!
//! Waiters of the same name queue first in, first out, and only the head contends with other clients (requirement A8). At most one
//! token of the client is alive under a name: that of the round under way, or that of the hold. All other numbers are spent,
//! but for those of holders that were told `Lost` and have not given their guard back.

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
mod wait_queue;
mod wakeup;
mod watchdog;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use cleanup::{Debt, Debts, Send};
pub use context::{Context, Node, NodeSet};
use pending_release::GiveBack;
use redlock::Round;
use watchdog::{Hold, Phase};

use super::config::Wake;
use super::request::{Key, Reply, Request};
use super::token::Spent;
use super::validity::Ttl;
use crate::error::Misuse;
use crate::id::{LockId, NodeId};
use crate::lock::ErrorClass;
use crate::lock::Waits;
use crate::lock::{Answer, Blocked, Event, Failure, Loss, Release, Renew, Report, Wait};
use crate::time::Instant;

/// One acquisition that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiter {
    /// What its events are addressed to.
    pub id: LockId,
    /// How long a grant is to count.
    pub ttl: Ttl,
    /// Whether it is renewed.
    pub renew: Renew,
    /// How long it waits.
    pub wait: Wait,
    /// When it was asked for.
    pub since: Instant,
}

impl Waiter {
    fn deadline(&self) -> Option<Instant> {
        match self.wait {
            Wait::For(limit) => Some(self.since + limit),
            Wait::Try | Wait::Forever => None,
        }
    }
}

/// What the client does about the lock right now.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// Nothing: nobody waits.
    Idle,
    /// The head waits for its next attempt.
    Paused {
        until: Instant,
    },
    Trying(Round),
    Held(Hold),
}

/// A hold that has ended. Those that were lost are kept for as long as their guard is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct EndedHold {
    id: LockId,
    number: u64,
    valid_until: Instant,
    /// Where its token may still be.
    nodes: NodeSet,
    /// Where somebody else was seen to have the key.
    others: NodeSet,
}

/// The wake-up of the head, from the first busy answer to the grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Listening {
    /// Nodes that will tell of a release.
    heard: NodeSet,
    /// Nodes that told of one since the last attempt.
    hinted: NodeSet,
    /// The attempt that follows the announcement has been made.
    retried: bool,
    /// A node has told of a release, and tells of no other until it is asked to.
    told: bool,
}

/// The machine of one lock name in one client. See [`step`](super::step).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock {
    key: Key,
    queue: VecDeque<Waiter>,
    /// When waits run out, of those that do.
    waits: Waits,
    stage: Stage,
    debts: Debts,
    lost: Vec<EndedHold>,
    giving_back: Vec<GiveBack>,
    listening: Option<Listening>,
    /// Attempts since the last grant.
    tries: u32,
    /// What each node last answered to an attempt; empty before the first.
    answers: Vec<Answer>,
    /// What the head was last told.
    blocked: Option<Blocked>,
    /// A release of this client woke somebody: until then it is theirs (requirement A7).
    yields_until: Option<Instant>,
}

impl Lock {
    /// A lock that nobody has asked for.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self {
            key,
            queue: VecDeque::new(),
            waits: Waits::new(),
            stage: Stage::Idle,
            debts: Debts::default(),
            lost: Vec::new(),
            giving_back: Vec::new(),
            listening: None,
            tries: 0,
            answers: Vec::new(),
            blocked: None,
            yields_until: None,
        }
    }

    /// Its keys.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// Gives up what is not needed any more; called after each step.
    pub fn tidy(&mut self) {
        self.debts.tidy();
    }

    /// Nothing is left to do or to remember: it may be dropped.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Idle)
            && self.queue.is_empty()
            && self.lost.is_empty()
            && self.giving_back.is_empty()
            && self.debts.is_empty()
            && self.yields_until.is_none()
    }

    /// Nothing is left that a shutdown has to wait for. What is owed to a silent minority can keep nobody from the lock, and ends
    /// at its TTL.
    #[must_use]
    pub fn is_drained(&self, nodes: usize) -> bool {
        let mut open = self.debts.iter().filter(|debt| !debt.is_clear() && !debt.is_only_a_check());
        let silent = self.debts.iter().filter(|debt| debt.is_stalled()).count();
        let minority = nodes - (nodes / 2 + 1);
        matches!(self.stage, Stage::Idle)
            && self.giving_back.is_empty()
            && silent <= minority
            && open.all(Debt::is_stalled)
    }

    /// The end of a shutdown: who still waits for a release is answered.
    pub fn stop(&mut self, ctx: &mut Context<'_>) {
        for back in self.giving_back.drain(..) {
            ctx.end(back.id, Event::Released(Release::Unknown));
        }
    }

    /// Somebody holds it, has been offered it, or is about to be.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        matches!(self.stage, Stage::Held(_))
    }

    /// The end of validity, if this acquisition holds the lock.
    #[must_use]
    pub fn valid_until(&self, id: LockId, quorum: usize) -> Option<Instant> {
        match &self.stage {
            Stage::Held(hold) if hold.holder.id() == id && hold.holder.phase == Phase::Held => {
                Some(hold.valid_until(quorum))
            }
            Stage::Held(_) | Stage::Idle | Stage::Paused { .. } | Stage::Trying(_) => None,
        }
    }

    // --- verbs ---

    /// Somebody wants the lock.
    pub fn acquire(&mut self, ctx: &mut Context<'_>, waiter: Waiter) {
        self.catch_up(ctx);
        if let Some((a, b)) = ctx.equal {
            return ctx.end(waiter.id, Event::Failed(Failure::EqualNodes(a, b)));
        }
        let first = self.queue.is_empty() && matches!(self.stage, Stage::Idle);
        if !first && waiter.wait == Wait::Try {
            // Busy in this client: no attempt is made (requirement A5).
            let report = Report { waited: core::time::Duration::ZERO, nodes: Box::default() };
            return ctx.end(waiter.id, Event::Failed(Failure::TimedOut(report)));
        }
        self.waits.begin(waiter.id, waiter.deadline());
        self.queue.push_back(waiter);
        if first {
            self.begin(ctx);
        } else {
            ctx.tell(waiter.id, Event::Blocked(Blocked::Local));
        }
    }

    /// Takes the offer of [`Event::Granted`](crate::Event::Granted), which stands for a moment only (requirement H1).
    ///
    /// # Errors
    ///
    /// [`Misuse::NotHeld`] if the offer no longer stands.
    pub fn claim(&mut self, ctx: &mut Context<'_>, id: LockId) -> Result<(), Misuse> {
        self.catch_up(ctx);
        match &mut self.stage {
            Stage::Held(hold) if hold.holder.id() == id && hold.holder.phase == Phase::Offered => {
                hold.claim();
                self.watch(ctx);
                Ok(())
            }
            Stage::Held(_) | Stage::Idle | Stage::Paused { .. } | Stage::Trying(_) => Err(Misuse::NotHeld(id)),
        }
    }

    /// Renews now. Each call has an answer of its own: [`Event::Extended`](crate::Event::Extended) or [`Event::ExtendFailed`](crate::Event::ExtendFailed).
    ///
    /// # Errors
    ///
    /// [`Misuse::NotHeld`] if it is not held.
    pub fn extend(&mut self, ctx: &mut Context<'_>, id: LockId) -> Result<(), Misuse> {
        self.catch_up(ctx);
        match &mut self.stage {
            Stage::Held(hold) if hold.holder.id() == id && hold.holder.phase == Phase::Held => {
                hold.extend(ctx.now);
                self.watch(ctx);
                Ok(())
            }
            Stage::Held(_) | Stage::Idle | Stage::Paused { .. } | Stage::Trying(_) => Err(Misuse::NotHeld(id)),
        }
    }

    /// The guard comes back; the answer is [`Event::Released`](crate::Event::Released).
    ///
    /// # Errors
    ///
    /// [`Misuse::NotHeld`] if it still waits, or came back before.
    pub fn release(&mut self, ctx: &mut Context<'_>, id: LockId) -> Result<(), Misuse> {
        self.catch_up(ctx);
        if !self.has_guard(id) {
            return Err(Misuse::NotHeld(id));
        }
        self.return_guard(ctx, id, true);
        Ok(())
    }

    /// Whether it has the lock, was offered it, or has lost it. Who waits is not looked through: there may be many.
    fn has_guard(&self, id: LockId) -> bool {
        let has = |hold: &Hold| hold.holder.id() == id && hold.holder.phase != Phase::Preparing;
        matches!(&self.stage, Stage::Held(hold) if has(hold)) || self.lost.iter().any(|lost| lost.id == id)
    }

    /// Whatever state the acquisition is in, it is over: what `Drop` calls.
    pub fn abandon(&mut self, ctx: &mut Context<'_>, id: LockId) {
        self.catch_up(ctx);
        if self.has_guard(id) {
            self.return_guard(ctx, id, false);
        } else if let Some(place) = self.giving_back.iter().position(|back| back.id == id) {
            self.giving_back.swap_remove(place);
            ctx.ended.push(id);
        } else if let Some(place) = self.queue.iter().position(|waiter| waiter.id == id) {
            self.leave_queue(ctx, place);
            ctx.ended.push(id);
        } else {
            self.return_guard(ctx, id, false);
        }
    }

    /// Answers who waits, gives back what is held (requirement U2).
    pub fn shut_down(&mut self, ctx: &mut Context<'_>) {
        self.catch_up(ctx);
        self.waits.clear();
        while let Some(waiter) = self.queue.pop_back() {
            ctx.end(waiter.id, Event::Failed(Failure::ShuttingDown));
        }
        self.nobody_waits(ctx);
        self.yields_until = None;
        while let Some(lost) = self.lost.first() {
            self.return_guard(ctx, lost.id, true);
        }
        if let Stage::Held(hold) = &self.stage {
            let holder = hold.holder;
            match holder.phase {
                Phase::Held => {
                    ctx.tell(holder.id(), Event::Lost(Loss::ShutDown));
                    self.return_guard(ctx, holder.id(), true);
                }
                Phase::Offered | Phase::Preparing => {
                    ctx.end(holder.id(), Event::Failed(Failure::ShuttingDown));
                    self.give_back_hold(ctx, false);
                }
            }
        }
    }

    // --- facts ---

    /// The answer to the call with this serial.
    pub fn reply(&mut self, ctx: &mut Context<'_>, node: NodeId, serial: u64, reply: &Reply) {
        self.catch_up(ctx);
        if let Stage::Trying(round) = &self.stage
            && let Some(take) = round.take(node).filter(|take| take.serial == serial)
        {
            if matches!(reply, Reply::Unknown(_)) {
                self.debts.of(node).may_appear(take);
            }
            return self.take_answered(ctx, node, take, reply);
        }
        if let Some(debt) = self.debts.get_mut(node)
            && let Some(take) = debt.settle(serial, reply)
        {
            return self.take_answered(ctx, node, take, reply);
        }
        if let Some(debt) = self.debts.get_mut(node)
            && let Some(delete) = debt.delete(serial)
        {
            let refused = matches!(reply, Reply::Rejected(error) if error.class == ErrorClass::Refused);
            if refused && delete.announce {
                ctx.quiet.insert(node);
            }
            let send = debt.answered(ctx.now, delete, reply);
            let given_up = refused && debt.is_clear();
            for back in &mut self.giving_back {
                back.answered(node, delete, reply);
                if given_up {
                    back.give_up(node);
                }
            }
            self.settle_debt(ctx, node, send);
            self.answer_releases(ctx);
            if matches!(reply, Reply::Deleted { awaited: true, .. }) {
                self.give_way(ctx, delete.emitted);
            }
            return;
        }
        self.renewal_answered(ctx, node, serial, reply);
    }

    /// A node is reachable again.
    pub fn node_up(&mut self, ctx: &mut Context<'_>, node: NodeId) {
        self.catch_up(ctx);
        if let Some(debt) = self.debts.get(node) {
            let send = debt.node_up();
            self.settle_debt(ctx, node, send);
        }
        let lacks_nodes = self.lacks_nodes();
        match &mut self.stage {
            Stage::Held(hold) => {
                hold.node_up(ctx, node);
                // A quorum may be lost by that.
                self.catch_up(ctx);
                self.watch(ctx);
            }
            Stage::Paused { .. } if lacks_nodes || ctx.equal.is_some() => {
                self.start_round(ctx);
            }
            Stage::Trying(round) => {
                // A node that was restarted, or replaced, after its vote has no vote.
                if let Some(answer) = ctx.nodes.get(node.index()).and_then(|known| known.excluded(ctx.now))
                    && round.withdraw(node, answer)
                {
                    self.debts.of(node).found(round.number);
                }
                self.judge(ctx);
            }
            Stage::Paused { .. } | Stage::Idle => {}
        }
    }

    /// The end of validity of a hold that counts on this node.
    pub(crate) fn counts_on(&self, node: NodeId, quorum: usize) -> Option<Instant> {
        match &self.stage {
            Stage::Held(hold) if hold.has(node) => Some(hold.valid_until(quorum)),
            Stage::Held(_) | Stage::Idle | Stage::Paused { .. } | Stage::Trying(_) => None,
        }
    }

    /// Asks the node whether it has the hold, if it counts on that (requirement Q7). The serial of the request that will tell.
    pub(crate) fn verify(&mut self, ctx: &mut Context<'_>, node: NodeId) -> Option<u64> {
        self.catch_up(ctx);
        if let Stage::Held(hold) = &mut self.stage {
            hold.verify(node);
            self.watch(ctx);
        }
        match &self.stage {
            Stage::Held(hold) => hold.shares.get(node.index())?.call.map(|call| call.serial),
            Stage::Idle | Stage::Paused { .. } | Stage::Trying(_) => None,
        }
    }

    /// The head waits for more nodes, not for a holder.
    const fn lacks_nodes(&self) -> bool {
        matches!(self.blocked, Some(Blocked::Unreachable | Blocked::TooYoung | Blocked::UnstableIdentity))
    }

    /// Time has passed: to be called at [`deadline`](Self::deadline).
    pub fn timeout(&mut self, ctx: &mut Context<'_>) {
        self.catch_up(ctx);
        self.yields_until = self.yields_until.filter(|until| *until > ctx.now);
        self.watch(ctx);
        self.end_waits(ctx);
        match &self.stage {
            Stage::Trying(_) => self.judge(ctx),
            Stage::Paused { until } if *until <= ctx.now => self.start_round(ctx),
            Stage::Paused { .. } | Stage::Idle | Stage::Held(_) => {}
        }
        for node in self.debts.due(ctx.now).iter() {
            self.settle_debt(ctx, node, Send::Now);
        }
        self.answer_releases(ctx);
    }

    /// The next thing to happen by itself, and what it is.
    #[must_use]
    pub fn deadline(&self, quorum: usize, config: &super::Config) -> Option<(Instant, &'static str)> {
        let mut next = match &self.stage {
            Stage::Idle => None,
            Stage::Paused { until } => Some((*until, "next attempt")),
            Stage::Trying(round) => round.deadline.map(|at| (at, "end of a round")),
            Stage::Held(hold) => Some((hold.deadline(quorum, config), "watchdog")),
        };
        let mut or_at = |at: Instant, why: &'static str| {
            if next.is_none_or(|(first, _)| at < first) {
                next = Some((at, why));
            }
        };
        if let Some(at) = self.waits.next_end() {
            or_at(at, "end of a wait");
        }
        for back in &self.giving_back {
            or_at(back.until, "end of a release");
        }
        if let Some(at) = self.yields_until {
            or_at(at, "another's turn");
        }
        for at in self.debts.iter().filter_map(Debt::deadline) {
            or_at(at, "compensating delete");
        }
        next
    }

    // --- what is owed ---

    /// The numbers that may be replaced or deleted, given the one that is alive.
    fn spent(&self, ctx: &Context<'_>) -> Spent {
        let last = match &self.stage {
            Stage::Trying(round) => round.number - 1,
            Stage::Held(hold) => hold.number - 1,
            Stage::Idle | Stage::Paused { .. } => *ctx.number,
        };
        let lost = self.lost.iter().map(|hold| hold.number);
        match (lost.clone().min(), lost.max()) {
            (Some(first), Some(after)) => Spent { upto: first - 1, after, last: last.max(after) },
            (_, _) => Spent::all_to(last),
        }
    }

    fn owe(&mut self, ctx: &mut Context<'_>, node: NodeId, number: u64, announce: bool) {
        let send = self.debts.of(node).owe(number, announce);
        self.settle_debt(ctx, node, send);
    }

    fn settle_debt(&mut self, ctx: &mut Context<'_>, node: NodeId, send: Send) {
        if send == Send::No {
            return;
        }
        let spent = self.spent(ctx);
        let debt = self.debts.of(node);
        let announce = debt.announces() && ctx.config.wake == Wake::Notify && !ctx.quiet.contains(node);
        let last = spent.last;
        let (number, spent) = debt.to_find(spent);
        let request = Request::Release { key: self.key.clone(), number, spent, announce };
        let serial = ctx.send(node, request, ctx.config.request_timeout);
        debt.delete_sent(serial, ctx.now, last, announce);
    }

    fn answer_releases(&mut self, ctx: &mut Context<'_>) {
        let (now, nodes) = (ctx.now, ctx.nodes.len());
        self.giving_back.retain(|back| match back.outcome(now, nodes) {
            Some(release) => {
                ctx.end(back.id, Event::Released(release));
                false
            }
            None => true,
        });
    }

    /// Before anything else: a hold whose validity is over is lost, whatever the news (requirement T2).
    fn catch_up(&mut self, ctx: &mut Context<'_>) {
        if let Stage::Held(hold) = &self.stage
            && let Some(loss) = hold.loss(ctx.now, ctx.quorum())
        {
            self.lose(ctx, loss);
        }
    }
}

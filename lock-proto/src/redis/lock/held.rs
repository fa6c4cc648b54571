//! From the grant to its end: offers, renewals, loss, and giving back (requirements H1-H6, U1, A8).

use alloc::boxed::Box;
use core::mem;

use super::cleanup::{Debt, Take};
use super::context::{Context, NodeSet};
use super::pending_release::GiveBack;
use super::watchdog::{Extended, Hold, Holder, Phase, Wish};
use super::{EndedHold, Lock, Stage};
use crate::id::{LockId, NodeId};
use crate::lock::{Answer, Event, Failure, Grant, Loss, Release, Report};
use crate::redis::request::{Reply, Request};

impl Lock {
    /// Tells the holder, once its grant is good enough.
    pub(super) fn offer(&mut self, ctx: &mut Context<'_>) {
        let quorum = ctx.quorum();
        let Stage::Held(hold) = &mut self.stage else { return };
        if hold.holder.phase != Phase::Offered {
            return;
        }
        hold.holder.since = ctx.now;
        let valid_until = hold.valid_until(quorum);
        hold.told = valid_until;
        let grant = Grant {
            token: ctx.identity.token(hold.number),
            fence: hold.fence(),
            fence_ahead_ms: hold.fence_ahead_ms(),
            ttl: hold.ttl.duration(),
            valid_until,
        };
        let id = hold.holder.id();
        ctx.tell(id, Event::Granted(grant));
    }

    /// Does what is due for the hold: withdraws an unclaimed offer, warns, renews, tops up.
    pub(super) fn watch(&mut self, ctx: &mut Context<'_>) {
        let quorum = ctx.quorum();
        let Stage::Held(hold) = &mut self.stage else { return };
        let holder = &mut hold.holder;
        if holder.phase == Phase::Offered && holder.claim_by() <= ctx.now {
            let id = holder.id();
            ctx.tell(id, Event::Withdrawn);
            return self.return_guard(ctx, id, false);
        }
        let until = hold.valid_until(quorum);
        let holder = &mut hold.holder;
        if holder.phase == Phase::Held && !holder.warned && holder.ttl().warn_at(until, ctx.config) <= ctx.now {
            holder.warned = true;
            ctx.tell(holder.id(), Event::AtRisk { valid_until: until });
        }
        self.send_due(ctx);
    }

    fn send_due(&mut self, ctx: &mut Context<'_>) {
        let quorum = ctx.quorum();
        for index in 0..ctx.nodes.len() {
            let node = NodeId::new(index as u16);
            let Stage::Held(hold) = &mut self.stage else { return };
            let ttl = hold.holder.ttl();
            let number = hold.number;
            let serial = match hold.due(ctx.now, node, quorum) {
                None => continue,
                Some(Wish::Extend) => {
                    let fence_block = if hold.lacks_fences() { ctx.config.fence_block } else { 0 };
                    let request = Request::Extend { key: self.key.clone(), number, ttl_ms: ttl.ms(), fence_block };
                    ctx.send(node, request, ttl.patience(ctx.config))
                }
                Some(Wish::TopUp) => {
                    let spent = self.spent(ctx);
                    let (key, ttl_ms) = (self.key.clone(), ttl.ms());
                    let request =
                        Request::Take { key, number, spent, ttl_ms, fence_block: 0, clean: false, waiting_ms: 0 };
                    let serial = ctx.send(node, request, ttl.patience(ctx.config));
                    self.debts.of(node).take_sent(Take { serial, number, emitted: ctx.now, ttl });
                    serial
                }
            };
            if let Stage::Held(hold) = &mut self.stage {
                hold.sent(ctx.now, node, serial);
            }
        }
        if let Stage::Held(hold) = &mut self.stage {
            hold.renewed(ctx.now, ctx.seed);
        }
    }

    /// An answer that is neither an attempt's nor a delete's.
    pub(super) fn renewal_answered(&mut self, ctx: &mut Context<'_>, node: NodeId, serial: u64, reply: &Reply) {
        let Stage::Held(hold) = &mut self.stage else { return };
        let call = hold.shares.get(node.index()).and_then(|share| share.call);
        let Some(call) = call.filter(|call| call.serial == serial) else { return };
        hold.answered(ctx.now, node, call, reply, ctx.config);
        self.after_answer(ctx);
    }

    /// What follows from a change of the hold's shares.
    pub(super) fn after_answer(&mut self, ctx: &mut Context<'_>) {
        self.catch_up(ctx);
        let quorum = ctx.quorum();
        let Stage::Held(hold) = &mut self.stage else { return };
        let until = hold.valid_until(quorum);
        let held = hold.holder.phase == Phase::Held;
        let id = hold.holder.id();
        let longer = until > hold.told;
        if longer {
            hold.told = until;
            hold.holder.warned = false;
        }
        match hold.extended(ctx.now, quorum) {
            Extended::Done(_) if !held => {
                hold.holder.phase = Phase::Offered;
                self.waits.end(id, hold.holder.waiter.deadline());
                self.offer(ctx);
            }
            Extended::Failed(_) if !held => {
                // No full TTL or no fencing token to be had: the waiter goes back to the front, and contends anew.
                let waiter = hold.holder.waiter;
                self.give_back_hold(ctx, false);
                self.back_to_front(waiter);
                if matches!(self.stage, Stage::Idle) {
                    self.start_round(ctx);
                }
                return;
            }
            Extended::Done(count) => {
                ctx.tell(id, Event::Renewed { valid_until: until });
                (0..count).for_each(|_| ctx.tell(id, Event::Extended));
            }
            Extended::Failed(asked) => {
                if longer {
                    ctx.tell(id, Event::Renewed { valid_until: until });
                }
                let nodes: Box<[Answer]> = hold.report().into();
                for since in asked {
                    let report = Report { waited: ctx.now.since(since), nodes: nodes.clone() };
                    ctx.tell(id, Event::ExtendFailed(report));
                }
            }
            Extended::Open if held && longer => ctx.tell(id, Event::Renewed { valid_until: until }),
            Extended::Open => {}
        }
        self.watch(ctx);
    }

    /// The hold is lost: its holder is told before anything else, and the waiters contend anew.
    pub(super) fn lose(&mut self, ctx: &mut Context<'_>, loss: Loss) {
        let Stage::Held(hold) = mem::replace(&mut self.stage, Stage::Idle) else { return };
        let nodes = self.nodes_of(&hold);
        let id = hold.holder.id();
        match hold.holder.phase {
            Phase::Held => {
                ctx.tell(id, Event::Lost(loss));
                // Nothing that ends the key's life is sent before the guard comes back (requirement H6).
                let valid_until = hold.valid_until(ctx.quorum());
                self.lost.push(EndedHold { id, number: hold.number, valid_until, nodes, others: hold.others() });
            }
            Phase::Offered => {
                ctx.end(id, Event::Withdrawn);
                self.delete_from(ctx, hold.number, nodes);
            }
            Phase::Preparing => {
                self.delete_from(ctx, hold.number, nodes);
                let waiter = hold.holder.waiter;
                self.back_to_front(waiter);
            }
        }
        if !self.queue.is_empty() {
            self.start_round(ctx);
        }
    }

    /// The guard of a holder, or of one that was told `Lost`, comes back.
    pub(super) fn return_guard(&mut self, ctx: &mut Context<'_>, id: LockId, answer: bool) {
        if let Some(place) = self.lost.iter().position(|lost| lost.id == id) {
            let lost = self.lost.swap_remove(place);
            if answer {
                self.await_release(ctx, &lost);
            } else {
                ctx.ended.push(id);
            }
            self.delete_from(ctx, lost.number, lost.nodes);
            return self.answer_releases(ctx);
        }
        let quorum = ctx.quorum();
        let Stage::Held(hold) = &mut self.stage else { return };
        if hold.holder.id() != id {
            return;
        }
        if hold.holder.phase == Phase::Preparing {
            self.waits.end(id, hold.holder.waiter.deadline());
        }
        let alive = ctx.now < hold.keys_until(quorum);
        if alive && !ctx.stopping && !self.queue.is_empty() && hold.may_pass_on(ctx.now) {
            if answer {
                ctx.tell(id, Event::Released(Release::Released));
            }
            ctx.ended.push(id);
            return self.pass_on(ctx);
        }
        if !answer {
            ctx.ended.push(id);
        }
        self.give_back_hold(ctx, answer);
    }

    /// The next waiter of this client gets the lock, without a command unless it needs more time or fencing tokens (requirement A8).
    fn pass_on(&mut self, ctx: &mut Context<'_>) {
        let Some(waiter) = self.next_waiter() else { return };
        let quorum = ctx.quorum();
        if let Stage::Held(hold) = &mut self.stage {
            hold.pass_on(ctx.now, Holder::new(ctx.now, waiter), quorum, ctx.seed);
            let holder = hold.holder;
            self.wait_on(&holder);
        }
        self.offer(ctx);
        self.watch(ctx);
    }

    /// Who has the grant and must get more time or a fencing token before it is told waits on: not longer than it wanted to.
    pub(super) fn wait_on(&mut self, holder: &Holder) {
        if holder.phase == Phase::Preparing {
            self.waits.begin(holder.id(), holder.waiter.deadline());
        }
    }

    /// The wait of whoever is being prepared is over before it got a full TTL.
    pub(super) fn give_up_preparing(&mut self, ctx: &mut Context<'_>) {
        let Stage::Held(hold) = &self.stage else { return };
        if hold.holder.phase == Phase::Preparing {
            let id = hold.holder.id();
            let report = Report { waited: ctx.now.since(hold.holder.waiter.since), nodes: hold.report().into() };
            ctx.tell(id, Event::Failed(Failure::TimedOut(report)));
            self.return_guard(ctx, id, false);
        }
    }

    /// Gives the lock back to the servers. `answer`: its holder waits for the outcome.
    pub(super) fn give_back_hold(&mut self, ctx: &mut Context<'_>, answer: bool) {
        let Stage::Held(hold) = &self.stage else { return };
        let ended = EndedHold {
            id: hold.holder.id(),
            number: hold.number,
            valid_until: hold.keys_until(ctx.quorum()),
            nodes: self.nodes_of(hold),
            others: hold.others(),
        };
        let next = if self.queue.is_empty() {
            Stage::Idle
        } else {
            // The turn is over: stay away for one wake-up round, so that other processes get in.
            Stage::Paused { until: ctx.now + ctx.config.turn_pause + hold.round_trip }
        };
        #[cfg(test)]
        let next = if ctx.identity.flaw == Some(crate::redis::request::Flaw::RenewsForEver) && next == Stage::Idle {
            self.stage.clone()
        } else {
            next
        };
        self.stage = next;
        if answer {
            self.await_release(ctx, &ended);
        }
        self.delete_from(ctx, ended.number, ended.nodes);
        self.answer_releases(ctx);
    }

    fn await_release(&mut self, ctx: &Context<'_>, hold: &EndedHold) {
        let until = ctx.now + ctx.config.release_within;
        self.giving_back.push(GiveBack::new(ctx.now, hold, self.debts.deleting(), until));
    }

    fn delete_from(&mut self, ctx: &mut Context<'_>, number: u64, nodes: NodeSet) {
        for node in nodes.iter() {
            self.owe(ctx, node, number, true);
        }
    }

    /// Where the token of a hold may be.
    fn nodes_of(&self, hold: &Hold) -> NodeSet {
        let mut nodes = NodeSet::default();
        for (index, share) in hold.shares.iter().enumerate() {
            let node = NodeId::new(index as u16);
            if share.until.is_some() || self.debts.get(node).is_some_and(Debt::may_have_landed) {
                nodes.insert(node);
            }
        }
        nodes
    }
}

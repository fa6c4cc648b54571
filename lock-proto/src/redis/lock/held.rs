//! Maintenance of a hold: renewals, top-ups and their replies.
// H1 to H4, Q3

use super::cleanup::{Cleanup, Take};
use super::context::{Context, NodeSet};
use super::watchdog::{Extended, Hold, Renewal};
use super::{Contention, Lock};
use crate::id::NodeId;
use crate::lock::{Event, Report};
use crate::redis::request::{Reply, Request};

impl Lock {
    pub(super) fn send_due(&mut self, ctx: &mut Context) {
        let quorum = ctx.quorum();
        for index in 0..ctx.shared.nodes.len() {
            let node = NodeId::new(index as u16);
            let Some(hold) = &mut self.hold else { return };
            let ttl = hold.ttl();
            let number = hold.number;
            let serial = match hold.due(ctx.now, node, quorum) {
                None => continue,
                Some(Renewal::Extend) => {
                    let fence_block = if hold.needs_fences() { ctx.config.store.fence_block } else { 0 };
                    let request = Request::Extend { key: self.key.clone(), number, ttl_ms: ttl.ms(), fence_block };
                    ctx.send(node, request)
                }
                Some(Renewal::TopUp) if self.store.cleanups.get(node).is_some_and(Cleanup::awaits_take) => continue,
                Some(Renewal::TopUp) => {
                    let retired = self.retired(ctx);
                    let (key, ttl_ms) = (self.key.clone(), ttl.ms());
                    let request =
                        Request::Take { key, number, retired, ttl_ms, fence_block: 0, clean: false, waiting_ms: 0 };
                    let serial = ctx.send(node, request);
                    self.store.cleanups.of(node).take_sent(Take { serial, number, emitted: ctx.now, ttl });
                    serial
                }
            };
            if let Some(hold) = &mut self.hold {
                hold.sent(ctx.now, node, serial);
            }
        }
        if let Some(hold) = &mut self.hold {
            hold.renewed(ctx.now, ctx.seed);
        }
    }

    /// Handles a reply that belongs to neither an attempt nor a delete.
    pub(super) fn renewal_answered(&mut self, ctx: &mut Context, node: NodeId, serial: u64, reply: &Reply) {
        let Some(hold) = &mut self.hold else { return };
        let call = hold.shares.get(node.index()).and_then(|share| share.call);
        let Some(call) = call.filter(|call| call.serial == serial) else { return };
        hold.answered(ctx, node, call, reply);
        self.after_answer(ctx);
    }

    /// Acts on a change of the hold's shares.
    pub(super) fn after_answer(&mut self, ctx: &mut Context) {
        self.expire(ctx);
        let quorum = ctx.quorum();
        let Some(hold) = &mut self.hold else { return };
        let until = hold.tenure.valid_until(hold.keys_until(quorum));
        let (id, held) = (hold.tenure.id(), hold.tenure.is_held());
        let longer = held && until > hold.tenure.reported();
        if longer {
            hold.tenure.report(until);
        }
        match hold.extended(ctx.now, quorum) {
            Extended::Done(_) if !held => return self.offer(ctx),
            Extended::Failed(_) if !held => {
                // Neither a full TTL nor a fencing token: the waiter contends again, from the head.
                let waiter = hold.tenure.waiter;
                self.release_hold(ctx, false);
                self.waiters.push_front(waiter);
                if matches!(self.contention, Contention::Idle) {
                    self.start_round(ctx);
                }
                return;
            }
            Extended::Done(count) => {
                ctx.emit(id, Event::Renewed { valid_until: until });
                (0..count).for_each(|_| ctx.emit(id, Event::Extended));
            }
            Extended::Failed(requested) => {
                if longer {
                    ctx.emit(id, Event::Renewed { valid_until: until });
                }
                let nodes = hold.report();
                for since in requested {
                    let report = Report { waited: ctx.now.since(since), nodes: nodes.clone() };
                    ctx.emit(id, Event::ExtendFailed(report));
                }
            }
            Extended::Open if longer => ctx.emit(id, Event::Renewed { valid_until: until }),
            Extended::Open => {}
        }
        self.watch(ctx);
    }

    /// Returns the nodes that may have the hold's token.
    pub(super) fn nodes_of(&self, hold: &Hold) -> NodeSet {
        let mut nodes = NodeSet::default();
        for (index, share) in hold.shares.iter().enumerate() {
            let node = NodeId::new(index as u16);
            if share.until.is_some() || self.store.cleanups.get(node).is_some_and(Cleanup::may_have_landed) {
                nodes.insert(node);
            }
        }
        nodes
    }
}

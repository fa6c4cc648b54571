//! Maintenance of a hold: renewals, top-ups and their replies.
// H1 to H4, Q3

use super::Redis;
use super::calls::{Purpose, RedisCall, Take};
use super::cleanup::Cleanup;
use super::context::{NodeSet, RedisEnv};
use super::watchdog::{Extended, QuorumHold, RenewalRequest};
use crate::id::NodeId;
use crate::lock::{Fact, Report};
use crate::redis::request::{Reply, Request};
use crate::redis::validity::Ttl;

impl Redis {
    /// Sends the renewals and top-ups that are due.
    pub(super) fn renew(&mut self, env: &mut RedisEnv) {
        let quorum = env.quorum();
        for index in 0..env.shared.nodes.len() {
            let node = NodeId::new(index as u16);
            let Some(hold) = &mut self.hold else { return };
            let (number, ttl) = (hold.number, hold.ttl());
            match hold.due(env.now, node, quorum) {
                None => continue,
                Some(RenewalRequest::Extend) => {
                    let fence_block = if hold.needs_fences() { env.config.store.fence_block } else { 0 };
                    let request = Request::Extend { key: self.key.clone(), number, ttl_ms: ttl.ms(), fence_block };
                    self.calls.send(env, node, request, Purpose::Renew { number, ttl });
                }
                Some(RenewalRequest::TopUp) if !self.calls.takes(node).is_empty() => continue,
                Some(RenewalRequest::TopUp) => {
                    let retired = self.retired(env);
                    let (key, ttl_ms) = (self.key.clone(), ttl.ms());
                    let request =
                        Request::Take { key, number, retired, ttl_ms, fence_block: 0, clean: false, waiting_ms: 0 };
                    self.calls.send(env, node, request, Purpose::Take(Take { number, ttl, top_up: true }));
                }
            }
            if let Some(hold) = &mut self.hold {
                hold.sent(node);
            }
        }
        if let Some(hold) = &mut self.hold {
            hold.renewed(env.now, env.seed);
        }
    }

    /// Handles the reply to a renewal of the token with this number.
    pub(super) fn renewal_answered(
        &mut self,
        env: &mut RedisEnv,
        call: RedisCall,
        number: u64,
        ttl: Ttl,
        reply: &Reply,
    ) {
        if let Some(hold) = self.hold.as_mut().filter(|hold| hold.number == number) {
            hold.answered(env, call, ttl, reply);
            self.after_answer(env);
        }
    }

    /// Acts on a change of the hold's shares.
    pub(super) fn after_answer(&mut self, env: &mut RedisEnv) {
        let quorum = env.quorum();
        let Some(hold) = &mut self.hold else { return };
        let id = hold.id;
        if let Some(loss) = hold.loss(env.now, quorum) {
            return env.report(Fact::Lost(id, loss));
        }
        match (hold.extended(env.now, quorum), hold.is_offered) {
            (Extended::Done(_), false) => return self.offer(env),
            // Neither a full TTL nor a fencing token.
            (Extended::Failed(_), false) => return env.report(Fact::Unprepared(id)),
            (Extended::Done(count), true) => env.report(Fact::Renewed(id, count)),
            (Extended::Failed(requested), true) => {
                env.report(Fact::Renewed(id, 0));
                let nodes = hold.report();
                for since in requested {
                    let report = Report { waited: env.now.since(since), nodes: nodes.clone() };
                    env.report(Fact::ExtendFailed(id, report));
                }
            }
            (Extended::Open, true) => env.report(Fact::Renewed(id, 0)),
            (Extended::Open, false) => {}
        }
        self.renew(env);
    }

    /// Returns the nodes that may have the hold's token.
    pub(super) fn nodes_of(&self, hold: &QuorumHold) -> NodeSet {
        let mut nodes = NodeSet::default();
        for (index, share) in hold.shares.iter().enumerate() {
            let node = NodeId::new(index as u16);
            let may_have = || self.cleanups.get(node).is_some_and(Cleanup::may_have_landed);
            if share.until.is_some() || !self.calls.takes(node).is_empty() || may_have() {
                nodes.insert(node);
            }
        }
        nodes
    }
}

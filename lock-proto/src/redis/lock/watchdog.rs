//! A grant and its watchdog: renewals, loss and local hand-overs.
// H1 to H5, Q3, Q4, A8

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::RedisWaiter;
use super::calls::{Purpose, RedisCall};
use super::context::{NodeSet, RedisEnv, server_of};
use super::redlock::{Round, Vote};
use crate::collections::Few;
use crate::id::{LockId, NodeId};
use crate::lock::{Answer, Fence, Holding, Loss, Renew};
use crate::redis::config::Config;
use crate::redis::request::{FenceBlock, Reply};
use crate::redis::validity::{Ttl, quorum_until};
use crate::time::Instant;

/// The part of a grant that one node has confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Share {
    /// End of validity of the node's key; `None` if the key is not there.
    pub(crate) until: Option<Instant>,
    extend: Extend,
    /// The first of the nodes that are the same server.
    server: NodeId,
    /// A renewal or a top-up is in flight.
    is_busy: bool,
    /// The last failure, until a request succeeds.
    last_error: Option<Box<LastError>>,
    /// The node must confirm that it still has the token. The reply to any renewal does.
    // Q7
    verifying: bool,
}

/// Progress of an extension on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Extend {
    /// Not requested, or the node has no key to extend.
    #[default]
    No,
    Pending,
    Sent,
    Done,
    Failed,
}

/// Why a node did not confirm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LastError {
    answer: Answer,
    /// When to try again; `None` until the next renewal.
    retry_at: Option<Instant>,
}

impl Share {
    /// Discards what the node confirmed, because its address now leads to another server.
    fn discard(&mut self) {
        self.until = None;
        if self.extend != Extend::No {
            self.extend = Extend::Failed;
        }
    }

    fn retry_at(&self) -> Option<Instant> {
        self.last_error.as_ref().and_then(|last_error| last_error.retry_at)
    }

    fn clear_retry(&mut self) {
        if let Some(last_error) = &mut self.last_error {
            last_error.retry_at = None;
        }
    }
}

/// A token held on a quorum of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct QuorumHold {
    pub(crate) number: u64,
    pub(crate) shares: Few<Share>,
    /// The acquisition that has it.
    pub(crate) id: LockId,
    ttl: Ttl,
    renew: Renew,
    /// The holder was told of the grant.
    pub(crate) is_offered: bool,
    /// The holder has claimed the offer: renewals begin.
    pub(crate) is_claimed: bool,
    /// The TTL last given to the keys. It never shrinks: no holder has a shorter one.
    pub(crate) keys_ttl: Ttl,
    /// The holder's fencing token and the next ones; `None` without fencing.
    fences: Option<FenceBlock>,
    renew_at: Instant,
    pub(crate) handover_until: Instant,
    /// Duration of the round that won the hold.
    pub(crate) round_trip: Duration,
    extending: Option<Box<Extending>>,
    /// Some nodes are the same server.
    equal: bool,
    /// How the last share was lost.
    last_loss: Option<Loss>,
}

/// Pending extensions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Extending {
    /// Request times of the extensions, in order.
    requested: Vec<Instant>,
    /// How many of them the requests in flight will answer. The rest need new requests.
    current: usize,
}

/// A request that is due on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenewalRequest {
    Extend,
    /// Writes the token to a node that does not have it.
    // Q3
    TopUp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Extended {
    /// None pending, or not decided yet.
    Open,
    /// This many extensions succeeded.
    Done(usize),
    /// The extensions requested at these times can no longer get a quorum.
    Failed(Vec<Instant>),
}

impl QuorumHold {
    pub(crate) fn new(now: Instant, round: &Round, waiter: &RedisWaiter, config: &Config, seed: u64) -> Self {
        let shares = round
            .votes
            .iter()
            .enumerate()
            .map(|(index, vote)| Share {
                until: vote.until(),
                extend: Extend::No,
                server: NodeId::new(index as u16),
                is_busy: false,
                verifying: false,
                last_error: match vote {
                    Vote::No(answer) => Some(Box::new(LastError { answer: answer.clone(), retry_at: None })),
                    Vote::Deferred | Vote::Pending | Vote::Yes { .. } => None,
                },
            })
            .collect();
        Self {
            number: round.number,
            shares,
            id: waiter.id,
            ttl: waiter.terms,
            renew: waiter.renew,
            is_offered: false,
            is_claimed: false,
            keys_ttl: round.ttl,
            fences: round.fence,
            renew_at: waiter.terms.renew_at(round.started, seed, round.number),
            handover_until: now + config.handover_window,
            round_trip: now.since(round.started),
            extending: None,
            equal: false,
            last_loss: None,
        }
    }

    /// Returns the end of validity of the grant, for its current holder; `None` if too few nodes
    /// have the token.
    // Q4
    #[inline]
    pub(crate) fn keys_until(&self, quorum: usize) -> Option<Instant> {
        // Fast path for a single node: every step calls this several times.
        if let [share] = &self.shares[..] {
            return share.until;
        }
        self.quorum_until(quorum)
    }

    fn quorum_until(&self, quorum: usize) -> Option<Instant> {
        if self.equal {
            return self.servers_until(quorum);
        }
        quorum_until(self.shares.iter().map(|share| share.until), quorum)
    }

    #[cold]
    fn servers_until(&self, quorum: usize) -> Option<Instant> {
        let latest = |server: usize| self.of_server(server).filter_map(|share| share.until).max();
        quorum_until((0..self.shares.len()).map(latest), quorum)
    }

    /// Returns true if enough nodes have the token, and its validity has not ended.
    fn is_valid(&self, now: Instant, quorum: usize) -> bool {
        self.keys_until(quorum).is_some_and(|until| now < until)
    }

    /// Returns the shares of the nodes that are this server. They count once.
    // Q6
    fn of_server(&self, server: usize) -> impl Iterator<Item = &Share> {
        self.shares.iter().filter(move |share| share.server.index() == server)
    }

    /// Returns the number of servers with a matching share.
    fn servers(&self, which: impl Fn(&Share) -> bool) -> usize {
        (0..self.shares.len()).filter(|server| self.of_server(*server).any(&which)).count()
    }

    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.shares.get(node.index()).is_some_and(|share| share.until.is_some())
    }

    /// Returns true if the last request to this node failed, unless only a renewal by hand did.
    pub(crate) fn missed_renewal(&self, node: NodeId) -> bool {
        let renews = self.renew != Renew::Manual;
        self.shares
            .get(node.index())
            .is_some_and(|share| share.verifying || share.last_error.is_some() && (renews || share.until.is_none()))
    }

    /// Requests a verification by the node, to be sent once the offer has been claimed. If the node
    /// lacks the token, a top-up does it.
    pub(crate) fn verify(&mut self, now: Instant, node: NodeId) {
        let Some(share) = self.shares.get_mut(node.index()) else { return };
        if share.until.is_some() {
            share.verifying = true;
            share.clear_retry();
        } else if let Some(last_error) = &mut share.last_error {
            last_error.retry_at = Some(now);
        }
    }

    pub(crate) const fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// Returns what the line needs to know of it.
    #[inline]
    pub(crate) fn holding(&self, now: Instant, quorum: usize) -> Holding {
        let until = self.keys_until(quorum);
        let hands_over_until = until.map(|until| until.min(self.handover_until));
        Holding { until: until.unwrap_or(now), ttl: self.ttl.nanos(), hands_over_until }
    }

    /// Returns why the hold is lost, if it is.
    pub(crate) fn loss(&self, now: Instant, quorum: usize) -> Option<Loss> {
        match self.keys_until(quorum) {
            Some(until) if now < until => None,
            Some(_) => Some(Loss::Expired),
            None => Some(self.last_loss.unwrap_or(Loss::Expired)),
        }
    }

    pub(crate) fn fence(&self) -> Option<Fence> {
        self.fences.filter(|fences| fences.count > 0).map(|fences| Fence(fences.first))
    }

    /// Returns by how many ms the fence counter is ahead of the server's clock.
    pub(crate) fn fence_ahead_ms(&self) -> u32 {
        self.fences.map_or(0, |fences| fences.ahead_ms)
    }

    /// Returns true if the holder must get a fencing token before it is notified.
    pub(crate) fn needs_fences(&self) -> bool {
        self.fences.is_some_and(|fences| fences.count == 0)
    }

    /// Hands it to another holder of this client: same token, next fencing token. Returns true if
    /// the holder may be notified at once.
    pub(crate) fn hand_over(&mut self, now: Instant, next: &RedisWaiter, quorum: usize, seed: u64) -> bool {
        if let Some(fences) = &mut self.fences {
            fences.first = fences.first.saturating_add(1);
            fences.count = fences.count.saturating_sub(1);
        }
        (self.id, self.ttl, self.renew) = (next.id, next.terms, next.renew);
        (self.is_offered, self.is_claimed) = (false, false);
        self.extending = None;
        self.renew_at = self.renew_at.min(self.ttl().renew_at(now, seed, self.number));
        let left = self.keys_until(quorum).map_or(Duration::ZERO, |until| until.since(now));
        // Manual renewal, a longer TTL, little time left or no fencing token: extend first.
        let extend_first =
            self.renew == Renew::Manual || self.ttl() > self.keys_ttl || left < self.ttl().duration() / 2;
        if extend_first || self.needs_fences() {
            self.extend(now);
            return false;
        }
        true
    }

    /// Requests a full TTL from now on. Only requests sent after this confirm it.
    pub(crate) fn extend(&mut self, now: Instant) {
        let sent = |share: &Share| matches!(share.extend, Extend::Sent | Extend::Done | Extend::Failed);
        let under_way = self.extending.is_some() && self.shares.iter().any(sent);
        self.extending.get_or_insert_default().requested.push(now);
        if !under_way {
            self.begin_extend();
        }
    }

    /// Marks every node that has the token for an extension, which answers all pending ones.
    fn begin_extend(&mut self) {
        let Some(extending) = &mut self.extending else { return };
        extending.current = extending.requested.len();
        for share in self.shares.iter_mut() {
            share.extend = if share.until.is_some() { Extend::Pending } else { Extend::No };
        }
    }

    /// Returns the request due on `node`. The caller then calls `sent`, and finally `renewed`.
    pub(crate) fn due(&mut self, now: Instant, node: NodeId, quorum: usize) -> Option<RenewalRequest> {
        let renewal = self.renewal_due(now);
        let renews = self.renew != Renew::Manual;
        let is_held = self.is_claimed;
        let share = self.shares.get_mut(node.index()).filter(|share| !share.is_busy)?;
        let retry = share.retry_at().is_some_and(|at| at <= now);
        if retry {
            share.clear_retry();
        }
        if share.until.is_some() {
            // Before the claim, only an extension that the waiter needs is sent.
            // H5
            let verify = is_held && share.verifying && share.retry_at().is_none();
            let renew = is_held && renews && (renewal || retry);
            return (share.extend == Extend::Pending || renew || verify).then_some(RenewalRequest::Extend);
        }
        // A quorum confirms unbroken ownership, so a node without the token may get it.
        // Q3
        (is_held && (renewal || retry) && self.is_valid(now, quorum)).then_some(RenewalRequest::TopUp)
    }

    fn renewal_due(&self, now: Instant) -> bool {
        self.is_claimed && self.renew_at <= now
    }

    /// Schedules the next renewal once the one that was due has been sent.
    pub(crate) fn renewed(&mut self, now: Instant, seed: u64) {
        if self.renewal_due(now) {
            self.renew_at = self.ttl().renew_at(now, seed, self.number ^ now.as_nanos());
        }
    }

    pub(super) fn sent(&mut self, node: NodeId) {
        self.keys_ttl = self.ttl;
        if let Some(share) = self.shares.get_mut(node.index()) {
            share.is_busy = true;
            share.clear_retry();
            if share.extend == Extend::Pending {
                share.extend = Extend::Sent;
            }
        }
    }

    /// Handles the reply to a renewal with this TTL, or to an attempt that was still in flight.
    pub(super) fn answered(&mut self, env: &RedisEnv, call: RedisCall, ttl: Ttl, reply: &Reply) {
        let node = call.node;
        let retry_at = self.ttl().retry_at(env.now, env.seed, call.serial);
        let needs_fences = self.needs_fences();
        // With manual renewal, neither a verification nor a top-up may extend the lease.
        let at_most = if self.renew == Renew::Manual { self.keys_until(env.quorum()) } else { None };
        let Some(share) = self.shares.get_mut(node.index()) else { return };
        // Not so for an attempt of the round that won the hold.
        let current = match call.purpose {
            Purpose::Take(take) => take.top_up,
            Purpose::Renew { .. } | Purpose::Delete => true,
        };
        share.is_busy &= !current;
        // Only requests sent for an extension decide it, not older ones.
        let extend = current && share.extend == Extend::Sent;
        let answer = match reply {
            Reply::Extended | Reply::Granted { .. } => {
                if needs_fences && let Reply::Granted { fence: Some(minted) } = reply {
                    self.fences = Some(*minted);
                }
                let mut until = ttl.until(call.emitted, &env.config);
                if !extend {
                    until = at_most.map_or(until, |most| until.min(most));
                }
                // Never backwards: an older reply does not override a newer one.
                share.until = Some(share.until.map_or(until, |known| known.max(until)));
                share.last_error = None;
                share.verifying &= !current;
                if extend {
                    // A reply without the requested fencing token ends the grant.
                    let minted = self.fences.is_none_or(|fences| fences.count > 0);
                    share.extend = if minted { Extend::Done } else { Extend::Failed };
                }
                return;
            }
            Reply::Absent => {
                share.until = None;
                self.last_loss = Some(Loss::Gone);
                Answer::Silent
            }
            Reply::Taken => {
                share.until = None;
                self.last_loss = Some(Loss::Taken);
                Answer::Taken(crate::lock::Expiry::Unknown)
            }
            Reply::Busy { expires } => Answer::Taken(*expires),
            Reply::Rejected(error) => Answer::Rejected(error.clone()),
            Reply::NotSent(cause) => Answer::Unreachable(cause.clone()),
            Reply::Unknown(cause) => Answer::Unknown(cause.clone()),
            Reply::Deleted { .. } | Reply::Announced => Answer::Silent,
        };
        // A node that lacks the token and cannot be reached is tried with each renewal, and when it
        // is back.
        let has = share.verifying || share.until.is_some_and(|until| env.now < until);
        let retry = has || !matches!(reply, Reply::NotSent(_));
        share.last_error = Some(Box::new(LastError { answer, retry_at: retry.then_some(retry_at) }));
        // A node that lost the key cannot extend it.
        if extend || (share.until.is_none() && share.extend != Extend::No) {
            share.extend = Extend::Failed;
        }
    }

    /// Returns the nodes on which another client's value was seen.
    pub(crate) fn others(&self) -> NodeSet {
        let mut nodes = NodeSet::default();
        for (index, share) in self.shares.iter().enumerate() {
            let taken =
                share.last_error.as_ref().is_some_and(|last_error| matches!(last_error.answer, Answer::Taken(_)));
            if taken && share.until.is_none() {
                nodes.insert(NodeId::new(index as u16));
            }
        }
        nodes
    }

    /// Returns the state of the extensions in flight. Once decided, starts those requested later.
    pub(crate) fn extended(&mut self, now: Instant, quorum: usize) -> Extended {
        if self.extending.is_none() {
            return Extended::Open;
        }
        let done = self.servers(|share| share.extend == Extend::Done);
        let open = self.servers(|share| matches!(share.extend, Extend::Done | Extend::Pending | Extend::Sent));
        let confirmed = done >= quorum && self.is_valid(now, quorum);
        if !confirmed && open >= quorum {
            return Extended::Open;
        }
        let Some(mut extending) = self.extending.take() else { return Extended::Open };
        let decided: Vec<Instant> = extending.requested.drain(..extending.current).collect();
        if !extending.requested.is_empty() {
            self.extending = Some(extending);
            self.begin_extend();
        }
        if confirmed { Extended::Done(decided.len()) } else { Extended::Failed(decided) }
    }

    /// Handles a new connection to a node. Returns true if what the node confirmed was discarded:
    /// an earlier server at this address may have the token, and the address may lead there again.
    pub(crate) fn node_up(&mut self, env: &RedisEnv, node: NodeId) -> bool {
        let had = self.has(node);
        if self.equal || env.shared.duplicates.is_some() {
            self.find_equal(env, node);
        }
        had && !self.has(node)
    }

    /// Moves what the node confirmed to another node that still leads to the same server, if any.
    fn move_confirmed(&mut self, node: NodeId) {
        let Some(share) = self.shares.get(node.index()).cloned() else { return };
        let same = |(place, other): &(usize, &mut Share)| *place != node.index() && other.server == share.server;
        if let Some((_, other)) = self.shares.iter_mut().enumerate().find(same) {
            other.until = other.until.max(share.until);
            if share.extend == Extend::Done {
                other.extend = Extend::Done;
            }
        }
        if let Some(share) = self.shares.get_mut(node.index()) {
            share.discard();
        }
    }

    /// Counts nodes that lead to the same server once. What `node` confirmed before its address led
    /// to another server no longer counts for it: another node may lead to the earlier server.
    // Q6
    fn find_equal(&mut self, env: &RedisEnv, node: NodeId) {
        if env.shared.nodes.get(node.index()).is_some_and(|known| known.changed) {
            self.move_confirmed(node);
        }
        for (place, share) in self.shares.iter_mut().enumerate() {
            share.server = NodeId::new(server_of(&env.shared.nodes, place) as u16);
        }
        self.equal = env.shared.duplicates.is_some();
        if self.equal {
            self.last_loss = Some(Loss::EqualNodes);
        }
    }

    pub(crate) fn report(&self) -> Box<[Answer]> {
        let answer = |share: &Share| match &share.last_error {
            Some(last_error) => last_error.answer.clone(),
            None if share.until.is_none() => Answer::Silent,
            None => Answer::Granted,
        };
        self.shares.iter().map(answer).collect()
    }

    /// Returns when the next renewal or retry is due, if any is.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let renews = self.renew != Renew::Manual || self.shares.iter().any(|share| share.until.is_none());
        let next = (self.is_claimed && renews).then_some(self.renew_at);
        self.shares.iter().filter(|share| !share.is_busy).filter_map(Share::retry_at).chain(next).min()
    }
}

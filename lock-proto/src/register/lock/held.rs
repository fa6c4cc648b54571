//! A hold: its validity, its renewals and its local hand-overs.
// RG2, RG8

use alloc::vec::Vec;
use core::time::Duration;

use bytes::Bytes;

use super::{RegisterEnv, SentRecord, Stake, Waiter};
use crate::id::LockId;
use crate::jitter::jitter;
use crate::lock::{Fact, Fence, Holding, Loss, Renew};
use crate::register::config::Config;
use crate::register::flaw::RegisterFlaw;
use crate::register::record::Record;
use crate::time::{Instant, When, nanos};

/// Bits of a fencing token that count local hand-overs.
// RG5
const HANDOVER_BITS: u32 = 10;

/// A fence that is further ahead of the host's clock is reported.
// RG5
const FENCE_AHEAD: u64 = 60_000;

/// A hold of the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HeldRecord {
    /// The acquisition that has it.
    pub(super) id: LockId,
    pub(super) stake: Stake,
    renew: Renew,
    /// The version of the record at the last confirmed write.
    pub(super) version: u64,
    pub(super) fence: u64,
    handovers: u16,
    /// The end of validity.
    pub(super) until: Instant,
    /// When the last write left that may keep other clients out.
    pub(super) last_sent: Instant,
    /// The holder was told of the grant.
    pub(super) is_offered: bool,
    /// The holder has claimed the offer: renewals begin.
    pub(super) is_claimed: bool,
    /// Another record was seen: nothing is sent any more.
    pub(super) is_lost: bool,
    renew_at: Instant,
    handover_until: Instant,
    pub(super) round_trip: Duration,
    /// When extensions were requested that are not answered. Before the offer: what it waits for.
    requested: Vec<Instant>,
    /// How many of them the write in flight answers.
    serving: usize,
    /// When values were proclaimed that are not stored.
    proclaims: Vec<Instant>,
    /// How many of them the write in flight answers.
    proclaiming: usize,
}

impl HeldRecord {
    /// The write `sent` has taken the lock for the waiter.
    pub(super) fn new(env: &RegisterEnv, sent: &SentRecord, waiter: &Waiter<Stake>) -> Self {
        let SentRecord { departed, record } = sent;
        let mut hold = Self {
            id: waiter.id,
            stake: waiter.terms.clone(),
            renew: waiter.renew,
            version: record.version,
            fence: record.fence,
            handovers: 0,
            until: *departed + env.config.drift.validity(record.ttl),
            last_sent: *departed,
            is_offered: false,
            is_claimed: false,
            is_lost: false,
            renew_at: *departed,
            handover_until: env.now + env.config.handover_window,
            round_trip: env.now.since(*departed),
            requested: Vec::new(),
            serving: 0,
            proclaims: Vec::new(),
            proclaiming: 0,
        };
        hold.renew_at = hold.next_renewal(*departed, env.seed);
        // Another waiter has become the head meanwhile.
        if record.ttl != hold.stake.ttl || record.value != hold.stake.value {
            hold.requested.push(env.now);
        }
        hold
    }

    fn next_renewal(&self, departed: Instant, seed: u64) -> Instant {
        let third = self.stake.ttl / 3;
        departed + third.saturating_sub(jitter(seed, departed.as_nanos(), third / 10))
    }

    pub(super) fn holding(&self) -> Holding {
        let hands_over = self.handovers < (1 << HANDOVER_BITS) - 1;
        let hands_over_until = hands_over.then(|| self.until.min(self.handover_until));
        Holding { until: self.until, ttl: nanos(self.stake.ttl), hands_over_until }
    }

    /// Returns true if what the offer waits for was confirmed.
    pub(super) fn is_ready(&self) -> bool {
        self.requested.is_empty() && !self.is_offered
    }

    pub(super) fn fence_token(&self) -> Fence {
        Fence::new(self.fence.saturating_mul(1 << HANDOVER_BITS).saturating_add(self.handovers.into()))
    }

    /// Returns by how many ms the fence is ahead of the host's clock, if that is worth a report.
    pub(super) fn fence_ahead_ms(&self, time_of_day: u64) -> u32 {
        let ahead = self.fence.saturating_sub(time_of_day);
        if ahead > FENCE_AHEAD { u32::try_from(ahead).unwrap_or(u32::MAX) } else { 0 }
    }

    /// Hands it to another holder of this client: the same record, the next fencing token.
    pub(super) fn hand_over(&mut self, env: &RegisterEnv, to: &Waiter<Stake>, record: Option<&Record>) {
        (self.id, self.stake, self.renew) = (to.id, to.terms.clone(), to.renew);
        self.handovers += 1;
        (self.is_offered, self.is_claimed, self.serving) = (false, false, 0);
        self.proclaiming = 0;
        self.requested.clear();
        self.proclaims.clear();
        self.renew_at = self.renew_at.min(self.next_renewal(env.now, env.seed));
        let ttl = self.stake.ttl;
        let fits = |record: &Record| ttl <= record.ttl && record.ttl <= 2 * ttl && record.value == self.stake.value;
        // Manual renewal, other terms, or little time left: write first.
        if to.renew == Renew::Manual || !record.is_some_and(fits) || self.until.since(env.now) < ttl / 2 {
            self.requested.push(env.now);
        }
    }

    /// Requests a full TTL from now on.
    pub(super) fn extend(&mut self, now: Instant) {
        self.requested.push(now);
    }

    /// Changes the value.
    pub(super) fn proclaim(&mut self, now: Instant, value: Bytes) {
        self.stake.value = value;
        self.proclaims.push(now);
    }

    pub(super) fn first_proclaim(&self) -> Option<Instant> {
        self.proclaims.first().copied()
    }

    /// Removes and returns the proclamations that were made before then.
    pub(super) fn failed_proclaims(&mut self, before: Instant) -> Vec<Instant> {
        let failed = self.proclaims.iter().take_while(|since| **since <= before).count();
        self.proclaiming = self.proclaiming.saturating_sub(failed);
        self.proclaims.drain(..failed).collect()
    }

    /// Returns when the next write is due.
    pub(super) fn due_at(&self) -> When {
        if self.is_lost {
            return When::Never;
        }
        if !self.requested.is_empty() || !self.proclaims.is_empty() {
            return When::Now;
        }
        (self.is_claimed && self.renew != Renew::Manual).then_some(self.renew_at).into()
    }

    /// A write of the hold leaves.
    pub(super) fn sends(&mut self, now: Instant, config: &Config) {
        self.serving = self.requested.len();
        self.proclaiming = self.proclaims.len();
        self.last_sent = now;
        // Others may count from this write on, if it has a shorter TTL.
        // RG2
        if !config.has(RegisterFlaw::ShorterTtlInFlight) {
            self.until = self.until.min(now + config.drift.validity(self.stake.ttl));
        }
    }

    /// The write was applied. Returns how many extensions and proclamations it answers.
    pub(super) fn confirmed(&mut self, env: &RegisterEnv, sent: &SentRecord) -> (usize, usize) {
        self.applied(env, sent);
        self.renew_at = self.next_renewal(sent.departed, env.seed);
        let served = self.serving;
        self.requested.drain(..served);
        self.serving = 0;
        let proclaimed = core::mem::take(&mut self.proclaiming);
        self.proclaims.drain(..proclaimed);
        (served, proclaimed)
    }

    /// A write was applied, of whatever TTL it was. That of a later one has limited the validity.
    pub(super) fn applied(&mut self, env: &RegisterEnv, sent: &SentRecord) {
        self.version = sent.record.version;
        self.until = self.until.max(sent.departed + env.config.drift.validity(sent.record.ttl));
    }

    /// Another record was seen.
    pub(super) fn lose(&mut self, env: &mut RegisterEnv, loss: Loss) {
        self.is_lost = true;
        env.report(Fact::Lost(self.id, loss));
    }

    /// The write was not confirmed. Returns the requests of the extensions that it would have
    /// answered. The offer goes on waiting.
    pub(super) fn unconfirmed(&mut self) -> Vec<Instant> {
        self.proclaiming = 0;
        let served = core::mem::take(&mut self.serving);
        if self.is_offered { self.requested.drain(..served).collect() } else { Vec::new() }
    }
}

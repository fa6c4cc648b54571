//! Compares the clients of one Redis node with the naive lock of [`crate::model`].
//!
//! The model is told what the server did: which value a key holds, and until when. It judges
//! whether a naive lock would have done the same, and the clients' events are judged by it.
// S13

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{RedisClient, RedisServers};
use crate::check::{Rule, Stage};
use crate::model::{End, Polling, show};
use crate::record::HistoryRecord;
use crate::world::World;
use crate::world::process::Process;
use lock_proto::Instant;
use lock_proto::LockId;
use lock_proto::{Answer, Event, Expiry, Failure, Loss, Release, Wait};

/// A script takes up to 64 µs, and clocks count in ms.
const ROUNDING_MS: u64 = 2;

#[derive(Clone, Debug)]
pub(super) struct LockModel {
    /// Nothing fails in this run, so every request is answered.
    quiet: bool,
    names: BTreeMap<Arc<[u8]>, ModelName>,
    /// Acquisitions that are not over.
    live: BTreeMap<(usize, LockId), LastSeen>,
    /// When acquisitions ended.
    ended: BTreeMap<(usize, LockId), Instant>,
    /// All acquisitions of each client.
    known: Vec<BTreeSet<LockId>>,
    /// When it last looked.
    looked: Instant,
    found: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct ModelName {
    lock: Polling,
    /// When something else than clients and expiry last changed the key.
    disturbed: Option<Instant>,
}

/// An acquisition, as last seen.
#[derive(Clone, Debug)]
struct LastSeen {
    since: Instant,
    events: usize,
    token: Option<Vec<u8>>,
    /// Earliest time of the application's release.
    release: Option<Instant>,
}

impl ModelName {
    /// An acquisition that waited or held then may be in any state.
    fn is_excused(&self, seen: &LastSeen) -> bool {
        self.disturbed.is_some_and(|at| at >= seen.since)
    }
}

impl<C: RedisClient> World<RedisServers<C>> {
    /// Runs the naive model beside the clients of the first node from now on. It reports
    /// differences as [`Rule::Model`].
    ///
    /// `quiet`: nothing will fail, so that every request is answered.
    pub fn compare_with_model(&mut self, quiet: bool) {
        let known = self.clients.iter().map(|_| BTreeSet::new()).collect();
        let (names, live, ended) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let model = LockModel { quiet, names, live, ended, known, looked: self.now, found: Vec::new() };
        self.store.model = Some(Box::new(model));
    }

    /// Compares once more. Called after each step.
    pub(super) fn compare(&mut self) {
        self.with_model(|model, w| {
            model.meet_acquisitions(w);
            model.follow_server(w);
            model.follow_clients(w);
            model.looked = w.now;
        });
    }

    /// Something else than the clients may have changed keys.
    pub(super) fn update_model(&mut self) {
        self.with_model(|model, w| model.adopt(w, false));
    }

    /// The model cannot know what happened to any key.
    pub(super) fn disturb_model(&mut self) {
        self.with_model(|model, w| model.adopt(w, true));
    }

    fn with_model(&mut self, f: impl FnOnce(&mut LockModel, &Self)) {
        let Some(mut model) = self.store.model.take() else { return };
        f(&mut model, self);
        for text in model.found.drain(..) {
            self.checker.report(self.now, Rule::Model, text);
        }
        self.store.model = Some(model);
        self.check();
    }

    /// Returns the value of a lock's key and its expiry. Data of another type is a value too.
    fn content(&self, name: &[u8]) -> Option<(&[u8], u64)> {
        let node = self.node(0);
        match node.string(self.now, name) {
            Some((value, until)) => Some((value, until.unwrap_or(u64::MAX))),
            None if node.exists(self.now, name) => {
                Some((&b"(data)"[..], node.expires_at(self.now, name).unwrap_or(u64::MAX)))
            }
            None => None,
        }
    }

    fn wall_ms(&self) -> u64 {
        self.node(0).unix_micros(self.now) / 1_000
    }

    /// Returns the acquisitions of a client under this name that are not over and have this token.
    pub(super) fn with_token<'a>(
        &'a self,
        client: usize,
        name: &'a [u8],
        token: &'a [u8],
    ) -> impl Iterator<Item = (LockId, Stage)> {
        let process: &Process<RedisServers<C>> = &self.clients[client];
        self.checker.live(client).filter(move |(lock, _)| {
            process.records.get(lock).is_some_and(|record| *record.name == *name && has_token(record, token))
        })
    }
}

pub(super) fn has_token(record: &HistoryRecord, token: &[u8]) -> bool {
    record.grant.as_ref().is_some_and(|grant| grant.token.to_string().as_bytes() == token)
}

impl LockModel {
    fn meet_acquisitions<C: RedisClient>(&mut self, w: &World<RedisServers<C>>) {
        for (client, process) in w.clients.iter().enumerate() {
            if process.records.len() == self.known[client].len() {
                continue;
            }
            for (lock, record) in &process.records {
                if self.known[client].insert(*lock) {
                    self.names.entry(record.name.clone()).or_default();
                    let seen = LastSeen { since: self.looked, events: 0, token: None, release: None };
                    self.live.insert((client, *lock), seen);
                }
            }
        }
    }

    /// Applies what the server did to each key as an operation of the naive lock.
    fn follow_server<C: RedisClient>(&mut self, w: &World<RedisServers<C>>) {
        let (now, wall) = (w.now, w.wall_ms());
        for (name, ModelName { lock, .. }) in &mut self.names {
            lock.expire(now, wall);
            let found = w.content(name);
            if found == lock.holder() {
                continue;
            }
            let same = found.is_some_and(|(value, _)| lock.holder().is_some_and(|(holder, _)| holder == value));
            let text = match found {
                Some((value, until)) if same => lock.extend(value, until),
                found => {
                    let mut text = Ok(());
                    if let Some((holder, _)) = lock.holder() {
                        text = may_delete(w, name, holder);
                        lock.release(now);
                    }
                    match found {
                        Some((value, until)) => {
                            let taken = lock.take(value, until);
                            text.and(taken)
                        }
                        None => text,
                    }
                }
            };
            let ttl = longest_ttl(w, name, found.map(|(value, _)| value));
            let long = found.zip(ttl).is_some_and(|((_, until), ttl)| until > wall + ttl + ROUNDING_MS);
            let bounded = if long { Err(format!("a TTL of more than {ttl:?} ms was set")) } else { Ok(()) };
            let text = text.and(bounded);
            self.found.extend(text.err().map(|text| format!("{}: {text}", name.escape_ascii())));
        }
    }

    /// Takes the keys as they are.
    fn adopt<C: RedisClient>(&mut self, w: &World<RedisServers<C>>, disturbs_all: bool) {
        self.meet_acquisitions(w);
        let (now, wall) = (w.now, w.wall_ms());
        for (name, ModelName { lock, disturbed }) in &mut self.names {
            if !disturbs_all {
                lock.expire(now, wall);
            }
            let found = w.content(name);
            if disturbs_all || found != lock.holder() {
                *disturbed = Some(now);
            }
            if found != lock.holder() {
                lock.disturb(now, found);
            }
        }
    }

    fn follow_clients<C: RedisClient>(&mut self, w: &World<RedisServers<C>>) {
        let (mut live, mut ended) = (core::mem::take(&mut self.live), Vec::new());
        live.retain(|(client, lock), seen| {
            let Some(record) = w.clients[*client].records.get(lock) else { return false };
            let stage = w.stage(*client, *lock).unwrap_or(Stage::Over);
            if matches!(stage, Stage::Releasing | Stage::Over) {
                seen.release.get_or_insert(self.looked);
            }
            for event in &record.events[seen.events..] {
                if let Event::Granted(grant) = event {
                    seen.token = Some(grant.token.to_string().into_bytes());
                }
                if let Err(text) = self.judge(w, *client, *lock, record, seen, event) {
                    self.found.push(format!("client {client} {lock} ({}): {text}", record.escaped_name()));
                }
            }
            seen.events = record.events.len();
            if let Err(text) = self.holds(w, *client, *lock, stage, record, seen) {
                self.found.push(format!("client {client} {lock} ({}): {text}", record.escaped_name()));
                return false;
            }
            if stage == Stage::Over {
                ended.push(((*client, *lock), w.now));
            }
            stage != Stage::Over
        });
        self.live = live;
        self.ended.extend(ended);
    }

    /// A client that believes to hold the lock is the holder by the truth of the server.
    fn holds<C: RedisClient>(
        &self,
        w: &World<RedisServers<C>>,
        client: usize,
        lock: LockId,
        stage: Stage,
        record: &HistoryRecord,
        seen: &LastSeen,
    ) -> Result<(), String> {
        let (Some(name), Some(token)) = (self.names.get(&record.name), &seen.token) else { return Ok(()) };
        if !matches!(stage, Stage::Offered | Stage::Held) || name.is_excused(seen) {
            return Ok(());
        }
        let process = &w.clients[client];
        let valid = process.machine.valid_until(lock).is_some_and(|until| until > process.local(w.now));
        let disturbed = name.lock.tenure(token).is_some_and(|tenure| matches!(tenure.end, Some((_, End::Disturbed))));
        if !valid || disturbed || name.lock.holder().is_some_and(|(holder, _)| holder == &**token) {
            return Ok(());
        }
        let truth =
            name.lock.holder().map_or_else(|| "nobody does".into(), |(holder, _)| format!("{} does", show(holder)));
        Err(format!("believes that {} holds the lock, but {truth}", show(token)))
    }

    /// Returns whether the client had another acquisition of the same lock at some time since then.
    fn has_rival<C: RedisClient>(
        &self,
        w: &World<RedisServers<C>>,
        client: usize,
        lock: LockId,
        record: &HistoryRecord,
        since: Instant,
    ) -> bool {
        let mut others = w.clients[client].records.iter().filter(|(other, _)| **other != lock);
        others.any(|(other, rival)| {
            rival.name == record.name && self.ended.get(&(client, *other)).is_none_or(|at| *at >= since)
        })
    }

    /// Returns whether the client may yield to the waiter of another client that its last release
    /// of this lock has woken. A short wait can end before it asks.
    // A7
    fn yields<C: RedisClient>(
        &self,
        w: &World<RedisServers<C>>,
        client: usize,
        lock: LockId,
        record: &HistoryRecord,
    ) -> bool {
        let mut others = w.clients[client].records.iter().filter(|(other, _)| **other != lock);
        others.any(|(_, other)| other.name == record.name && other.grant.is_some())
    }

    /// Compares an event with what the naive lock went through.
    fn judge<C: RedisClient>(
        &self,
        w: &World<RedisServers<C>>,
        client: usize,
        lock: LockId,
        record: &HistoryRecord,
        seen: &LastSeen,
        event: &Event,
    ) -> Result<(), String> {
        let Some(name) = self.names.get(&record.name).filter(|name| !name.is_excused(seen)) else { return Ok(()) };
        match event {
            Event::Granted(grant) => {
                let token = grant.token.to_string().into_bytes();
                // Otherwise it may have been set and replaced unseen, see `adopt`.
                if name.lock.tenure(&token).is_some() || name.disturbed.is_some() {
                    return Ok(());
                }
                Err(format!("{} was never set", show(&token)))
            }
            Event::Failed(Failure::TimedOut(report)) if self.quiet => {
                if self.has_rival(w, client, lock, record, seen.since) {
                    // What it reports may be the answer to the rival.
                    Ok(())
                } else if matches!(report.nodes[..], [Answer::Taken(Expiry::Unknown)])
                    && record.wait != Wait::Try
                    && self.yields(w, client, lock, record)
                {
                    Ok(())
                } else if report.nodes.is_empty() {
                    Err("refused for another acquisition of its client, but there was none".into())
                } else if report.is_busy() {
                    let busy = name.lock.was_held_by_other(b"", seen.since);
                    if busy { Ok(()) } else { Err(format!("refused, but nobody held the lock: {report}")) }
                } else if record.wait == Wait::Try {
                    Err(format!("the only attempt on a quiet network failed: {report}"))
                } else {
                    Ok(())
                }
            }
            Event::Lost(Loss::Taken) => {
                let token = seen.token.as_deref().unwrap_or_default();
                let taken = name.lock.was_held_by_other(token, seen.since);
                if taken { Ok(()) } else { Err("lost to another holder, but there was none".into()) }
            }
            Event::Released(outcome) => self.released(w, client, lock, name, record, seen, *outcome),
            Event::Blocked(_)
            | Event::Withdrawn
            | Event::Failed(_)
            | Event::Renewed { .. }
            | Event::Extended
            | Event::ExtendFailed(_)
            | Event::AtRisk { .. }
            | Event::Lost(_)
            | Event::Proclaimed { .. }
            | Event::ProclaimFailed(_) => Ok(()),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "an acquisition and its release")]
    fn released<C: RedisClient>(
        &self,
        w: &World<RedisServers<C>>,
        client: usize,
        lock: LockId,
        name: &ModelName,
        record: &HistoryRecord,
        seen: &LastSeen,
        outcome: Release,
    ) -> Result<(), String> {
        let Some(token) = &seen.token else { return Err("released without a grant".into()) };
        let Some(tenure) = name.lock.tenure(token) else { return Ok(()) };
        let since = seen.release.unwrap_or(self.looked);
        let ok = match (outcome, tenure.end) {
            (_, Some((_, End::Disturbed))) | (Release::Released, Some((_, End::Released))) => true,
            // Handed over to another waiter of the client, which is granted when its extension is
            // confirmed.
            (Release::Released, None) => self.has_rival(w, client, lock, record, since),
            // The first request was late, and a repeated one found nothing: the lock was held until
            // the application released it.
            (Release::Released, Some((at, End::Expired))) => !self.quiet && at >= since,
            // Its first request was executed, and the reply was lost.
            (Release::Expired, Some((_, End::Released))) => !self.quiet,
            (Release::Expired, end) => end.is_some(),
            (Release::Taken, end) => end.is_some() && name.lock.was_held_by_other(token, since),
            (Release::Unknown, _) => !self.quiet,
            _ => false,
        };
        if ok {
            Ok(())
        } else {
            Err(format!(
                "the release is reported as {outcome:?}, but the tenure of {} was {:?}",
                show(token),
                tenure.end
            ))
        }
    }
}

/// Returns an error if an application still has the lock whose token a client deleted.
fn may_delete<C: RedisClient>(w: &World<RedisServers<C>>, name: &[u8], token: &[u8]) -> Result<(), String> {
    for client in 0..w.clients.len() {
        let guarded = |stage| matches!(stage, Stage::Offered | Stage::Held | Stage::Lost);
        if let Some((lock, stage)) = w.with_token(client, name, token).find(|(_, stage)| guarded(*stage)) {
            return Err(format!("{} was deleted, but {lock} of client {client} is {stage:?}", show(token)));
        }
    }
    if w.clients.iter().any(|process| token.starts_with(&process.own.token_prefix)) {
        return Ok(());
    }
    Err(format!("{} was deleted, which is of no client", show(token)))
}

/// Returns the longest TTL in ms that the client of this token has asked for under the name.
fn longest_ttl<C: RedisClient>(w: &World<RedisServers<C>>, name: &[u8], token: Option<&[u8]>) -> Option<u64> {
    let owner =
        w.clients.iter().find(|process| token.is_some_and(|token| token.starts_with(&process.own.token_prefix)))?;
    let ttls = owner.records.values().filter(|record| *record.name == *name).map(|record| record.wanted_ttl);
    ttls.max().and_then(|ttl| u64::try_from(ttl.as_millis()).ok())
}

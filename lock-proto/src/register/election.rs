//! Elections: the value of the leader is in the record, and its version is the revision.
// RG8

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use bytes::Bytes;

use super::client::{Client, Locks};
use super::lock::{KeyWatch, Known, RegisterEnv, RegisterShared, Stake};
use super::output::Output;
use super::request::{Reply, Request};
use crate::collections::{Deadlines, Slots};
use crate::error::Misuse;
use crate::fault::{Breach, Fault};
use crate::id::{CallOwner, LockId, NodeId};
use crate::jitter::jitter;
use crate::lock::{
    Acquire, Answer, ElectionEvent, Elections, ErrorClass, Failure, Leader, QueryId, Report, check_name, check_value,
};
use crate::time::{Instant, soonest};

/// A query for the leader, or an observation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LeaderRead {
    id: QueryId,
    key: Bytes,
    /// Deadline of a query; `None` for an observer.
    until: Option<Instant>,
    since: Instant,
    known: Known,
    last_event: Option<ElectionEvent>,
    /// The last failure, for reports.
    answer: Answer,
    /// The read in flight: its serial, when it left, and its deadline.
    call: Option<(u64, Instant, Instant)>,
    /// When to read next.
    read_at: Instant,
    watch: KeyWatch,
}

/// All open queries and observations of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LeaderReads {
    list: BTreeMap<u32, LeaderRead>,
    ids: Slots,
    deadlines: Deadlines,
}

impl LeaderReads {
    pub(super) fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.deadlines.first().map(|(at, _)| (at, "a query"))
    }

    fn slots_of(&self, key: &[u8]) -> Vec<u32> {
        self.list.iter().filter(|(_, query)| query.key == key).map(|(slot, _)| *slot).collect()
    }
}

impl LeaderRead {
    fn deadline(&self) -> Option<Instant> {
        let next = self.call.map_or(self.read_at, |(_, _, deadline)| deadline);
        soonest([Some(next), self.until])
    }

    fn emit(&mut self, env: &mut RegisterEnv, event: ElectionEvent) {
        if self.last_event.as_ref() != Some(&event) {
            self.last_event = Some(event.clone());
            env.out.push_back(Output::Election { query: self.id, event });
        }
    }

    /// Ends the query.
    fn fail(&mut self, env: &mut RegisterEnv, failure: fn(Report) -> Failure) -> bool {
        let report = Report { waited: env.now.since(self.since), nodes: Box::new([self.answer.clone()]) };
        self.emit(env, ElectionEvent::Failed(failure(report)));
        true
    }

    /// Does the work that is due. Returns true if the query has ended.
    fn timeout(&mut self, env: &mut RegisterEnv) -> bool {
        if self.until.is_some_and(|until| until <= env.now) {
            return self.fail(env, Failure::TimedOut);
        }
        if self.call.take_if(|(_, _, deadline)| *deadline <= env.now).is_some() {
            return self.failed(env, Answer::Unknown(Fault::TimedOut.into()));
        }
        if self.call.is_none() && self.read_at <= env.now {
            self.watch.poll();
            self.read(env);
        }
        false
    }

    fn read(&mut self, env: &mut RegisterEnv) {
        let call = env.next_call(CallOwner::Query(self.id.slot), NodeId::new(0));
        let timeout = env.config.request_timeout;
        self.call = Some((call.serial, env.now, env.now + timeout));
        env.out.push_back(Output::Send { call, request: Request::Read { key: self.key.clone() }, timeout });
    }

    /// Handles the reply to a read. Returns true if the query has ended.
    fn reply(&mut self, env: &mut RegisterEnv, serial: u64, reply: &Reply) -> bool {
        let Some((_, departed, _)) = self.call.take_if(|(sent, ..)| *sent == serial) else { return false };
        let entry = match reply {
            Reply::Record(entry) => Some(entry.clone()),
            Reply::Absent => None,
            Reply::Rejected(error) => return self.failed(env, Answer::Rejected(error.clone())),
            Reply::NotSent(cause) => return self.failed(env, Answer::Unreachable(cause.clone())),
            Reply::Unknown(cause) => return self.failed(env, Answer::Unknown(cause.clone())),
            Reply::Written(_) | Reply::Conflict => {
                return self.failed(env, Answer::Unknown(Fault::Protocol(Breach::WrongReply).into()));
            }
        };
        self.known.show(env.now, departed, entry, env.shared.client, &env.config);
        let expiry = self.known.expires_at(&env.config);
        let leads = expiry.is_some_and(|at| at > env.now);
        let event = match self.known.record().filter(|_| leads) {
            Some(record) => ElectionEvent::Leader(Leader {
                key: self.key.clone(),
                value: record.value.clone(),
                create_revision: revision(record.fence),
                mod_revision: revision(record.version),
            }),
            None => ElectionEvent::NoLeader,
        };
        // A renewal changes the version, and nothing that an observer asked for.
        let is_news = match (&self.last_event, &event) {
            (Some(ElectionEvent::Leader(last)), ElectionEvent::Leader(now)) => {
                last.value != now.value || last.create_revision != now.create_revision
            }
            (last, event) => last.as_ref() != Some(event),
        };
        if is_news {
            self.emit(env, event);
        }
        if self.until.is_some() {
            return true;
        }
        self.later(env);
        if leads {
            self.read_at = soonest([expiry, Some(self.read_at)]).unwrap_or(self.read_at);
        }
        let seen = self.known.revision();
        if self.watch.follow(seen) {
            env.out.push_back(Output::Watch { key: self.key.clone(), seen: seen.cloned() });
        }
        false
    }

    fn later(&mut self, env: &RegisterEnv) {
        let every = env.config.poll_interval().max;
        self.read_at = env.now + every.saturating_sub(jitter(env.seed, env.serial, every / 4));
    }

    fn failed(&mut self, env: &mut RegisterEnv, answer: Answer) -> bool {
        let is_in_use = matches!(&answer, Answer::Rejected(error) if error.class == ErrorClass::KeyInUse);
        let is_refused = answer.is_refusal();
        self.answer = answer;
        if is_in_use || is_refused {
            return self.fail(env, if is_in_use { Failure::KeyInUse } else { Failure::Refused });
        }
        if self.until.is_none() {
            self.emit(env, ElectionEvent::Disconnected);
        }
        self.later(env);
        false
    }
}

/// Revisions are signed on the stores that have numbered ones.
fn revision(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl RegisterEnv {
    /// Runs one step of a query, and removes the query if `f` returns true.
    fn query_step(&mut self, slot: u32, f: impl FnOnce(&mut LeaderRead, &mut Self) -> bool) {
        // Removed from the map during the step, so that `f` can borrow the context.
        let Some(mut query) = self.shared.queries.list.remove(&slot) else { return };
        let is_over = f(&mut query, self);
        let queries = &mut self.shared.queries;
        queries.deadlines.set(slot, query.deadline().filter(|_| !is_over));
        if !is_over {
            queries.list.insert(slot, query);
            return;
        }
        queries.ids.end(slot);
        if query.watch.end() {
            self.unwatch(&query.key);
        }
    }

    /// A waiter or an observer does not watch the key any more. Ends the watch unless another does.
    // RG7
    pub(super) fn unwatch(&mut self, key: &Bytes) {
        let RegisterShared { queries, watched, .. } = &self.shared;
        if !watched.contains(key) && !queries.list.values().any(|query| query.key == *key && query.watch.is_on()) {
            self.out.push_back(Output::Unwatch { key: key.clone() });
        }
    }

    /// Does the work of one query that is due. Returns true if there was one.
    pub(super) fn settle_query(&mut self) -> bool {
        let due = self.shared.queries.deadlines.first().filter(|(at, _)| *at <= self.now);
        let Some((_, slot)) = due else { return false };
        self.query_step(slot, LeaderRead::timeout);
        true
    }

    /// The client is shutting down.
    pub(super) fn end_queries(&mut self) {
        let slots: Vec<u32> = self.shared.queries.list.keys().copied().collect();
        for slot in slots {
            self.query_step(slot, |query, env| {
                query.emit(env, ElectionEvent::Failed(Failure::ShuttingDown));
                true
            });
        }
    }

    /// Handles the reply to the read of a query.
    pub(super) fn query_reply(&mut self, slot: u32, serial: u64, reply: &Reply) {
        self.query_step(slot, |query, env| query.reply(env, serial, reply));
    }

    /// The key may have changed.
    pub(super) fn query_changed(&mut self, key: &[u8]) {
        for slot in self.shared.queries.slots_of(key) {
            self.query_step(slot, |query, env| {
                if query.watch.report(query.call.is_some()) && query.call.is_none() {
                    query.read(env);
                }
                false
            });
        }
    }
}

impl Locks {
    /// Stands for election with this value. Progress is reported as events for the returned id;
    /// `Granted` means elected.
    ///
    /// # Errors
    ///
    /// [`Misuse`] as for [`acquire`](Self::acquire), or if the value is too long.
    pub fn campaign(&mut self, now: Instant, request: &Acquire, value: Bytes) -> Result<LockId, Misuse> {
        let (key, stake) = self.terms_of(now, request)?;
        check_value(&value)?;
        Ok(self.begin(request, key, Stake { value, ..stake }))
    }

    /// Changes the value of the leader. `Proclaimed` or `ProclaimFailed` reports the result.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the candidate is not the leader, or the value is too long.
    pub fn proclaim(&mut self, now: Instant, id: LockId, value: Bytes) -> Result<(), Misuse> {
        check_value(&value)?;
        self.verb(now, id, |lock, ctx| {
            lock.step(ctx, |lock, ctx| {
                lock.line.check_held(id)?;
                lock.store.proclaim(&mut ctx.env, value);
                Ok(())
            })
        })
    }

    /// Queries the current leader. One event reports the result.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the name is invalid, too many queries are open, or the client is shutting
    /// down.
    pub fn leader(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse> {
        self.query(now, name, false)
    }

    /// Observes the leader until the query is closed. After a failure, the last event says why.
    ///
    /// # Errors
    ///
    /// As [`leader`](Self::leader).
    pub fn observe(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse> {
        self.query(now, name, true)
    }

    fn query(&mut self, now: Instant, name: &[u8], observe: bool) -> Result<QueryId, Misuse> {
        self.handle_timeout(now);
        self.admit(self.ctx.env.shared.queries.ids.len())?;
        check_name(name)?;
        let env = &mut self.ctx.env;
        let key = RegisterShared::key(&env.config, name);
        let (slot, generation) = env.shared.queries.ids.take(0);
        let id = QueryId { slot, generation };
        let query = LeaderRead {
            id,
            key,
            until: (!observe).then(|| env.now + env.config.release_within),
            since: env.now,
            known: Known::default(),
            last_event: None,
            answer: Answer::Silent,
            call: None,
            read_at: env.now,
            watch: KeyWatch::Off,
        };
        env.shared.queries.list.insert(slot, query);
        env.query_step(slot, LeaderRead::timeout);
        self.settle();
        Ok(id)
    }

    /// Closes a query or an observation. No more events follow for it.
    pub fn close_query(&mut self, now: Instant, id: QueryId) {
        self.handle_timeout(now);
        if self.ctx.env.shared.queries.list.get(&id.slot).is_some_and(|query| query.id == id) {
            self.ctx.env.query_step(id.slot, |_, _| true);
        }
    }
}

impl Elections for Client {
    fn campaign(&mut self, now: Instant, request: &Acquire, value: Bytes) -> Result<LockId, Misuse> {
        self.verb(now, |locks, now| locks.campaign(now, request, value))
    }

    fn proclaim(&mut self, now: Instant, lock: LockId, value: Bytes) -> Result<(), Misuse> {
        self.verb(now, |locks, now| locks.proclaim(now, lock, value))
    }

    fn leader(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse> {
        self.verb(now, |locks, now| locks.leader(now, name))
    }

    fn observe(&mut self, now: Instant, name: &[u8]) -> Result<QueryId, Misuse> {
        self.verb(now, |locks, now| locks.observe(now, name))
    }

    fn close_query(&mut self, now: Instant, query: QueryId) {
        self.verb(now, |locks, now| locks.close_query(now, query));
    }
}

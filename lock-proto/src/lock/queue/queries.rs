//! Elections of a store: the hub's verbs, and the open queries and observations.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::hash::Hash;

use bytes::Bytes;

use super::output::QueueOutput;
use super::queued::{Bid, QueueEnv, Queued};
use super::store::{QueueClient, QueueStore};
use crate::collections::{Deadlines, Slots};
use crate::error::Misuse;
use crate::id::LockId;
use crate::lock::answer::Answer;
use crate::lock::client::{Client, Transport};
use crate::lock::election::{ElectionEvent, Elections, QueryId};
use crate::lock::event::{Failure, Report};
use crate::lock::hub::Locks;
use crate::lock::request::Acquire;
use crate::lock::tuning::{check_name, check_value};
use crate::time::{Instant, soonest};

/// A query for the leader of an election, or an observation of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaderQuery<S: QueueStore> {
    pub(crate) id: QueryId,
    pub(crate) queue: S::Key,
    /// Deadline of a query; `None` for an observer.
    until: Option<Instant>,
    since: Instant,
    pub(crate) last_event: Option<ElectionEvent>,
    /// The last failure, for reports.
    pub(crate) answer: Answer,
    pub(crate) own: <S::Client as QueueClient<S>>::Query,
}

impl<S: QueueStore> LeaderQuery<S> {
    pub(crate) const fn observes(&self) -> bool {
        self.until.is_none()
    }

    fn deadline(&self) -> Option<Instant> {
        soonest([S::Client::read_at(self), self.until])
    }

    /// Reads the leader if that is due, or it may have changed.
    pub(crate) fn read(&mut self, env: &mut QueueEnv<S>) {
        S::Client::read(self, env);
    }

    pub(crate) fn emit(&mut self, env: &mut QueueEnv<S>, event: ElectionEvent) {
        if self.last_event.as_ref() != Some(&event) {
            self.last_event = Some(event.clone());
            env.out.push_back(QueueOutput::Election { query: self.id, event });
        }
    }

    fn fail(&mut self, env: &mut QueueEnv<S>, failure: impl FnOnce(Report) -> Failure) {
        let report = Report { waited: env.now.since(self.since), nodes: Box::new([self.answer.clone()]) };
        self.emit(env, ElectionEvent::Failed(failure(report)));
    }

    /// An observer learns of a failure that is not final.
    pub(crate) fn disconnected(&mut self, env: &mut QueueEnv<S>, answer: Answer) {
        self.answer = answer;
        if self.observes() {
            self.emit(env, ElectionEvent::Disconnected);
        }
    }

    /// Ends the query, because a retry would not help.
    pub(crate) fn refused(&mut self, env: &mut QueueEnv<S>, answer: Answer) -> bool {
        self.answer = answer;
        self.fail(env, Failure::Refused);
        true
    }
}

/// All open queries and observations of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaderQueries<S: QueueStore> {
    list: BTreeMap<u32, LeaderQuery<S>>,
    ids: Slots,
    deadlines: Deadlines,
}

impl<S: QueueStore> LeaderQueries<S> {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LeaderQuery<S>> {
        self.list.values()
    }

    pub(crate) fn slots(&self) -> Vec<u32> {
        self.list.keys().copied().collect()
    }

    pub(crate) fn deadline(&self) -> Option<(Instant, &'static str)> {
        self.deadlines.first().map(|(at, _)| (at, "a query"))
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.deadlines.first().is_some_and(|(at, _)| at <= now)
    }

    /// Removes the deadlines that are due. Returns the slots of their queries.
    fn take_due(&mut self, now: Instant) -> Vec<u32> {
        let mut due = Vec::new();
        while let Some((_, slot)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            self.deadlines.set(slot, None);
            due.push(slot);
        }
        due
    }
}

impl<S: QueueStore> QueueEnv<S> {
    /// Runs one step of a query, and removes the query if `f` returns true.
    pub(crate) fn query_step(&mut self, slot: u32, f: impl FnOnce(&mut LeaderQuery<S>, &mut Self) -> bool) {
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
        S::Client::close_query(&query, self);
    }

    /// Does the work of queries that is due.
    pub(crate) fn settle_queries(&mut self) {
        for slot in self.shared.queries.take_due(self.now) {
            self.query_step(slot, |query, env| {
                let is_over = query.until.is_some_and(|until| until <= env.now);
                if is_over {
                    query.fail(env, Failure::TimedOut);
                } else {
                    query.read(env);
                }
                is_over
            });
        }
    }

    /// The client is shutting down.
    pub(crate) fn end_queries(&mut self) {
        for slot in self.shared.queries.slots() {
            self.query_step(slot, |query, env| {
                query.emit(env, ElectionEvent::Failed(Failure::ShuttingDown));
                true
            });
        }
    }
}

impl<S: QueueStore> Locks<Queued<S>> {
    /// Stands for election with this value. Progress is reported as events for the returned id;
    /// `Granted` means elected.
    ///
    /// # Errors
    ///
    /// [`Misuse`] as for [`acquire`](Self::acquire), or if the value is too long.
    pub fn campaign(&mut self, now: Instant, request: &Acquire, value: Bytes) -> Result<LockId, Misuse> {
        let (_, bid) = self.terms_of(now, request)?;
        let queue = S::election(&self.ctx.env.config, &request.name)?;
        check_value(&value)?;
        Ok(self.begin(request, queue, Bid { value, candidate: true, ..bid }))
    }

    /// Changes the value of the leader. `Proclaimed` or `ProclaimFailed` reports the result.
    ///
    /// # Errors
    ///
    /// [`Misuse`] if the candidate is not the leader, or the value is too long.
    pub fn proclaim(&mut self, now: Instant, id: LockId, value: Bytes) -> Result<(), Misuse> {
        check_value(&value)?;
        self.holder_verb(now, id, |queued, env| queued.proclaim(env, value))
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
        let queue = S::election(&self.ctx.env.config, name)?;
        let queries = &mut self.ctx.env.shared.queries;
        let (slot, generation) = queries.ids.take(0);
        let id = QueryId { slot, generation };
        let since = self.ctx.env.now;
        let until = (!observe).then(|| since + self.ctx.env.config.release_within);
        let (last_event, answer, own) = (None, Answer::Silent, Default::default());
        queries.list.insert(slot, LeaderQuery { id, queue, until, since, last_event, answer, own });
        self.ctx.env.query_step(slot, |query, env| {
            query.read(env);
            false
        });
        self.settle();
        Ok(id)
    }

    /// Closes a query or an observation. No more events follow for it.
    pub fn close_query(&mut self, now: Instant, id: QueryId) {
        self.handle_timeout(now);
        let query = self.ctx.env.shared.queries.list.get(&id.slot);
        if query.is_some_and(|query| query.id == id) {
            self.ctx.env.query_step(id.slot, |_, _| true);
        }
    }
}

impl<S: QueueStore> Elections for Client<Queued<S>>
where
    Queued<S>: Transport,
{
    fn campaign(&mut self, now: Instant, request: &Acquire, value: Bytes) -> Result<LockId, Misuse> {
        self.locks.handle_timeout(now);
        self.hurry(request.wait.limit());
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

//! A query for the leader of an election, or an observation of it.
// E10

use alloc::boxed::Box;
use core::time::Duration;

use super::session::{answer, pause, recheck};
use super::{Context, Watched, Watcher};
use crate::etcd::locks_output::LocksOutput;
use crate::etcd::reading::Reading;
use crate::etcd::request::{Found, Queue, Refusal, Reply, Request};
use crate::id::{CallOwner, NodeId};
use crate::lock::{Answer, ElectionEvent, ErrorClass, Failure, Leader, QueryId, Report};
use crate::time::{Instant, soonest};

/// Polling interval of an observer while its watch cannot be opened.
const POLL: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Query {
    pub(crate) id: QueryId,
    queue: Queue,
    pub(crate) watch: Option<Watched>,
    /// Deadline of a query; `None` for an observer.
    until: Option<Instant>,
    since: Instant,
    reading: Reading,
    last_event: Option<ElectionEvent>,
    /// When an observer rereads without a report: the server may have lost an event.
    recheck: Option<Instant>,
    answer: Answer,
}

impl Query {
    pub(crate) const fn new(id: QueryId, queue: Queue, now: Instant, until: Option<Instant>) -> Self {
        Self {
            id,
            queue,
            watch: None,
            until,
            since: now,
            reading: Reading::new(0, 1),
            last_event: None,
            recheck: None,
            answer: Answer::Silent,
        }
    }

    /// Starts the query. An observer watches all keys of the queue before it reads.
    pub(crate) fn start(&mut self, ctx: &mut Context) -> bool {
        if self.until.is_none() {
            let (key, end) = self.queue.range();
            let id = ctx.watch_range(Watcher::Query(self.id.slot), key.clone(), end.clone());
            self.watch = Some(Watched { id, open: None });
        }
        self.read(ctx)
    }

    fn emit(&mut self, ctx: &mut Context, event: ElectionEvent) {
        if self.last_event.as_ref() != Some(&event) {
            self.last_event = Some(event.clone());
            ctx.out.push_back(LocksOutput::Election { query: self.id, event });
        }
    }

    /// Reads the leader if it may have changed. Always returns false: the query continues.
    fn read(&mut self, ctx: &mut Context) -> bool {
        let retry = &self.reading.retry;
        let polled = retry.due().is_some() && self.watch.is_some();
        let ready = retry.is_ready(ctx.now) && (self.reading.is_behind() || polled);
        if retry.is_in_flight() || !(ready || self.recheck().is_some_and(|at| at <= ctx.now)) {
            return false;
        }
        self.recheck = self.watch.map(|_| ctx.now + recheck(&ctx.config, ctx.seed ^ u64::from(self.id.slot), ctx.now));
        let request = Request::First { queue: self.queue.clone() };
        let serial = ctx.call(CallOwner::Query(self.id.slot), NodeId(0), request, ctx.config.request_timeout);
        self.reading.sent(serial, self.reading.reported);
        false
    }

    /// Handles a reply. Returns true if the query has ended.
    pub(crate) fn answered(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) -> bool {
        if !self.reading.answered(serial) {
            return false;
        }
        let reading = &mut self.reading;
        match reply {
            Reply::Done(Found::Queue { revision, older, .. }) => {
                // Later changes may be newer than the reply, but earlier ones are included. A reply
                // that says otherwise must not cause a read loop.
                reading.known = reading.known.max(*revision).max(reading.min_revision);
                reading.retry.succeeded();
                // A foreign key does not lead, and no candidate behind it is elected.
                // E2
                let event = match older.as_ref().filter(|kv| !self.queue.is_foreign(&kv.key)) {
                    None => ElectionEvent::NoLeader,
                    Some(kv) => ElectionEvent::Leader(Leader {
                        key: kv.key.clone(),
                        value: kv.value.clone(),
                        create_revision: kv.create_revision,
                        mod_revision: kv.mod_revision,
                    }),
                };
                self.emit(ctx, event);
                if self.watch.is_some_and(|watch| watch.open.is_none()) {
                    self.reading.retry.set_due(Some(ctx.now + POLL));
                }
                if self.reading.is_behind() {
                    self.reading.retry.set_due(None);
                    self.read(ctx);
                }
                self.until.is_some()
            }
            Reply::Refused(Refusal::Error(error)) if error.class == ErrorClass::Refused => {
                self.answer = answer(reply);
                self.fail(ctx, Failure::Refused);
                true
            }
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                self.answer = answer(reply);
                reading.retry.failed(ctx.now + pause(ctx.seed, ctx.now.as_nanos(), reading.retry.tries()));
                if self.watch.is_some() {
                    self.emit(ctx, ElectionEvent::Disconnected);
                }
                false
            }
        }
    }

    /// Returns the next reread. After a failure, only the backoff applies.
    fn recheck(&self) -> Option<Instant> {
        self.recheck.filter(|_| self.reading.retry.tries() == 0)
    }

    fn fail(&mut self, ctx: &mut Context, failure: impl FnOnce(Report) -> Failure) {
        let report = Report { waited: ctx.now.since(self.since), nodes: Box::new([self.answer.clone()]) };
        self.emit(ctx, ElectionEvent::Failed(failure(report)));
    }

    pub(crate) fn watching(&mut self, ctx: &mut Context, revision: i64) -> bool {
        if let Some(watch) = &mut self.watch {
            watch.open = Some(revision);
        }
        // The open watch replaces polling, but not the backoff after a failure.
        if self.reading.retry.tries() == 0 {
            self.reading.retry.set_due(None);
        }
        // After `Disconnected`, report the current leader again.
        if self.last_event == Some(ElectionEvent::Disconnected) {
            self.reading.known = 0;
        }
        self.reading.report(revision);
        self.read(ctx)
    }

    pub(crate) fn changed(&mut self, ctx: &mut Context, revision: i64) -> bool {
        self.reading.report(revision);
        self.read(ctx)
    }

    pub(crate) fn unsubscribed(&mut self, ctx: &mut Context) -> bool {
        if let Some(watch) = &mut self.watch {
            watch.open = None;
        }
        self.reading.poll_at(ctx.now + POLL);
        self.emit(ctx, ElectionEvent::Disconnected);
        false
    }

    /// Handles a timeout. Returns true if the query has ended.
    pub(crate) fn timeout(&mut self, ctx: &mut Context) -> bool {
        if self.until.is_some_and(|until| until <= ctx.now) {
            self.fail(ctx, Failure::TimedOut);
            return true;
        }
        self.read(ctx)
    }

    pub(crate) fn shut_down(&mut self, ctx: &mut Context) -> bool {
        self.emit(ctx, ElectionEvent::Failed(Failure::ShuttingDown));
        true
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let recheck = self.recheck().filter(|_| !self.reading.retry.is_in_flight());
        soonest([self.reading.retry.deadline(), recheck, self.until])
    }
}

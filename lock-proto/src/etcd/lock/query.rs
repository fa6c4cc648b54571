//! A query for the leader of an election, or an observation of it.
// E10

use super::session::answer;
use super::{Context, Keys, POLL, Watched};
use crate::etcd::reading::Reading;
use crate::etcd::request::{Found, Queue, Reply, Request};
use crate::id::{CallOwner, NodeId};
use crate::lock::{self, Asking, ElectionEvent, Failure, Leader, pause};
use crate::time::{Instant, soonest};

/// An open query or observation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Query {
    asking: Asking,
    queue: Queue,
    watch: Option<Watched>,
    reading: Reading,
    /// When an observer rereads without a report: the server may have lost an event.
    recheck: Option<Instant>,
}

impl lock::Query<Keys> for Query {
    fn new(asking: Asking, queue: Queue) -> Self {
        Self { asking, queue, watch: None, reading: Reading::new(0, 1), recheck: None }
    }

    fn asking(&self) -> &Asking {
        &self.asking
    }

    fn asking_mut(&mut self) -> &mut Asking {
        &mut self.asking
    }

    /// Starts the query. An observer watches all keys of the queue before it reads.
    fn start(&mut self, ctx: &mut Context) -> bool {
        if self.asking.until.is_none() {
            self.watch(ctx);
        }
        self.read(ctx);
        false
    }

    fn work(&mut self, ctx: &mut Context) -> bool {
        self.read(ctx);
        false
    }

    fn work_at(&self) -> Option<Instant> {
        let recheck = self.recheck().filter(|_| !self.reading.retry.is_in_flight());
        soonest([self.reading.retry.deadline(), recheck])
    }

    fn answered(&mut self, ctx: &mut Context, serial: u64, reply: &Reply) -> bool {
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
                self.asking.emit(ctx, event);
                if self.watch.is_some_and(|watch| watch.open.is_none()) {
                    self.reading.retry.set_due(Some(ctx.now + POLL));
                }
                if self.reading.is_behind() {
                    self.reading.retry.set_due(None);
                    self.read(ctx);
                }
                self.asking.until.is_some()
            }
            Reply::Refused(_) if reply.is_refusal() => {
                self.asking.answer = answer(reply);
                self.asking.fail(ctx, Failure::Refused);
                true
            }
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                self.asking.answer = answer(reply);
                reading.retry.failed(ctx.now + pause(ctx.seed, ctx.now.as_nanos(), reading.retry.tries()));
                if self.watch.is_some() {
                    self.asking.emit(ctx, ElectionEvent::Disconnected);
                }
                false
            }
        }
    }

    fn close(&mut self, ctx: &mut Context) {
        if let Some(watch) = self.watch {
            ctx.close_watch(watch.id);
        }
    }
}

impl Query {
    fn watch(&mut self, ctx: &mut Context) {
        self.watch = Some(Watched { id: ctx.watch_queue(self.asking.id.slot, &self.queue), open: None });
    }

    /// Reads the leader if it may have changed.
    fn read(&mut self, ctx: &mut Context) {
        let retry = &self.reading.retry;
        let polled = retry.due().is_some() && self.watch.is_some();
        let ready = retry.is_ready(ctx.now) && (self.reading.is_behind() || polled);
        if retry.is_in_flight() || !(ready || self.recheck().is_some_and(|at| at <= ctx.now)) {
            return;
        }
        // A refused watch is requested anew.
        if self.watch.is_some_and(|watch| !ctx.has_watch(watch.id)) {
            self.watch(ctx);
        }
        self.recheck = self.watch.map(|_| ctx.recheck_of(self.asking.id.slot));
        let request = Request::First { queue: self.queue.clone() };
        let serial = ctx.call(CallOwner::Query(self.asking.id.slot), NodeId(0), request, ctx.config.request_timeout);
        self.reading.sent(serial, self.reading.reported);
    }

    /// Returns the next reread. After a failure, only the backoff applies.
    fn recheck(&self) -> Option<Instant> {
        self.recheck.filter(|_| self.reading.retry.tries() == 0)
    }

    pub(crate) fn watching(&mut self, ctx: &mut Context, revision: i64) {
        if let Some(watch) = &mut self.watch {
            watch.open = Some(revision);
        }
        // The open watch replaces polling, but not the backoff after a failure.
        if self.reading.retry.tries() == 0 {
            self.reading.retry.set_due(None);
        }
        // After `Disconnected`, report the current leader again.
        if self.asking.last_event == Some(ElectionEvent::Disconnected) {
            self.reading.known = 0;
        }
        self.reading.report(revision);
        self.read(ctx);
    }

    pub(crate) fn changed(&mut self, ctx: &mut Context, revision: i64) {
        self.reading.report(revision);
        self.read(ctx);
    }

    pub(crate) fn watch_refused(&mut self, ctx: &mut Context) {
        if let Some(watch) = self.watch {
            ctx.shared.own.watchers.remove(&watch.id);
        }
        self.unsubscribed(ctx);
    }

    pub(crate) fn unsubscribed(&mut self, ctx: &mut Context) {
        if let Some(watch) = &mut self.watch {
            watch.open = None;
        }
        self.reading.poll_at(ctx.now + POLL);
        self.asking.emit(ctx, ElectionEvent::Disconnected);
    }
}

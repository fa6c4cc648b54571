//! A query for the leader of an election, or an observation of it.
// E10

use super::{Etcd, EtcdEnv, EtcdName, POLL, WatchedKey};
use crate::error::Misuse;
use crate::etcd::reading::QueueReading;
use crate::etcd::request::{Found, Queue, Reply, Request};
use crate::id::{CallOwner, NodeId};
use crate::lock::{Failure, Leader, LeaderQuery, OpenOperation, OperationEvent, QueueProtocol as _};
use crate::time::{Instant, soonest};

/// What a query or observation reads and watches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EtcdQuery {
    queue: Queue,
    watch: Option<WatchedKey>,
    reading: QueueReading,
    call: Option<u64>,
    /// When an observer rereads without a report: the server may have lost an event.
    recheck: Option<Instant>,
}

impl LeaderQuery<Etcd> for EtcdQuery {
    type Reply = Reply;

    fn new(env: &EtcdEnv, name: &[u8]) -> Result<Self, Misuse> {
        let queue = EtcdName::election(&env.config, name)?;
        Ok(Self { queue, watch: None, reading: QueueReading::new(0, 1), call: None, recheck: None })
    }

    /// An observer watches all keys of the queue before it reads, and again if that was refused.
    fn read(&mut self, op: &mut OpenOperation, env: &mut EtcdEnv) -> bool {
        let Self { watch, reading, .. } = &*self;
        let polled = reading.retry.due().is_some() && watch.is_some();
        let ready = reading.retry.is_ready(env.now) && (reading.is_behind() || polled);
        if reading.retry.is_in_flight() || !(ready || self.recheck().is_some_and(|at| at <= env.now)) {
            return false;
        }
        if op.observes() && !watch.is_some_and(|watch| env.has_watch(watch.id)) {
            self.watch = Some(WatchedKey { id: env.watch_queue(op.slot(), &self.queue), open: None });
        }
        self.recheck = self.watch.map(|_| env.recheck_of(op.slot()));
        let request = Request::First { queue: self.queue.clone() };
        let serial = env.call(CallOwner::Operation(op.slot()), NodeId(0), request, env.config.request_timeout);
        self.reading.sent(self.reading.reported);
        self.call = Some(serial);
        false
    }

    fn read_at(&self) -> Option<Instant> {
        let retry = &self.reading.retry;
        let recheck = self.recheck().filter(|_| !retry.is_in_flight());
        soonest([retry.deadline(), recheck])
    }

    fn answered(&mut self, op: &mut OpenOperation, env: &mut EtcdEnv, serial: u64, reply: &Reply) -> bool {
        if self.call.take_if(|call| *call == serial).is_none() {
            return false;
        }
        let reading = &mut self.reading;
        reading.retry.forget_call();
        match reply {
            Reply::Done(Found::Queue { revision, older, .. }) => {
                // Later changes may be newer than the reply, but earlier ones are included. A reply
                // that says otherwise must not cause a read loop.
                reading.known = reading.known.max(*revision).max(reading.min_revision);
                reading.retry.succeeded();
                // A foreign key does not lead, and no candidate behind it is elected.
                // E2
                let event = match older.as_ref().filter(|kv| !self.queue.is_foreign(&kv.key)) {
                    None => OperationEvent::NoLeader,
                    Some(kv) => OperationEvent::Leader(Leader {
                        key: kv.key.clone(),
                        value: kv.value.clone(),
                        create_revision: kv.create_revision,
                        mod_revision: kv.mod_revision,
                    }),
                };
                op.emit(env, event);
                if self.watch.is_some_and(|watch| watch.open.is_none()) {
                    self.reading.retry.set_due(Some(env.now + POLL));
                }
                if self.reading.is_behind() {
                    self.reading.retry.set_due(None);
                    self.read(op, env);
                }
                !op.observes()
            }
            Reply::Refused(_) if reply.is_refusal() => op.end(env, reply.answer(), Failure::Refused),
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                env.back_off(&mut reading.retry);
                op.disconnected(env, Some(reply.answer()));
                false
            }
        }
    }

    fn close(&self, env: &mut EtcdEnv) {
        if let Some(watch) = self.watch {
            env.close_watch(watch.id);
        }
    }
}

impl EtcdQuery {
    /// Returns the next reread. After a failure, only the backoff applies.
    fn recheck(&self) -> Option<Instant> {
        self.recheck.filter(|_| self.reading.retry.tries() == 0)
    }

    pub(crate) fn watching(&mut self, op: &mut OpenOperation, env: &mut EtcdEnv, revision: i64) {
        if let Some(watch) = &mut self.watch {
            watch.open = Some(revision);
        }
        // The open watch replaces polling, but not the backoff after a failure.
        if self.reading.retry.tries() == 0 {
            self.reading.retry.set_due(None);
        }
        let reading = &mut self.reading;
        reading.opened_at(revision);
        // After `Disconnected`, report the current leader again.
        if op.last_event == Some(OperationEvent::Disconnected) {
            reading.known = 0;
        }
        (reading.reported, reading.min_revision) = (revision, reading.min_revision.min(revision));
        self.read(op, env);
    }

    pub(crate) fn changed(&mut self, op: &mut OpenOperation, env: &mut EtcdEnv, revision: i64) {
        self.reading.report(revision);
        self.read(op, env);
    }

    pub(crate) fn watch_refused(&mut self, _: &mut OpenOperation, env: &mut EtcdEnv) {
        if let Some(watch) = self.watch {
            env.shared.own.watchers.remove(&watch.id);
        }
        // The server can be reached. If it also refuses reads, the next one shows it.
        self.poll_without_watch(env);
    }

    pub(crate) fn unsubscribed(&mut self, op: &mut OpenOperation, env: &mut EtcdEnv) {
        self.poll_without_watch(env);
        op.emit(env, OperationEvent::Disconnected);
    }

    fn poll_without_watch(&mut self, env: &EtcdEnv) {
        if let Some(watch) = &mut self.watch {
            watch.open = None;
        }
        self.reading.poll_at(env.now + POLL);
    }
}

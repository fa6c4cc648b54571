//! A query for the leader of an election, or an observation of it.
// E10

use super::{EtcdEnv, EtcdName, POLL, WatchedKey};
use crate::etcd::reading::QueueReading;
use crate::etcd::request::{Found, Reply, Request};
use crate::id::{CallOwner, NodeId};
use crate::lock::{self, ElectionEvent, Leader};
use crate::time::{Instant, soonest};

pub(crate) type EtcdQuery = lock::LeaderQuery<EtcdName>;

/// What a query or observation reads and watches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EtcdLeaderRead {
    watch: Option<WatchedKey>,
    reading: QueueReading,
    call: Option<u64>,
    /// When an observer rereads without a report: the server may have lost an event.
    recheck: Option<Instant>,
}

impl Default for EtcdLeaderRead {
    fn default() -> Self {
        Self { watch: None, reading: QueueReading::new(0, 1), call: None, recheck: None }
    }
}

impl EtcdQuery {
    /// An observer watches all keys of the queue before it reads, and again if that was refused.
    pub(super) fn read_leader(&mut self, env: &mut EtcdEnv) {
        let EtcdLeaderRead { watch, reading, .. } = &self.own;
        let polled = reading.retry.due().is_some() && watch.is_some();
        let ready = reading.retry.is_ready(env.now) && (reading.is_behind() || polled);
        if reading.retry.is_in_flight() || !(ready || self.recheck().is_some_and(|at| at <= env.now)) {
            return;
        }
        if self.observes() && !watch.is_some_and(|watch| env.has_watch(watch.id)) {
            self.own.watch = Some(WatchedKey { id: env.watch_queue(self.id.slot, &self.queue), open: None });
        }
        self.own.recheck = self.own.watch.map(|_| env.recheck_of(self.id.slot));
        let request = Request::First { queue: self.queue.clone() };
        let serial = env.call(CallOwner::Query(self.id.slot), NodeId(0), request, env.config.request_timeout);
        self.own.reading.sent(self.own.reading.reported);
        self.own.call = Some(serial);
    }

    pub(super) fn read_at(&self) -> Option<Instant> {
        let retry = &self.own.reading.retry;
        let recheck = self.recheck().filter(|_| !retry.is_in_flight());
        soonest([retry.deadline(), recheck])
    }

    pub(super) fn answered(&mut self, env: &mut EtcdEnv, serial: u64, reply: &Reply) -> bool {
        if self.own.call.take_if(|call| *call == serial).is_none() {
            return false;
        }
        let reading = &mut self.own.reading;
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
                    None => ElectionEvent::NoLeader,
                    Some(kv) => ElectionEvent::Leader(Leader {
                        key: kv.key.clone(),
                        value: kv.value.clone(),
                        create_revision: kv.create_revision,
                        mod_revision: kv.mod_revision,
                    }),
                };
                self.emit(env, event);
                if self.own.watch.is_some_and(|watch| watch.open.is_none()) {
                    self.own.reading.retry.set_due(Some(env.now + POLL));
                }
                if self.own.reading.is_behind() {
                    self.own.reading.retry.set_due(None);
                    self.read_leader(env);
                }
                !self.observes()
            }
            Reply::Refused(_) if reply.is_refusal() => self.refused(env, reply.answer()),
            Reply::Done(_) | Reply::Refused(_) | Reply::Unknown(_) | Reply::NotSent(_) => {
                env.back_off(&mut reading.retry);
                self.disconnected(env, reply.answer());
                false
            }
        }
    }

    pub(super) fn close(&self, env: &mut EtcdEnv) {
        if let Some(watch) = self.own.watch {
            env.close_watch(watch.id);
        }
    }

    /// Returns the next reread. After a failure, only the backoff applies.
    fn recheck(&self) -> Option<Instant> {
        self.own.recheck.filter(|_| self.own.reading.retry.tries() == 0)
    }

    pub(crate) fn watching(&mut self, env: &mut EtcdEnv, revision: i64) {
        if let Some(watch) = &mut self.own.watch {
            watch.open = Some(revision);
        }
        // The open watch replaces polling, but not the backoff after a failure.
        if self.own.reading.retry.tries() == 0 {
            self.own.reading.retry.set_due(None);
        }
        let reading = &mut self.own.reading;
        reading.opened_at(revision);
        // After `Disconnected`, report the current leader again.
        if self.last_event == Some(ElectionEvent::Disconnected) {
            reading.known = 0;
        }
        (reading.reported, reading.min_revision) = (revision, reading.min_revision.min(revision));
        self.read_leader(env);
    }

    pub(crate) fn changed(&mut self, env: &mut EtcdEnv, revision: i64) {
        self.own.reading.report(revision);
        self.read_leader(env);
    }

    pub(crate) fn watch_refused(&mut self, env: &mut EtcdEnv) {
        if let Some(watch) = self.own.watch {
            env.shared.own.watchers.remove(&watch.id);
        }
        // The server can be reached. If it also refuses reads, the next one shows it.
        self.poll_without_watch(env);
    }

    pub(crate) fn unsubscribed(&mut self, env: &mut EtcdEnv) {
        self.poll_without_watch(env);
        self.emit(env, ElectionEvent::Disconnected);
    }

    fn poll_without_watch(&mut self, env: &EtcdEnv) {
        if let Some(watch) = &mut self.own.watch {
            watch.open = None;
        }
        self.own.reading.poll_at(env.now + POLL);
    }
}

//! A question for the leader of an election, or an observation of it.
// RG8

use bytes::Bytes;

use super::known::Known;
use super::watch::KeyWatch;
use super::{Cas, RegisterEnv, RegisterShared};
use crate::error::Misuse;
use crate::fault::{Breach, Fault};
use crate::id::{CallOwner, NodeId};
use crate::jitter::jitter;
use crate::lock::{Answer, ErrorClass, Failure, Leader, LeaderQuery, OpenOperation, OperationEvent};
use crate::register::output::Output;
use crate::register::request::{Reply, Request};
use crate::time::{Instant, soonest};

/// A query for the leader, or an observation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RegisterQuery {
    key: Bytes,
    known: Known,
    /// The read in flight: its serial, when it left, and its deadline.
    call: Option<(u64, Instant, Instant)>,
    /// When to read next.
    read_at: Instant,
    watch: KeyWatch,
}

impl LeaderQuery<Cas> for RegisterQuery {
    type Reply = Reply;

    fn new(env: &RegisterEnv, name: &[u8]) -> Result<Self, Misuse> {
        let (key, known) = (RegisterShared::key(&env.config, name), Known::default());
        Ok(Self { key, known, call: None, read_at: env.now, watch: KeyWatch::Off })
    }

    fn read_at(&self) -> Option<Instant> {
        Some(self.call.map_or(self.read_at, |(_, _, deadline)| deadline))
    }

    fn read(&mut self, op: &mut OpenOperation, env: &mut RegisterEnv) -> bool {
        if self.call.take_if(|(_, _, deadline)| *deadline <= env.now).is_some() {
            return self.failed(op, env, Answer::Unknown(Fault::TimedOut.into()));
        }
        if self.call.is_none() && self.read_at <= env.now {
            self.watch.poll();
            self.send(op, env);
        }
        false
    }

    fn answered(&mut self, op: &mut OpenOperation, env: &mut RegisterEnv, serial: u64, reply: &Reply) -> bool {
        let Some((_, departed, _)) = self.call.take_if(|(sent, ..)| *sent == serial) else { return false };
        let entry = match reply {
            Reply::Record(entry) => Some(entry.clone()),
            Reply::Absent => None,
            Reply::Rejected(error) => return self.failed(op, env, Answer::Rejected(error.clone())),
            Reply::NotSent(cause) => return self.failed(op, env, Answer::Unreachable(cause.clone())),
            Reply::Unknown(cause) => return self.failed(op, env, Answer::Unknown(cause.clone())),
            Reply::Written(_) | Reply::Conflict => {
                return self.failed(op, env, Answer::Unknown(Fault::Protocol(Breach::WrongReply).into()));
            }
        };
        self.known.show(env.now, departed, entry, env.shared.client, &env.config);
        let expiry = self.known.expires_at();
        let leads = expiry.is_some_and(|at| at > env.now);
        let event = match self.known.record().filter(|_| leads) {
            Some(record) => OperationEvent::Leader(Leader {
                key: self.key.clone(),
                value: record.value.clone(),
                create_revision: revision(record.fence),
                mod_revision: revision(record.version),
            }),
            None => OperationEvent::NoLeader,
        };
        // A renewal changes the version, and nothing that an observer asked for.
        let is_news = match (&op.last_event, &event) {
            (Some(OperationEvent::Leader(last)), OperationEvent::Leader(now)) => {
                last.value != now.value || last.create_revision != now.create_revision
            }
            (last, event) => last.as_ref() != Some(event),
        };
        if is_news {
            op.emit(env, event);
        }
        if !op.observes() {
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

    fn close(&self, env: &mut RegisterEnv) {
        if self.watch.is_on() {
            env.unwatch(&self.key);
        }
    }
}

impl RegisterQuery {
    fn send(&mut self, op: &OpenOperation, env: &mut RegisterEnv) {
        let call = env.next_call(CallOwner::Operation(op.slot()), NodeId::new(0));
        let timeout = env.config.request_timeout;
        self.call = Some((call.serial, env.now, env.now + timeout));
        env.out.push_back(Output::Send { call, request: Request::Read { key: self.key.clone() }, timeout });
    }

    fn later(&mut self, env: &RegisterEnv) {
        let every = env.config.poll_interval().max;
        self.read_at = env.now + every.saturating_sub(jitter(env.seed, env.serial, every / 4));
    }

    fn failed(&mut self, op: &mut OpenOperation, env: &mut RegisterEnv, answer: Answer) -> bool {
        let is_in_use = matches!(&answer, Answer::Rejected(error) if error.class == ErrorClass::KeyInUse);
        if is_in_use || answer.is_refusal() {
            return op.end(env, answer, if is_in_use { Failure::KeyInUse } else { Failure::Refused });
        }
        op.disconnected(env, Some(answer));
        self.later(env);
        false
    }
}

/// Revisions are signed on the stores that have numbered ones.
fn revision(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl RegisterEnv {
    /// A waiter or an observer does not watch the key any more. Ends the watch unless another does.
    // RG7
    pub(super) fn unwatch(&mut self, key: &Bytes) {
        let observed = |query: &RegisterQuery| query.key == *key && query.watch.is_on();
        if !self.shared.watched.contains(key) && !self.operations.queries().any(|(_, query)| observed(query)) {
            self.out.push_back(Output::Unwatch { key: key.clone() });
        }
    }

    /// The key may have changed.
    pub(in crate::register) fn query_changed(&mut self, key: &[u8]) {
        self.query_steps(|query, op, env| {
            if query.key == key && query.watch.report(query.call.is_some()) && query.call.is_none() {
                query.send(op, env);
            }
            false
        });
    }
}

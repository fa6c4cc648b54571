//! A check of the servers that takes no lock.

use alloc::vec::Vec;

use super::answer::{Answer, refusals_are_undecided};
use super::context::Env;
use super::event::{Failure, Report};
use super::hub::Locks;
use super::store::{SharedState as _, Store};
use crate::error::Misuse;
use crate::id::{CallId, CallOwner, NodeId};
use crate::time::Instant;

/// The state of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Ping {
    #[default]
    Idle,
    Waiting {
        started: Instant,
        /// The call to each server.
        serials: Vec<u64>,
        /// [`Answer::Silent`] until the server replies.
        answers: Vec<Answer>,
    },
    Done(Result<(), Failure>),
}

impl<S: Store> Locks<S> {
    /// Checks the servers: see [`LockClient::ping`](super::LockClient::ping).
    ///
    /// # Errors
    ///
    /// [`Misuse::ShuttingDown`].
    pub fn ping(&mut self, now: Instant) -> Result<(), Misuse> {
        self.handle_timeout(now);
        if self.ctx.env.is_stopping {
            return Err(Misuse::ShuttingDown);
        }
        if !matches!(self.ping, Ping::Waiting { .. }) {
            let (started, servers) = (self.ctx.env.now, self.ctx.env.shared.servers());
            let serials = (0..servers).map(|node| self.ctx.env.ping(NodeId::new(node))).collect();
            let answers = alloc::vec![Answer::Silent; usize::from(servers)];
            self.ping = Ping::Waiting { started, serials, answers };
        }
        Ok(())
    }

    /// Returns the result of a check: see [`LockClient::poll_ping`](super::LockClient::poll_ping).
    pub fn poll_ping(&mut self) -> Option<Result<(), Failure>> {
        if let Ping::Done(result) = &mut self.ping {
            let result = core::mem::replace(result, Ok(()));
            self.ping = Ping::Idle;
            return Some(result);
        }
        None
    }

    /// Handles a server's reply; [`Answer::Granted`] if it works.
    #[cold]
    pub(crate) fn pong(&mut self, call: CallId, answer: Answer) {
        let Ping::Waiting { started, serials, answers } = &mut self.ping else { return };
        let node = call.node.index();
        let Some(known) = answers.get_mut(node).filter(|_| serials.get(node) == Some(&call.serial)) else { return };
        *known = answer;
        if let Some(failure) = self.ctx.env.shared.refuses() {
            self.ping = Ping::Done(Err(failure));
            return;
        }
        let quorum = answers.len() / 2 + 1;
        let count = |is: fn(&Answer) -> bool| answers.iter().filter(|answer| is(answer)).count();
        let works = count(|answer| *answer == Answer::Granted);
        let silent = count(|answer| *answer == Answer::Silent);
        let refused = count(is_refusal);
        if works >= quorum {
            self.ping = Ping::Done(Ok(()));
        } else if works + silent < quorum && !refusals_are_undecided(refused, silent, answers.len() - quorum) {
            let report = Report::new(self.ctx.env.now.since(*started), core::mem::take(answers).into_boxed_slice());
            let hopeless = report.nodes.len() - refused < quorum;
            self.ping = Ping::Done(Err(if hopeless { Failure::Refused(report) } else { Failure::TimedOut(report) }));
        }
    }

    /// Repeats the request of this call.
    pub(crate) fn ping_again(&mut self, call: CallId) {
        if let Ping::Waiting { serials, .. } = &mut self.ping
            && let Some(serial) = serials.iter_mut().find(|serial| **serial == call.serial)
        {
            *serial = self.ctx.env.ping(call.node);
        }
    }

    /// The client is shutting down.
    pub(crate) fn end_ping(&mut self) {
        if matches!(self.ping, Ping::Waiting { .. }) {
            self.ping = Ping::Done(Err(Failure::ShuttingDown));
        }
    }
}

impl<S: Store> Env<S> {
    fn ping(&mut self, node: NodeId) -> u64 {
        let call = self.next_call(CallOwner::Ping, node);
        S::Shared::ping(self, call);
        call.serial
    }
}

/// Unlike an acquisition, a ping is not retried: an alert after the handshake is a refusal, too.
fn is_refusal(answer: &Answer) -> bool {
    answer.is_refusal() || matches!(answer, Answer::Unknown(cause) if cause.is_refusal())
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::fault::Fault;
    use crate::id::ClientId;
    use crate::lock::{ErrorClass, ServerError};
    use crate::redis::{Config, Endpoint, Locks, LocksOutput, Reply, Request, ServerInfo};
    use core::time::Duration;

    const NOW: Instant = Instant::from_millis(5);

    fn locks(nodes: usize) -> Locks {
        let endpoints = (0..nodes).map(|n| Endpoint::parse(&alloc::format!("redis://h{n}")).unwrap());
        Locks::new(NOW, Config::new(endpoints), ClientId::from_bits(1), 7).unwrap()
    }

    fn sent(locks: &mut Locks) -> Vec<CallId> {
        let next = || match locks.poll_output()? {
            LocksOutput::Send { call, request: Request::Extend { number: 0, fence_block: 0, .. } } => Some(call),
            other @ (LocksOutput::Send { .. }
            | LocksOutput::Event { .. }
            | LocksOutput::Listen { .. }
            | LocksOutput::Unlisten { .. }
            | LocksOutput::Stopped { .. }) => panic!("{other:?}"),
        };
        core::iter::from_fn(next).collect()
    }

    /// Answers each node's request, in order, and returns the result after each answer.
    fn answered(replies: &[Reply]) -> Vec<Option<Result<(), Failure>>> {
        let mut locks = locks(replies.len());
        locks.ping(NOW).unwrap();
        let calls = sent(&mut locks);
        let answer = |(call, reply): (&CallId, &Reply)| {
            locks.handle_reply(NOW, *call, reply);
            locks.poll_ping()
        };
        calls.iter().zip(replies).map(answer).collect()
    }

    fn refused() -> Reply {
        Reply::Rejected(ServerError { class: ErrorClass::Refused, text: "WRONGPASS".into() })
    }

    fn down() -> Reply {
        Reply::NotSent(Fault::Refused.into())
    }

    #[test]
    fn majority_decides_as_early_as_possible() {
        assert_eq!(answered(&[Reply::Absent]), [Some(Ok(()))]);
        assert_eq!(answered(&[Reply::Taken, down(), Reply::Absent]), [None, None, Some(Ok(()))]);
        assert_eq!(answered(&[Reply::Absent, Reply::Absent, down()]), [None, Some(Ok(())), None]);
        let failed = answered(&[down(), Reply::Absent, refused()]);
        assert!(matches!(&failed[..], [None, None, Some(Err(Failure::TimedOut(report)))] if report.nodes.len() == 3));
        let failed = answered(&[down(), refused(), refused()]);
        assert!(matches!(&failed[..], [None, None, Some(Err(Failure::Refused(_)))]), "{failed:?}");
        let failed = answered(&[refused(), down(), Reply::Absent]);
        assert!(matches!(&failed[..], [None, None, Some(Err(Failure::TimedOut(_)))]), "{failed:?}");
        let failed = answered(&[refused(), refused(), Reply::Absent]);
        assert!(matches!(&failed[..], [None, Some(Err(Failure::Refused(_))), None]));
        assert!(matches!(&answered(&[Reply::Announced])[..], [Some(Err(Failure::TimedOut(_)))]), "a wrong reply");
    }

    /// The check succeeded, and each acquisition failed.
    #[test]
    fn equal_nodes_fail_ping() {
        // Q6
        let mut locks = locks(3);
        locks.ping(NOW).unwrap();
        let server = Ok(ServerInfo { run_id: "same".into(), uptime: Duration::from_secs(99) });
        for node in [0, 2] {
            locks.handle_node_up(NOW, NodeId::new(node), Some(&server));
        }
        for call in sent(&mut locks) {
            locks.handle_reply(NOW, call, &Reply::Absent);
        }
        assert!(matches!(locks.poll_ping(), Some(Err(Failure::EqualNodes(..)))));
    }

    #[test]
    fn second_ping_joins_first_and_result_is_returned_once() {
        let mut locks = locks(1);
        assert_eq!(locks.poll_ping(), None);
        locks.ping(NOW).unwrap();
        locks.ping(NOW).unwrap();
        let calls = sent(&mut locks);
        assert_eq!((calls.len(), locks.poll_ping()), (1, None));
        locks.handle_reply(NOW, calls[0], &Reply::Absent);
        assert_eq!((locks.poll_ping(), locks.poll_ping()), (Some(Ok(())), None));
        // A late reply to an earlier check does not count.
        locks.ping(NOW).unwrap();
        locks.handle_reply(NOW, calls[0], &Reply::Absent);
        assert_eq!((sent(&mut locks).len(), locks.poll_ping()), (1, None));
    }

    #[test]
    fn shutdown_ends_ping() {
        let mut locks = locks(1);
        locks.ping(NOW).unwrap();
        locks.shutdown(NOW, Duration::from_secs(1));
        assert_eq!(locks.poll_ping(), Some(Err(Failure::ShuttingDown)));
        assert_eq!(locks.ping(NOW), Err(Misuse::ShuttingDown));
    }
}

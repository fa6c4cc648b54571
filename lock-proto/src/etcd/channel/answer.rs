//! Turns the reply to a call into replies to the requests in it.

use super::calls::{InFlight, Sent};
use super::{Channel, ChannelOutput, batch};
use crate::etcd::request::{Refusal, Reply};
use crate::etcd::rpc::{RpcReply, Status};
use crate::etcd::status::Meaning;
use crate::fault::{Breach, Fault};
use crate::id::CallId;
use crate::lock::{Cause, ErrorClass};

impl Channel {
    pub(super) fn reply(&mut self, call: CallId, reply: Reply) {
        self.outputs.push_back(ChannelOutput::Reply { call, reply });
    }

    pub(super) fn not_sent(&mut self, call: CallId, cause: Cause) {
        self.reply(call, Reply::NotSent(cause));
    }

    /// Answers every request of a call. They share one outcome: done, refused or unknown.
    // E11
    pub(super) fn answered(&mut self, sent: Sent, result: Result<RpcReply, Status>) {
        match result {
            Ok(answer) => self.succeeded(sent, answer),
            Err(status) => self.failed(sent, &status),
        }
    }

    fn succeeded(&mut self, sent: Sent, answer: RpcReply) {
        let mismatch = match sent {
            Sent::Single(one) => self.read(&one, Some(answer)),
            Sent::Batch(all) => {
                let mut answers = batch::split(answer, all.len()).unwrap_or_default().into_iter();
                all.iter().filter(|one| self.read(one, answers.next())).count() > 0
            }
        };
        if mismatch {
            // A server that violates the protocol is not trusted with anything else.
            self.fail(Fault::Protocol(Breach::WrongReply).into(), true);
        }
    }

    /// Answers one request. Returns true if the reply does not fit it.
    fn read(&mut self, sent: &InFlight, answer: Option<RpcReply>) -> bool {
        let breach = Fault::Protocol(Breach::WrongReply).into();
        let reply = answer.map_or(Reply::Unknown(breach), |answer| sent.call.request.read(answer));
        let mismatch = matches!(reply, Reply::Unknown(_));
        self.reply(sent.call.call, reply);
        mismatch
    }

    fn failed(&mut self, sent: Sent, status: &Status) {
        let meaning = Meaning::of(status);
        let elsewhere = meaning.elsewhere().then(|| meaning.clone().error(status));
        if let Sent::Batch(all) = &sent
            && meaning.blames_the_request()
        {
            self.state.calls.shrink_batches(all.len());
        }
        match (sent, meaning) {
            (sent, Meaning::Unknown { error, .. }) => {
                for sent in sent.into_all() {
                    self.reply(sent.call.call, Reply::Unknown(error.clone().into()));
                }
            }
            // Nothing was executed, perhaps because of a single request. Retry each of them alone.
            (Sent::Batch(all), _) => all.into_iter().for_each(|sent| self.state.calls.requeue(self.now, sent)),
            (Sent::Single(sent), Meaning::LogIn(_)) if self.state.config.logs_in() && !sent.call.retried => {
                let login = sent.login;
                self.state.calls.requeue(self.now, sent);
                return self.log_in_again(login);
            }
            (Sent::Single(sent), Meaning::Refused(refusal)) => self.reply(sent.call.call, Reply::Refused(refusal)),
            (Sent::Single(sent), meaning @ (Meaning::LogIn(_) | Meaning::LoginNotNeeded)) => {
                let expired = self.state.config.logs_in()
                    && matches!(meaning, Meaning::LogIn(_))
                    && self.state.login.may_have_expired(self.now, sent.login);
                let mut error = meaning.error(status);
                if expired {
                    // Another attempt logs in again.
                    error.class = ErrorClass::Transient;
                }
                self.reply(sent.call.call, Reply::Refused(Refusal::Error(error)));
            }
        }
        if let Some(error) = elsewhere {
            self.fail(error.into(), true);
        }
    }
}

//! What the answer to a call means for the requests that were in it.

use super::calls::{Flying, Sent};
use super::{Channel, ChannelOutput, batch};
use crate::etcd::request::{Refusal, Reply};
use crate::etcd::rpc::{RpcReply, Status};
use crate::etcd::status::Meaning;
use crate::fault::{Breach, Fault};
use crate::id::CallId;
use crate::lock::Cause;

impl Channel {
    pub(super) fn reply(&mut self, call: CallId, reply: Reply) {
        self.out.push_back(ChannelOutput::Reply { call, reply });
    }

    pub(super) fn not_sent(&mut self, call: CallId, cause: Cause) {
        self.reply(call, Reply::NotSent(cause));
    }

    /// Answers every request of a call: all are done, refused, or of unknown outcome together.
    // E11
    pub(super) fn answered(&mut self, sent: Sent, result: Result<RpcReply, Status>) {
        match result {
            Ok(answer) => self.done(sent, answer),
            Err(status) => self.not_done(sent, &status),
        }
    }

    fn done(&mut self, sent: Sent, answer: RpcReply) {
        let nonsense = match sent {
            Sent::Alone(one) => self.read(&one, Some(answer)),
            Sent::Together(all) => {
                let mut answers = batch::apart(answer, all.len()).unwrap_or_default().into_iter();
                all.iter().filter(|one| self.read(one, answers.next())).count() > 0
            }
        };
        if nonsense {
            // What answers nonsense may do anything.
            self.give_up(Fault::Protocol(Breach::WrongReply).into());
        }
    }

    /// Returns true if this is no answer to the request.
    fn read(&mut self, sent: &Flying, answer: Option<RpcReply>) -> bool {
        let breach = Fault::Protocol(Breach::WrongReply).into();
        let reply = answer.map_or(Reply::Unknown(breach), |answer| sent.call.request.read(answer));
        let nonsense = matches!(reply, Reply::Unknown(_));
        self.reply(sent.call.call, reply);
        nonsense
    }

    fn not_done(&mut self, sent: Sent, status: &Status) {
        let meaning = Meaning::of(status);
        let elsewhere = meaning.elsewhere().then(|| meaning.clone().error(status));
        if let Sent::Together(all) = &sent
            && meaning.blames_the_request()
        {
            self.calls.fewer_than(all.len());
        }
        match (sent, meaning) {
            (sent, Meaning::Unknown { error, .. }) => {
                for sent in sent.into_all() {
                    self.reply(sent.call.call, Reply::Unknown(error.clone().into()));
                }
            }
            // Nothing was done, perhaps because of one of them: each is answered for itself.
            (Sent::Together(all), _) => all.into_iter().for_each(|sent| self.calls.again(self.now, sent)),
            (Sent::Alone(sent), Meaning::LogIn(_)) if self.config.user.is_some() && !sent.call.came_back => {
                let login = sent.login;
                self.calls.again(self.now, sent);
                return self.log_in_again(login);
            }
            (Sent::Alone(sent), Meaning::Refused(refusal)) => self.reply(sent.call.call, Reply::Refused(refusal)),
            (Sent::Alone(sent), meaning @ (Meaning::LogIn(_) | Meaning::LoginNotNeeded)) => {
                self.reply(sent.call.call, Reply::Refused(Refusal::Error(meaning.error(status))));
            }
        }
        if let Some(error) = elsewhere {
            self.give_up(error.into());
        }
    }
}

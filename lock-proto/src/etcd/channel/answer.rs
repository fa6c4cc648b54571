//! What the answer to a call means for the requests that were in it.

use alloc::vec::Vec;

use super::calls::Flying;
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

    pub(super) fn answered(&mut self, sent: Flying, result: Result<RpcReply, Status>) {
        let call = sent.call.call;
        let status = match result {
            Ok(answer) => {
                let reply = sent.call.request.read(answer);
                let nonsense = matches!(reply, Reply::Unknown(_));
                self.reply(call, reply);
                if nonsense {
                    // What answers nonsense may do anything.
                    self.give_up(Fault::Protocol(Breach::WrongReply).into());
                }
                return;
            }
            Err(status) => status,
        };
        let meaning = Meaning::of(&status);
        let elsewhere = meaning.elsewhere().then(|| meaning.clone().error(&status));
        match meaning {
            Meaning::LogIn(_) if self.config.user.is_some() && !sent.call.came_back => {
                let login = sent.login;
                self.calls.again(sent);
                return self.log_in_again(login);
            }
            Meaning::LogIn(error) => self.reply(call, Reply::Refused(Refusal::Error(error))),
            Meaning::Refused(refusal) => self.reply(call, Reply::Refused(refusal)),
            Meaning::Unknown { error, .. } => self.reply(call, Reply::Unknown(error.into())),
            Meaning::LoginNotNeeded => {
                let error = meaning.error(&status);
                self.reply(call, Reply::Refused(Refusal::Error(error)));
            }
        }
        if let Some(error) = elsewhere {
            self.give_up(error.into());
        }
    }

    /// What was sent in one transaction (requirement E11): done, refused, or of unknown outcome as a whole.
    pub(super) fn answered_together(&mut self, all: Vec<Flying>, result: Result<RpcReply, Status>) {
        let status = match result {
            Ok(answer) => {
                let mut answers = batch::apart(answer, all.len()).unwrap_or_default().into_iter();
                let mut nonsense = false;
                for sent in all {
                    let reply = answers.next().map_or_else(wrong_reply, |answer| sent.call.request.read(answer));
                    nonsense |= matches!(reply, Reply::Unknown(_));
                    self.reply(sent.call.call, reply);
                }
                if nonsense {
                    self.give_up(Fault::Protocol(Breach::WrongReply).into());
                }
                return;
            }
            Err(status) => status,
        };
        let meaning = Meaning::of(&status);
        let elsewhere = meaning.elsewhere().then(|| meaning.clone().error(&status));
        if meaning.blames_the_request() {
            self.calls.fewer_than(all.len());
        }
        match meaning {
            Meaning::LogIn(_) | Meaning::Refused(_) | Meaning::LoginNotNeeded => {
                // Nothing was done, perhaps because of one of them: each is answered for itself.
                all.into_iter().for_each(|sent| self.calls.again(sent));
            }
            Meaning::Unknown { error, .. } => {
                all.into_iter().for_each(|sent| self.reply(sent.call.call, Reply::Unknown(error.clone().into())));
            }
        }
        if let Some(error) = elsewhere {
            self.give_up(error.into());
        }
    }
}

const fn wrong_reply() -> Reply {
    Reply::Unknown(Cause::Fault(Fault::Protocol(Breach::WrongReply)))
}

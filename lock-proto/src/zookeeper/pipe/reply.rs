//! Replies and events: their order, their form, and errors of the session.
// ZK9

use super::protocol::answer;
use super::wire::SentRequest;
use super::{Pipe, PipeOutput, breach};
use crate::connection::Phase;
use crate::fault::{Breach, Fault};
use crate::lock::{Cause, ErrorClass};
use crate::time::Instant;
use crate::zookeeper::codec::{ErrorCode, MultiResult, OpCode, ReplyBody, ReplyHeader, XID_AUTH, XID_EVENT, XID_PING};
use crate::zookeeper::request::{Reply, SessionReport, class, server_error};

impl Pipe {
    pub(super) fn handle_reply(&mut self, frame: &[u8]) -> Result<(), Cause> {
        let (header, body) = ReplyHeader::decode(frame).map_err(breach)?;
        match header.xid {
            XID_EVENT => {
                let event = ReplyBody::decode_event(body).map_err(breach)?;
                if !self.state.wire.triggered() {
                    return Err(breach(Breach::TooManyPushes));
                }
                self.outputs.push_back(PipeOutput::Event(event));
                return Ok(());
            }
            XID_AUTH => {
                if !self.state.wire.login_done() {
                    return Err(breach(Breach::Unsolicited));
                }
                self.check(header.code)?;
                if let Phase::Handshake { handshake, .. } = self.phase {
                    self.complete(Some(handshake));
                }
                return Ok(());
            }
            _ => {}
        }
        // Replies have the order of the requests.
        // ZK9
        let sent = self.state.wire.first().filter(|sent| sent.xid == header.xid);
        let sent = sent.ok_or_else(|| breach(Breach::Unsolicited))?;
        if header.xid == XID_PING {
            self.state.wire.done();
            self.check(header.code)?;
            if self.is_up() {
                self.contacted(sent.emitted);
            }
            return Ok(());
        }
        self.state.last_zxid = self.state.last_zxid.max(header.zxid);
        self.contacted(sent.emitted);
        let reply = match header.code {
            ErrorCode::OK => Reply::Done(ReplyBody::decode(sent.code, body).map_err(breach)?),
            code => Reply::Refused(code),
        };
        // Servers of version 3.5 report errors of the session inside of a transaction.
        let error = match &reply {
            Reply::Done(ReplyBody::Multi(results)) => [ErrorCode::SESSION_EXPIRED, ErrorCode::SESSION_MOVED]
                .into_iter()
                .find(|code| results.contains(&MultiResult::Error(*code))),
            Reply::Refused(code) => Some(*code),
            Reply::Done(_) | Reply::Unknown(_) | Reply::NotSent(_) => None,
        };
        if error == Some(ErrorCode::SESSION_EXPIRED) {
            // Neither this request nor one behind it was executed.
            while let Some((call, _)) = self.state.wire.pop_unanswered() {
                self.outputs.extend(answer(call, false, &Fault::NotNeeded.into()));
            }
            self.expired();
            return Ok(());
        }
        if let Some(code) = error.filter(|code| matches!(class(*code), ErrorClass::Unclear | ErrorClass::Reconnect)) {
            return Err(server_error(code).into());
        }
        if let (OpCode::CloseSession, Some(code)) = (sent.code, error) {
            // The session exists. The next server may end it.
            return Err(server_error(code).into());
        }
        self.state.wire.done();
        if sent.code == OpCode::CloseSession {
            self.ended(true);
        } else if let Some(call) = sent.call {
            self.outputs.push_back(PipeOutput::Reply { call, reply });
        }
        Ok(())
    }

    /// Handles the header of a reply that is too long, and is dropped: a list or data of others,
    /// which must not cost all locks of the session their connection.
    // ZK9
    pub(super) fn handle_long_reply(&mut self, header: &[u8]) -> Result<(), Cause> {
        let (header, _) = ReplyHeader::decode(header).map_err(breach)?;
        let reads = |sent: &SentRequest| matches!(sent.code, OpCode::GetChildren | OpCode::GetData);
        let sent = self.state.wire.first().filter(|sent| sent.xid == header.xid && reads(sent));
        let (Some(sent), ErrorCode::OK) = (sent, header.code) else { return Err(breach(Breach::TooLong)) };
        self.state.last_zxid = self.state.last_zxid.max(header.zxid);
        self.contacted(sent.emitted);
        self.state.wire.done();
        if let Some(call) = sent.call {
            self.outputs.push_back(PipeOutput::Reply { call, reply: Reply::Refused(ErrorCode::REPLY_TOO_LONG) });
        }
        Ok(())
    }

    /// A reply shows that the server has heard of the session since `emitted`.
    // ZK1
    fn contacted(&mut self, emitted: Instant) {
        if self.state.contact + self.state.contact_every <= self.now {
            self.state.contact = self.now;
            self.report(SessionReport::Contact(emitted));
        }
    }

    /// Checks the reply to a ping or a login.
    fn check(&mut self, code: ErrorCode) -> Result<(), Cause> {
        match code {
            ErrorCode::OK => Ok(()),
            ErrorCode::SESSION_EXPIRED => {
                self.expired();
                Ok(())
            }
            ErrorCode::AUTH_FAILED => {
                let mut error = server_error(code);
                if self.renewal.reject(self.now, &error, self.state.config.reconnect) {
                    if matches!(self.phase, Phase::Handshake { .. }) {
                        // N19
                        self.replace(Some(error.into()));
                        return Ok(());
                    }
                    error.class = ErrorClass::Reconnect;
                }
                Err(error.into())
            }
            code => Err(server_error(code).into()),
        }
    }
}

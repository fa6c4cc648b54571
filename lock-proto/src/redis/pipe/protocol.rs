//! What the Redis protocol adds to a connection.

use alloc::collections::VecDeque;
use core::time::Duration;

use super::handshake::{Avoided, HandshakeStep};
use super::wire::{Job, PendingCommand, RespWire};
use super::{Hello, PipeConfig, PipeOutput};
use crate::connection::{Failed, Opening, Order, Policy, Protocol, Settlement};
use crate::fault::Fault;
use crate::lock::{Cause, Renewal};
use crate::redis::request::{Identity, Reply};
use crate::time::{Instant, soonest};
use crate::url::{Login, Target};

/// The Redis protocol on one connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Resp {
    pub(super) config: PipeConfig,
    pub(super) identity: Identity,
    pub(super) wire: RespWire,
    pub(super) avoided: Avoided,
    /// When bytes last arrived, without replies to logins on the open connection.
    pub(super) last_used: Instant,
    /// When the open connection was last reported to be idle.
    pub(super) idle_checked: Instant,
    /// Nothing needs a connection, so a failed one is not opened again.
    // P7
    pub(super) rests: bool,
}

/// The handshake: how many replies are missing, and what the others said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct HandshakeReplies {
    pub(super) unanswered: usize,
    pub(super) hello: Hello,
}

impl Resp {
    pub(super) fn new(config: PipeConfig, identity: Identity) -> Self {
        let (last_used, idle_checked) = (Instant::ZERO, Instant::ZERO);
        let (wire, avoided) = (RespWire::default(), Avoided::default());
        Self { config, identity, wire, avoided, last_used, idle_checked, rests: false }
    }

    /// Bytes arrived. A login on the open connection does not count as use.
    // P7
    #[inline]
    pub(super) fn used(&mut self, now: Instant) {
        if !(self.wire.awaits_login() && self.asks().is_some()) {
            self.last_used = now;
        }
    }
}

fn answer(job: Job, seen: bool, cause: &Cause) -> Option<PipeOutput> {
    let Job::Call { call, .. } = job else { return None };
    let cause = cause.clone();
    let reply = if seen { Reply::Unknown(cause) } else { Reply::NotSent(cause) };
    Some(PipeOutput::Reply { call, reply })
}

impl Protocol for Resp {
    type Handshake = HandshakeReplies;
    type Pending = PendingCommand;
    type Output = PipeOutput;

    #[inline]
    fn policy(&self) -> Policy {
        let PipeConfig { node, connect_timeout, reconnect, .. } = self.config;
        Policy { node, servers: 1, wanted: !self.rests, reopens: true, at_once: false, connect_timeout, reconnect }
    }

    fn target(&self) -> Option<&Target> {
        Some(&self.config.endpoint.target)
    }

    #[inline]
    fn asks(&self) -> Option<&Login> {
        let login = &self.config.endpoint.login;
        (self.config.request_credentials || login.password_file.is_some()).then_some(login)
    }

    fn order(&self, order: Order) -> Option<PipeOutput> {
        Some(match order {
            Order::Connect(conn) => PipeOutput::Connect(conn),
            Order::Credentials(conn, request) => PipeOutput::Credentials(conn, request),
            Order::Disconnect(conn, why) => PipeOutput::Disconnect(conn, why),
            Order::Down(cause) => PipeOutput::Down(cause),
        })
    }

    fn begin(&mut self, _: u64, _: u64) {
        self.wire = RespWire::default();
    }

    fn shake_hands(&mut self, opening: &mut Opening<'_, PipeOutput>) -> Result<Option<HandshakeReplies>, Fault> {
        let (endpoint, login) = (&self.config.endpoint, opening.renewal.login());
        if opening.open {
            self.wire.log_in_again(endpoint, login, opening.renewal.valid_until());
            return Ok(None);
        }
        let mut unanswered = 0;
        for step in HandshakeStep::of(&self.config, login).filter(|step| !self.avoided.contains(*step, opening.now)) {
            self.wire.login(step, endpoint, login);
            unanswered += 1;
        }
        opening.until = opening.renewal.valid_until().map_or(opening.until, |end| end.min(opening.until));
        Ok((unanswered > 0).then(|| HandshakeReplies { unanswered, hello: Hello::default() }))
    }

    fn established(
        &mut self,
        now: Instant,
        login: Option<HandshakeReplies>,
        renewal: &mut Renewal,
        outputs: &mut VecDeque<PipeOutput>,
    ) -> bool {
        renewal.confirm();
        (self.last_used, self.idle_checked) = (now, now);
        outputs.push_back(PipeOutput::Up(login.unwrap_or_default().hello));
        true
    }

    #[inline]
    fn queue(&mut self, _: Instant, pending: PendingCommand) {
        self.wire.queue(pending);
    }

    #[inline]
    fn silent_until(&self, heard: Instant) -> Option<Instant> {
        if self.wire.is_idle() {
            return None;
        }
        let silent = heard + self.config.request_timeout + self.wire.server_waits();
        soonest([Some(silent), self.wire.unsent_login_until()])
    }

    fn ended(&mut self, failed: &Failed<'_, HandshakeReplies>) -> Duration {
        self.rests = false;
        self.note_where_it_ended(failed.now, failed.cause);
        failed.lasted()
    }

    fn settle(&mut self, end: &Settlement<'_>, outputs: &mut VecDeque<PipeOutput>) {
        while let Some((job, seen)) = self.wire.pop_unanswered() {
            outputs.extend(answer(job, seen, end.cause));
        }
        self.wire = RespWire::default();
    }

    fn answer_unsent(&self, pending: PendingCommand, cause: &Cause) -> Option<PipeOutput> {
        answer(pending.job, false, cause)
    }
}

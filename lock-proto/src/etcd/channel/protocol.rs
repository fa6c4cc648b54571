//! What etcd's calls and streams add to a connection.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::convert::Infallible;
use core::time::Duration;

use super::calls::Calls;
use super::login::{self, LoginToken};
use super::members::Members;
use super::silence::Silence;
use super::streams::KeepAlives;
use super::watch::Watches;
use super::{ChannelConfig, ChannelOutput, OwnCall};
use crate::connection::{Failed, Opening, Order, Phase, Policy, Protocol, Settlement};
use crate::etcd::message::MemberListRequest;
use crate::etcd::output::Output;
use crate::etcd::request::{Refusal, Reply};
use crate::etcd::rpc::{Rpc, RpcId};
use crate::fault::Fault;
use crate::jitter::mix;
use crate::lock::{Cause, ErrorClass, Renewal, ServerError};
use crate::time::Instant;
use crate::url::{self, Target};

/// Calls and streams of one connection, and the endpoints in turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grpc {
    pub(super) config: ChannelConfig,
    pub(super) members: Members,
    /// The endpoint in use belongs to the cluster.
    // N22
    pub(super) verified: bool,
    /// Why the last connection failed. Cleared by the next successful login.
    pub(super) last_error: Option<Cause>,
    pub(super) silence: Silence,
    /// The channel's own request in flight.
    pub(super) own: Option<(u64, OwnCall)>,
    /// Since when nothing needs the connection.
    pub(super) idle_since: Option<Instant>,
    pub(super) login: LoginToken,
    pub(super) calls: Calls,
    pub(super) keep_alives: KeepAlives,
    pub(super) watches: Watches,
    /// Last id given to a call or a stream. Ids are never reused.
    pub(super) serial: u64,
}

/// The call before the first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FirstCall {
    /// The endpoint was reported by the cluster: does it belong to it?
    Verify(RpcId),
    /// The login.
    LogIn {
        /// The call.
        rpc: RpcId,
        /// The connection has the token of an earlier login.
        open: bool,
    },
}

impl Grpc {
    pub(super) fn new(config: ChannelConfig, seed: u64) -> Self {
        let members = Members::new(config.endpoints.clone(), config.sync_members, seed);
        // No batching with a user: only the server's check of each request enforces permissions.
        let calls = Calls::new(!config.logs_in());
        Self {
            config,
            members,
            verified: false,
            last_error: None,
            silence: Silence::default(),
            own: None,
            idle_since: None,
            login: LoginToken::default(),
            calls,
            keep_alives: KeepAlives::default(),
            watches: Watches::new(mix(seed, 1)),
            serial: 0,
        }
    }

    pub(super) fn is_needed(&self) -> bool {
        self.calls.any_waiting() || self.keep_alives.any_waiting() || self.watches.any()
    }

    fn call(&mut self, opening: &mut Opening<'_, ChannelOutput>, request: Rpc) -> RpcId {
        self.serial += 1;
        let rpc = RpcId { conn: opening.conn, serial: self.serial };
        opening.outputs.push_back(ChannelOutput::Do(Output::Call { rpc, request, token: None }));
        rpc
    }

    pub(super) fn refuse_queued(&mut self, error: &ServerError, outputs: &mut VecDeque<ChannelOutput>) {
        while let Some(call) = self.calls.pop_waiting().or_else(|| self.keep_alives.pop_waiting()) {
            outputs.push_back(ChannelOutput::Reply { call, reply: Reply::Refused(Refusal::Error(error.clone())) });
        }
        self.watches.refuse_all(error, outputs);
    }
}

impl Protocol for Grpc {
    type Handshake = FirstCall;
    /// Requests wait here, across connections.
    type Pending = Infallible;
    type Output = ChannelOutput;

    fn policy(&self) -> Policy {
        Policy {
            node: self.members.node(),
            servers: self.members.count(),
            wanted: self.is_needed(),
            reopens: true,
            at_once: true,
            connect_timeout: self.config.connect_timeout,
            reconnect: self.config.reconnect,
        }
    }

    fn target(&self) -> Option<&Target> {
        self.members.current().map(|endpoint| &endpoint.target)
    }

    fn asks(&self) -> Option<&url::Login> {
        (self.verified && self.config.requests_credentials()).then_some(&self.config.login)
    }

    fn order(&self, order: Order) -> Option<ChannelOutput> {
        Some(ChannelOutput::Do(match order {
            Order::Connect(conn) => {
                let endpoint = Box::new(self.members.current()?.clone());
                Output::Connect { node: conn.node(), conn, endpoint }
            }
            Order::Credentials(conn, request) => Output::Credentials { conn, request },
            Order::Disconnect(conn, why) => Output::Disconnect { conn, why },
            Order::Down(_) => return None,
        }))
    }

    fn begin(&mut self, seed: u64, generation: u64) {
        self.members.update(mix(seed, generation));
        self.verified = !self.members.is_reported();
    }

    /// Asks a reported member for its cluster, before any login is sent to it. A login is a write,
    /// so it may take as long as one.
    // N22, E13
    fn shake_hands(&mut self, opening: &mut Opening<'_, ChannelOutput>) -> Result<Option<FirstCall>, Fault> {
        if !self.verified {
            return Ok(Some(FirstCall::Verify(self.call(opening, Rpc::MemberList(MemberListRequest {})))));
        }
        if !self.config.logs_in() {
            self.login.done(opening.now, None);
            return Ok(None);
        }
        opening.until = opening.until.max(opening.now + self.longest_silence());
        let request = login::request(opening.renewal.login());
        Ok(Some(FirstCall::LogIn { rpc: self.call(opening, request), open: opening.open }))
    }

    fn established(
        &mut self,
        now: Instant,
        _: Option<FirstCall>,
        _: &mut Renewal,
        _: &mut VecDeque<ChannelOutput>,
    ) -> bool {
        self.last_error = None;
        self.update_silence(now);
        true
    }

    fn queue(&mut self, _: Instant, pending: Infallible) {
        match pending {}
    }

    fn silent_until(&self, _: Instant) -> Option<Instant> {
        self.silence_ends()
    }

    fn ended(&mut self, failed: &Failed<'_, FirstCall>) -> Duration {
        let (up, silent) = match failed.phase {
            Phase::Up { .. } => (true, self.is_silent(failed.now)),
            Phase::Handshake { until, handshake: FirstCall::LogIn { .. } } => (false, *until <= failed.now),
            Phase::Closed
            | Phase::Connecting { .. }
            | Phase::AwaitingCredentials { .. }
            | Phase::Handshake { .. }
            | Phase::BackingOff { .. } => (false, false),
        };
        if silent && *failed.cause == Fault::TimedOut.into() {
            self.silence.connection_was_silent();
        }
        // Without the silence at its end: a member may accept connections and execute nothing.
        let lasted = if up { self.silence.began(failed.now).since(failed.opened) } else { Duration::ZERO };
        self.members.failed(lasted >= self.config.reconnect.max);
        lasted
    }

    fn settle(&mut self, end: &Settlement<'_>, outputs: &mut VecDeque<ChannelOutput>) {
        if let Cause::Fault(Fault::Tls(fault)) = end.cause
            && fault.is_refusal()
            && end.failures >= self.members.count()
        {
            let text = alloc::format!("{fault}").into();
            self.refuse_queued(&ServerError { class: ErrorClass::Refused, text }, outputs);
        }
        let unknown = |call| ChannelOutput::Reply { call, reply: Reply::Unknown(end.cause.clone()) };
        while let Some(call) = self.calls.pop_in_flight() {
            outputs.extend(call.into_all().into_iter().map(|sent| unknown(sent.call.call)));
        }
        while let Some(call) = self.keep_alives.pop_in_flight() {
            outputs.push_back(unknown(call));
        }
        self.silence.stopped();
        (self.own, self.idle_since) = (None, None);
        self.calls.disconnected();
        self.keep_alives.disconnected();
        self.watches.disconnected(end.now, &self.config, outputs);
        if end.failures > 0 {
            self.last_error = Some(end.cause.clone());
        }
    }

    fn answer_unsent(&self, pending: Infallible, _: &Cause) -> Option<ChannelOutput> {
        match pending {}
    }
}

//! What ZooKeeper's protocol adds to a connection: its session, and the servers in turn.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use core::fmt;
use core::time::Duration;

use bytes::Bytes;

use super::wire::{JuteWire, UnsentRequest};
use super::{PipeConfig, PipeOutput};
use crate::connection::{Failed, Opening, Order, Policy, Protocol, Settlement};
use crate::fault::Fault;
use crate::id::{CallId, NodeId};
use crate::jitter::mix;
use crate::lock::{Cause, Patience, Renewal};
use crate::time::{Instant, millis_up};
use crate::tls::TlsFault;
use crate::url::{Login, Target};
use crate::zookeeper::codec::{ConnectRequest, Op};
use crate::zookeeper::request::{Reply, SessionReport};

/// ZooKeeper's protocol, and the session that its connections continue.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Jute {
    pub(super) config: PipeConfig,
    pub(super) mode: Mode,
    /// The place of the server in use, or of the next one to try.
    server: usize,
    patience: Patience,
    /// The session; 0 if there is none yet.
    pub(super) session: i64,
    pub(super) password: Bytes,
    pub(super) granted: Duration,
    /// Half of the validity: enough remains for the next server. Computed once, as `next_deadline`
    /// needs it.
    // ZK1
    max_silence: Duration,
    /// Contacts are reported this often.
    pub(super) contact_every: Duration,
    pub(super) last_zxid: i64,
    pub(super) wire: JuteWire,
    /// The connection is replaced once it is idle.
    pub(super) reopens: bool,
    /// When bytes last left.
    pub(super) last_sent: Instant,
    /// When a contact was last reported.
    pub(super) contact: Instant,
}

/// The handshake: which reply is missing, and since when the session lives if it succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Greeting {
    /// The session.
    Connect {
        /// When it was requested.
        emitted: Instant,
    },
    /// The login. The session is established.
    LogIn {
        /// When the session was requested.
        emitted: Instant,
    },
}

/// What the pipe does for its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mode {
    /// Keeps it alive.
    Live,
    /// Sends nothing by itself, so that it ends.
    Quiet,
    /// Ends it, until the server has ended it in any case.
    Ending {
        until: Instant,
    },
    Over,
}

/// A session that is too short is ended, which takes time as well.
fn max_silence(granted: Duration, tick: Duration) -> Duration {
    granted.saturating_sub(tick * 2).max(tick) / 2
}

impl Jute {
    pub(super) fn new(config: PipeConfig, seed: u64) -> Self {
        Self {
            mode: Mode::Live,
            server: mix(seed, 0) as usize % config.servers.len().max(1),
            patience: Patience::default(),
            session: 0,
            password: Bytes::from_static(&[0; 16]),
            granted: config.timeout,
            max_silence: max_silence(config.timeout, config.tick),
            contact_every: config.tick / 8,
            last_zxid: 0,
            wire: JuteWire::default(),
            reopens: false,
            last_sent: Instant::ZERO,
            contact: Instant::ZERO,
            config,
        }
    }

    const fn servers(&self) -> u32 {
        self.config.servers.len() as u32
    }

    /// The server has granted this session timeout.
    pub(super) fn grant(&mut self, timeout_ms: i32) {
        self.granted = Duration::from_millis(timeout_ms.unsigned_abs().into());
        self.max_silence = max_silence(self.granted, self.config.tick);
    }

    /// Bytes arrived on a connection that was established at `since`.
    // E13
    pub(super) fn arrived(&mut self, now: Instant, since: Instant, heard: Instant) {
        if !self.wire.is_idle() {
            let (timeout, servers) = (self.silence(), self.servers());
            self.patience.arrived(now.since(heard), timeout);
            self.patience.lasts(now.since(since), timeout, servers);
        }
    }

    fn silence(&self) -> Duration {
        self.config.request_timeout.min(self.max_silence)
    }

    fn longest_silence(&self, timeout: Duration) -> Duration {
        self.patience.longest_silence(timeout, self.servers())
    }
}

/// Returns the login as a request.
fn auth(Login { username, password, .. }: &Login) -> Option<UnsentRequest> {
    let (user, password) = (username.as_ref()?, password.as_ref()?);
    let auth = format!("{user}:{}", password.expose());
    Some(UnsentRequest { call: None, op: Op::Auth { scheme: "digest".into(), auth: auth.into() } })
}

/// Answers a call without a reply. The pipe's own requests have none.
pub(super) fn answer(call: Option<CallId>, seen: bool, cause: &Cause) -> Option<PipeOutput> {
    let reply = if seen { Reply::Unknown(cause.clone()) } else { Reply::NotSent(cause.clone()) };
    Some(PipeOutput::Reply { call: call?, reply })
}

impl Protocol for Jute {
    type Handshake = Greeting;
    type Pending = UnsentRequest;
    type Output = PipeOutput;

    fn policy(&self) -> Policy {
        // A session that is to be continued may end before: the next server needs time as well.
        let most = if self.session == 0 { Duration::MAX } else { self.max_silence };
        let wanted = matches!(self.mode, Mode::Live | Mode::Ending { .. });
        Policy {
            node: NodeId::new(self.server as u16),
            servers: self.servers(),
            wanted,
            reopens: wanted,
            at_once: false,
            connect_timeout: self.longest_silence(self.config.connect_timeout.min(most)),
            reconnect: self.config.reconnect,
        }
    }

    fn target(&self) -> Option<&Target> {
        self.config.servers.get(self.server)
    }

    /// A session that is only to be ended needs no login, which may be what the server refuses.
    fn asks(&self) -> Option<&Login> {
        let PipeConfig { login, request_credentials, .. } = &self.config;
        (self.mode == Mode::Live && (*request_credentials || login.password_file.is_some())).then_some(login)
    }

    fn order(&self, order: Order) -> Option<PipeOutput> {
        Some(match order {
            Order::Connect(conn) => PipeOutput::Connect(conn, Box::new(self.target()?.clone())),
            Order::Credentials(conn, request) => PipeOutput::Credentials(conn, request),
            Order::Disconnect(conn, why) => PipeOutput::Disconnect(conn, why),
            Order::Down(cause) => PipeOutput::Session(SessionReport::Down(cause)),
        })
    }

    fn begin(&mut self, _: u64, _: u64) {
        self.reopens = false;
        self.wire.clear();
    }

    /// Requests the session, and logs in. The server handles both in this order.
    fn shake_hands(&mut self, opening: &mut Opening<'_, PipeOutput>) -> Result<Option<Greeting>, Fault> {
        let (now, auth) = (opening.now, auth(opening.renewal.login()));
        if opening.open {
            auth.into_iter().for_each(|auth| self.queue(now, auth));
            return Ok(None);
        }
        if self.asks().is_some() && auth.is_none() {
            return Err(Fault::NoUser);
        }
        let request = ConnectRequest {
            last_zxid_seen: self.last_zxid,
            timeout_ms: i32::try_from(millis_up(self.config.timeout)).unwrap_or(i32::MAX),
            session_id: self.session,
            password: self.password.clone(),
            read_only: false,
        };
        self.wire.encode(|out| request.encode(out));
        if let Some(auth) = auth.filter(|_| !matches!(self.mode, Mode::Ending { .. })) {
            self.wire.queue(auth);
        }
        Ok(Some(Greeting::Connect { emitted: now }))
    }

    fn established(
        &mut self,
        now: Instant,
        handshake: Option<Greeting>,
        renewal: &mut Renewal,
        outputs: &mut VecDeque<PipeOutput>,
    ) -> bool {
        self.last_sent = now;
        renewal.confirm();
        if let Mode::Ending { .. } = self.mode {
            self.queue(now, UnsentRequest { call: None, op: Op::CloseSession });
            return false;
        }
        if let Some(Greeting::Connect { emitted } | Greeting::LogIn { emitted }) = handshake {
            let report = SessionReport::Up { emitted, timeout: self.granted, owner: self.session };
            outputs.push_back(PipeOutput::Session(report));
        }
        true
    }

    fn queue(&mut self, now: Instant, pending: UnsentRequest) {
        self.last_sent = now;
        self.wire.queue(pending);
    }

    fn silent_until(&self, heard: Instant) -> Option<Instant> {
        (!self.wire.is_idle()).then(|| heard + self.longest_silence(self.silence()))
    }

    fn ended(&mut self, failed: &Failed<'_, Greeting>) -> Duration {
        if let Cause::Fault(Fault::TimedOut | Fault::Tls(TlsFault::TimedOut)) = failed.cause {
            self.patience.connection_was_silent();
        }
        self.server = (self.server + 1) % self.config.servers.len().max(1);
        failed.lasted()
    }

    fn settle(&mut self, end: &Settlement<'_>, outputs: &mut VecDeque<PipeOutput>) {
        while let Some((call, seen)) = self.wire.pop_unanswered() {
            outputs.extend(answer(call, seen, end.cause));
        }
        self.wire.clear();
    }

    fn answer_unsent(&self, pending: UnsentRequest, cause: &Cause) -> Option<PipeOutput> {
        answer(pending.call, false, cause)
    }
}

/// Shows no requests and no bytes: they may contain a login.
impl fmt::Debug for Jute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, server, session, .. } = self;
        let mut shown = f.debug_struct("Jute");
        shown.field("mode", mode).field("server", server).field("session", session).finish_non_exhaustive()
    }
}

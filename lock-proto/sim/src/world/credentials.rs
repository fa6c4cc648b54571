//! Credentials that hosts obtain from a source, and that servers accept for a while.
//!
//! Each answer of the source is a password of its own. So a checker knows for which connection a
//! password was supplied, until when it is valid, and whether a server has rejected it.
// S11

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use core::fmt;
use core::ops::Range;
use core::time::Duration;

use super::super::check::Rule;
use super::World;
use super::process::Input;
use super::store::{Planned, SimServers};
use lock_proto::Instant;
use lock_proto::{ConnId, NodeId, Role};
use lock_proto::{Credentials, CredentialsRequest, Machine as _};

/// A source of credentials, and how long servers accept them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// Time from a request to the answer.
    pub delay: Range<Duration>,
    /// How long a password is valid after it was supplied. Servers reject later logins with it.
    pub valid_for: Option<Duration>,
    /// Whether a client's host supplies its last password again while that is valid, unless the
    /// request says that a server rejected it.
    pub caches: bool,
}

/// How the source answers from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// As its [`Provider`] says.
    #[default]
    Works,
    /// With this additional delay.
    Slow(Duration),
    /// It fails.
    Fails,
    /// It never answers.
    Silent,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works => f.write_str("the source of credentials works"),
            Self::Slow(delay) => write!(f, "the source of credentials takes {delay:?} longer"),
            Self::Fails => f.write_str("the source of credentials fails"),
            Self::Silent => f.write_str("the source of credentials is silent"),
        }
    }
}

/// A password that was supplied for a connection.
#[derive(Clone, Debug)]
struct Supplied {
    /// By the client's clock.
    until: Option<Instant>,
    rejected: bool,
}

/// A client, and the connection unless all of them share one login.
type Place = (usize, Option<(NodeId, Role)>);

#[derive(Clone, Debug, Default)]
pub(super) struct Logins {
    provider: Option<Provider>,
    source: Source,
    /// Number of passwords so far.
    count: u64,
    /// Passwords that servers accept.
    accepted: BTreeSet<String>,
    /// The last password of each client, and until when it is valid in true time.
    cached: BTreeMap<usize, (String, Option<Instant>)>,
    /// The current request of each connection. A later one replaces it.
    requests: BTreeMap<(usize, ConnId), (u64, bool)>,
    requested: u64,
    /// By client, connection and password.
    supplied: BTreeMap<(usize, ConnId, String), Supplied>,
    /// Where the last login that was answered was rejected.
    rejected: BTreeSet<Place>,
}

impl Logins {
    pub(super) const fn is_on(&self) -> bool {
        self.provider.is_some()
    }
}

impl<S: SimServers> World<S> {
    /// Sets the source of credentials of all hosts. From now on servers accept only what it has
    /// supplied, and what they were configured with. Without one, hosts have no credentials.
    pub fn set_provider(&mut self, provider: Provider) {
        self.logins.provider = Some(provider);
    }

    /// Sets how the source answers later requests. [`calm`](Self::calm) ends every failure.
    pub fn set_source(&mut self, source: Source) {
        self.journal.write(self.now, format_args!("{source}"));
        self.note_fault();
        self.annotate(None, || format!("{source}"));
        self.logins.source = source;
    }

    /// Makes servers reject all passwords that were supplied before now, from `keep` on. Later ones
    /// are accepted. Connections on Redis keep their logins; tokens of etcd become invalid.
    pub fn change_passwords(&mut self, keep: Duration) {
        self.journal.write(self.now, format_args!("passwords change, the old ones work for {keep:?}"));
        self.annotate(None, || format!("passwords change, the old ones work for {keep:?}"));
        for password in self.logins.accepted.clone() {
            self.agenda.plan(self.now + keep, Planned::Retire(password));
        }
    }

    pub(super) fn repair_source(&mut self) {
        self.logins.source = Source::Works;
    }

    fn place(client: usize, conn: ConnId) -> Place {
        (client, (!S::ONE_LOGIN).then(|| (conn.node(), conn.role())))
    }

    /// A client requests credentials.
    pub(super) fn request_credentials(&mut self, client: usize, conn: ConnId, request: &CredentialsRequest) {
        let Some(provider) = self.logins.provider.clone() else {
            return self.answer_request(client, conn, None);
        };
        let rejected = request.rejected.is_some();
        self.journal.write(self.now, format_args!("c{client}/{conn} requests credentials, rejected: {rejected}"));
        if !rejected && self.logins.rejected.contains(&Self::place(client, conn)) {
            let text = format!("client {client} does not say that its last credentials for {conn} were rejected");
            self.checker.report(self.now, Rule::Credentials, text);
        }
        self.logins.requested += 1;
        let number = self.logins.requested;
        self.logins.requests.insert((client, conn), (number, rejected));
        let delay = self.rng.duration(&provider.delay);
        let more = match self.logins.source {
            Source::Works | Source::Fails => Duration::ZERO,
            Source::Slow(more) => more,
            Source::Silent => return,
        };
        self.plan(self.now + delay + more, client, Input::Credentials(conn, number));
    }

    /// The source answers a request, unless a later one has replaced it.
    pub(super) fn supply_credentials(&mut self, client: usize, conn: ConnId, number: u64) {
        let current = self.logins.requests.get(&(client, conn)).copied();
        let Some((_, rejected)) = current.filter(|(last, _)| *last == number) else { return };
        self.logins.requests.remove(&(client, conn));
        let provider = self.logins.provider.clone();
        if self.network.find(client, conn).is_none() {
            return;
        }
        let Some(provider) = provider.filter(|_| self.logins.source != Source::Fails) else {
            return self.answer_request(client, conn, None);
        };
        let (now, local) = (self.now, self.clients[client].local(self.now));
        let cached = self.logins.cached.get(&client).filter(|_| provider.caches && !rejected);
        let cached = cached.filter(|(_, until)| until.is_none_or(|until| now < until)).cloned();
        let (password, until) = match cached {
            Some(cached) => cached,
            None => self.issue(provider.valid_for),
        };
        self.logins.cached.insert(client, (password.clone(), until));
        let mut credentials = Credentials::new(&password).username(S::USER);
        if let Some(until) = until {
            credentials = credentials.valid_for(until.since(now));
        }
        let until = until.map(|until| local + until.since(now));
        self.logins.supplied.insert((client, conn, password), Supplied { until, rejected: false });
        self.answer_request(client, conn, Some(credentials));
    }

    fn answer_request(&mut self, client: usize, conn: ConnId, credentials: Option<Credentials>) {
        let what = if credentials.is_some() { "supplied" } else { "not available" };
        self.journal.write(self.now, format_args!("c{client}/{conn} credentials {what}"));
        let process = &mut self.clients[client];
        let local = process.local(self.now);
        process.machine.handle_credentials(local, conn, credentials);
    }

    fn issue(&mut self, valid_for: Option<Duration>) -> (String, Option<Instant>) {
        self.logins.count += 1;
        let password = format!("password-{}", self.logins.count);
        let until = valid_for.map(|time| self.now + time);
        S::accept_password(self, &password, true);
        self.logins.accepted.insert(password.clone());
        if let Some(until) = until {
            self.agenda.plan(until, Planned::Retire(password.clone()));
        }
        (password, until)
    }

    /// From now on servers reject a password.
    pub(super) fn retire(&mut self, password: &str) {
        if self.logins.accepted.remove(password) {
            self.journal.write(self.now, format_args!("{password} is no longer accepted"));
            S::accept_password(self, password, false);
        }
    }

    /// A client has sent a login.
    // N19
    pub(super) fn login_sent(&mut self, client: usize, conn: ConnId, password: &str) {
        if !self.logins.is_on() {
            return;
        }
        let local = self.clients[client].local(self.now);
        let found = match self.logins.supplied.get(&(client, conn, password.into())) {
            None => "that were not supplied for it",
            Some(supplied) if supplied.rejected => "that the server has rejected",
            Some(supplied) if supplied.until.is_some_and(|until| until <= local) => "that have expired",
            Some(_) => return,
        };
        let text = format!("client {client} sends credentials on {conn} {found}: {password}");
        self.checker.report(self.now, Rule::Credentials, text);
        self.check();
    }

    /// The reply to a login has reached the client.
    pub(super) fn login_answered(&mut self, client: usize, conn: ConnId, password: &str, accepted: bool) {
        let place = Self::place(client, conn);
        if accepted {
            self.logins.rejected.remove(&place);
            return;
        }
        self.journal.write(self.now, format_args!("c{client}/{conn} {password} rejected"));
        self.logins.rejected.insert(place);
        if let Some(supplied) = self.logins.supplied.get_mut(&(client, conn, password.into())) {
            supplied.rejected = true;
        }
    }
}

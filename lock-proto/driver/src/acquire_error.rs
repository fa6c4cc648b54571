//! The error of an acquisition.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use super::name::Name;
use lock_proto::ClientId;
use lock_proto::Fault;
use lock_proto::Misuse;
use lock_proto::NodeId;
use lock_proto::{Answer, Cause, ErrorClass, Expiry, Failure, MAX_NAME, Report};

/// The servers of a client, without credentials, in the configured order.
pub(super) type Servers = Arc<[Box<str>]>;

/// No request times out within less. The answer is then that of an earlier one.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(5);

/// Error of an acquisition, of a candidacy, of a query about an election, or of a ping.
///
/// The failed acquisition leaves nothing behind, or its remains are being cleaned up. The message
/// names the lock, each server, and how long the caller waited. Use the predicates to decide what
/// to do, or match on [`kind`](Self::kind): the kinds without a [report](Self::report), and
/// [`SequenceExhausted`](AcquireErrorKind::SequenceExhausted), match no predicate.
///
/// ```
/// use lock_tokio::{AcquireError, Lock};
///
/// /// The status that an HTTP handler replies.
/// async fn handle(lock: Lock) -> u16 {
///     match lock.acquire().await {
///         Ok(guard) => {
///             guard.protect(async { /* the work */ }).await;
///             200
///         }
///         Err(error) => status(&error),
///     }
/// }
///
/// fn status(error: &AcquireError) -> u16 {
///     match error {
///         error if error.is_busy() => 423,        // another holds it: retry later
///         error if error.is_unreachable() => 503, // no server answered: retry later
///         // A wrong password, no permission, a key in the way: somebody must correct it.
///         error => {
///             eprintln!("{error}"); // names each server and its reply
///             500
///         }
///     }
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct AcquireError(Box<ErrorParts>);

#[derive(Clone, PartialEq, Eq, Hash)]
struct ErrorParts {
    /// "lock", "election" or "ping".
    what: &'static str,
    name: Arc<[u8]>,
    client: ClientId,
    servers: Servers,
    kind: AcquireErrorKind,
    /// The password file that was not read, and why.
    unread_file: Option<Arc<str>>,
    /// Nobody shut the client down: its driver was dropped.
    abandoned: bool,
}

/// What went wrong in an [`AcquireError`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AcquireErrorKind {
    /// The single attempt of [`try_acquire`](super::Lock::try_acquire), or of a wait of zero, found
    /// the lock held or waited for.
    Busy(Report),
    /// Too few servers answered the single attempt of [`try_acquire`](super::Lock::try_acquire), or
    /// of a wait of zero, the query or the ping.
    Unreachable(Report),
    /// The wait ended.
    TimedOut(Report),
    /// The key holds something that is not a lock, or the counter of fencing tokens something that
    /// is no number. The report says which.
    KeyInUse(Report),
    /// The servers refuse the request, and a retry will not help.
    Refused(Report),
    /// The sequence numbers of the lock's queue on ZooKeeper are used up, and other clients did not
    /// leave it in time. The queue must become empty before the lock can be taken again.
    SequenceExhausted(Report),
    /// Two nodes of the quorum are the same server.
    EqualNodes(NodeId, NodeId),
    /// The request is invalid.
    Misuse(Misuse),
    /// The single attempt was granted, but the future was not polled for a third of the TTL (on
    /// ZooKeeper, of the validity), so the lock was released.
    Withdrawn,
    /// The client is shutting down, or its driver has ended with the runtime it was spawned on. The
    /// message says which.
    ShutDown,
    /// The process was forked after the client was made. The child must make a new client, or it
    /// would act under the parent's identity.
    Forked,
    /// The store has no elections. Redis has none.
    NoElections,
    /// A failure that this version of the driver does not know.
    Other(Failure),
}

impl AcquireError {
    pub(super) fn new(
        kind: AcquireErrorKind,
        what: &'static str,
        name: &Arc<[u8]>,
        client: ClientId,
        servers: &Servers,
        unread_file: Option<Arc<str>>,
        abandoned: bool,
    ) -> Self {
        let name = if name.len() > MAX_NAME { Arc::default() } else { Arc::clone(name) };
        Self(Box::new(ErrorParts { what, name, client, servers: Arc::clone(servers), kind, unread_file, abandoned }))
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> &AcquireErrorKind {
        &self.0.kind
    }

    /// The name of the lock or the election; empty for a ping, and if it is longer than a name may
    /// be.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.0.name
    }

    /// The last reply of each server, and how long the caller waited. If this client itself has
    /// the lock, no server is in it. `None` for kinds without a report, such as
    /// [`Misuse`](AcquireErrorKind::Misuse) and [`ShutDown`](AcquireErrorKind::ShutDown).
    #[must_use]
    pub fn report(&self) -> Option<&Report> {
        self.0.kind.report()
    }

    /// Returns true if another holder or waiter had the lock: after a single attempt, or when the
    /// wait ended.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(&self.0.kind, AcquireErrorKind::Busy(report) | AcquireErrorKind::TimedOut(report) if report.is_busy())
    }

    /// Returns true if the wait ended before the lock was acquired. Never of a single attempt.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self.0.kind, AcquireErrorKind::TimedOut(_))
    }

    /// Returns true if too few servers answered and no holder was seen.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        let kind = &self.0.kind;
        matches!(kind, AcquireErrorKind::Unreachable(report) | AcquireErrorKind::TimedOut(report) if !report.is_busy())
    }

    /// Returns true if the servers refuse the request, the key holds something that is not a lock,
    /// or two nodes of the quorum are the same server: a retry will not help.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        use AcquireErrorKind as Kind;
        matches!(self.0.kind, Kind::Refused(_) | Kind::KeyInUse(_) | Kind::EqualNodes(..))
    }

    fn server(&self, node: usize) -> &str {
        self.0.servers.get(node).map_or("a server", |server| server)
    }

    fn write_report(&self, f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
        if report.nodes.is_empty() {
            write!(f, "held or waited for in this client, {}", self.0.client)?;
        }
        for (node, answer) in report.nodes.iter().enumerate() {
            f.write_str(if node == 0 { "" } else { "; " })?;
            match (self.server(node), answer) {
                (server, Answer::Granted) if self.0.name.is_empty() => write!(f, "{server} answered")?,
                (server, Answer::Unreachable(Cause::Fault(Fault::TimedOut))) if report.waited < SHORTEST_TIMEOUT => {
                    write!(
                        f,
                        "{server} is unreachable: it did not answer earlier requests in time, and the client pauses before the next attempt"
                    )?;
                }
                (server, _) => write_answer(f, server, answer)?,
            }
        }
        write!(f, " (waited {:?})", rounded(report.waited))?;
        if let Some(why) = &self.0.unread_file {
            write!(f, "; password file {why}")?;
        }
        Ok(())
    }
}

/// What went wrong on each server, for a log; `None` if nothing did.
pub(super) fn describe_failures(servers: &Servers, answers: &[Answer]) -> Option<String> {
    let mut text = String::new();
    for (server, answer) in servers.iter().zip(answers).filter(|(_, answer)| answer.is_failure()) {
        text.push_str(if text.is_empty() { "" } else { "; " });
        // A string takes everything.
        let _ = write_answer(&mut text, server, answer);
    }
    (!text.is_empty()).then_some(text)
}

fn write_answer(f: &mut dyn fmt::Write, server: &str, answer: &Answer) -> fmt::Result {
    match answer {
        Answer::Silent => write!(f, "{server} has not answered"),
        Answer::Granted => write!(f, "{server} granted it"),
        Answer::Taken(Expiry::In(left)) => write!(f, "{server}: held for another {:?}", rounded(*left)),
        Answer::Taken(Expiry::Never) => write!(f, "{server}: held without expiry"),
        Answer::Taken(Expiry::Unknown) => write!(f, "{server}: held by another client"),
        Answer::Unreachable(cause @ Cause::Fault(fault)) if cause.is_refusal() => write!(f, "{server}: {fault}"),
        Answer::Unreachable(Cause::Fault(fault)) => write!(f, "{server} is unreachable: {fault}"),
        // A store of one's own, or a folder, which has no connection.
        Answer::Unreachable(Cause::Server(error)) if error.class == ErrorClass::Transient => {
            write!(f, "{server}: {}", error.text)
        }
        Answer::Taken(Expiry::UnlessRenewed(left)) => {
            write!(f, "{server}: held, or its holder has died: free in {:?} unless it is renewed", rounded(*left))
        }
        Answer::Unreachable(Cause::Server(error)) => write!(f, "{server} rejected the connection: {}", error.text),
        Answer::Unknown(Cause::Fault(fault)) => write!(f, "{server} did not confirm: {fault}"),
        Answer::Unknown(Cause::Server(error)) => write!(f, "{server} did not confirm: {}", error.text),
        Answer::RecentlyRestarted => write!(f, "{server} restarted too recently to count"),
        Answer::UnstableIdentity => write!(f, "{server} is a different server at each connection"),
        Answer::Rejected(error) => write!(f, "{server} refused: {}", error.text),
        Answer::Taken(_) | Answer::Unreachable(_) | Answer::Unknown(_) | _ => write!(f, "{server}: {answer:?}"),
    }
}

/// Rounds to whole milliseconds, or to microseconds below one.
fn rounded(time: Duration) -> Duration {
    let unit = if time < Duration::from_millis(1) { 1_000 } else { 1_000_000 };
    Duration::from_nanos(u64::try_from(time.as_nanos() / unit * unit).unwrap_or(u64::MAX))
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.what)?;
        if !self.0.name.is_empty() {
            write!(f, " {}", Name(&self.0.name))?;
        }
        f.write_str(": ")?;
        match &self.0.kind {
            AcquireErrorKind::Busy(report)
            | AcquireErrorKind::Unreachable(report)
            | AcquireErrorKind::TimedOut(report)
            | AcquireErrorKind::Refused(report) => self.write_report(f, report),
            AcquireErrorKind::KeyInUse(report) => {
                f.write_str("something that is not of this lock is in the way: ")?;
                self.write_report(f, report)
            }
            AcquireErrorKind::SequenceExhausted(report) => {
                f.write_str("the sequence numbers of the queue are used up, and it did not become empty: ")?;
                self.write_report(f, report)
            }
            AcquireErrorKind::EqualNodes(a, b) => {
                let [a, b] = [a, b].map(|node| self.server(node.index()));
                write!(f, "{a} and {b} are the same server")
            }
            AcquireErrorKind::Misuse(misuse) => misuse.fmt(f),
            AcquireErrorKind::Withdrawn => {
                f.write_str("granted, but released because the future was not polled in time")
            }
            AcquireErrorKind::ShutDown if self.0.abandoned => f.write_str(
                "the runtime of this client's driver has ended; make a client whose driver has a thread of its own",
            ),
            AcquireErrorKind::ShutDown => f.write_str("the client was shut down"),
            AcquireErrorKind::Forked => {
                f.write_str("the client belongs to the parent process; make one after the fork")
            }
            AcquireErrorKind::Other(failure) => write!(f, "{failure}"),
            AcquireErrorKind::NoElections => f.write_str("elections need etcd or ZooKeeper; this client uses Redis"),
        }
    }
}

impl fmt::Debug for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ErrorParts { name, servers, kind, .. } = &*self.0;
        f.debug_struct("AcquireError").field("name", &Name(name)).field("servers", servers).field("kind", kind).finish()
    }
}

impl core::error::Error for AcquireError {}

impl From<Misuse> for AcquireErrorKind {
    fn from(misuse: Misuse) -> Self {
        match misuse {
            Misuse::ShuttingDown => Self::ShutDown,
            Misuse::NoElections => Self::NoElections,
            Misuse::Stale(_)
            | Misuse::NotHeld(_)
            | Misuse::NotOffered(_)
            | Misuse::TooMany { .. }
            | Misuse::Invalid(_) => Self::Misuse(misuse),
            _ => Self::Misuse(misuse),
        }
    }
}

impl From<Failure> for AcquireErrorKind {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::TimedOut(report) => Self::TimedOut(report),
            Failure::KeyInUse(report) => Self::KeyInUse(report),
            Failure::Refused(report) => Self::Refused(report),
            Failure::EqualNodes(a, b) => Self::EqualNodes(a, b),
            Failure::SequenceExhausted(report) => Self::SequenceExhausted(report),
            Failure::ShuttingDown => Self::ShutDown,
            other => Self::Other(other),
        }
    }
}

impl AcquireErrorKind {
    fn report(&self) -> Option<&Report> {
        match self {
            Self::Busy(report)
            | Self::Unreachable(report)
            | Self::TimedOut(report)
            | Self::KeyInUse(report)
            | Self::SequenceExhausted(report)
            | Self::Refused(report) => Some(report),
            Self::EqualNodes(..)
            | Self::Misuse(_)
            | Self::Withdrawn
            | Self::ShutDown
            | Self::Forked
            | Self::NoElections
            | Self::Other(_) => None,
        }
    }

    /// Returns true if a server could not be asked for want of a password.
    pub(super) fn lacks_credentials(&self) -> bool {
        let lacks = |answer: &Answer| matches!(answer, Answer::Unreachable(cause) | Answer::Unknown(cause) if *cause == Cause::Fault(Fault::NoCredentials));
        self.report().is_some_and(|report| report.nodes.iter().any(lacks))
    }

    /// Returns true if a server rejected the connection, as it does with a wrong password.
    pub(super) fn is_rejected(&self) -> bool {
        let rejects = |answer: &Answer| matches!(answer, Answer::Unreachable(Cause::Server(error)) if error.class == ErrorClass::Refused);
        self.report().is_some_and(|report| report.nodes.iter().any(rejects))
    }

    /// Converts the error of a single attempt, which has no wait that could end.
    pub(super) fn once(self) -> Self {
        let Self::TimedOut(report) = self else { return self };
        if report.is_busy() { Self::Busy(report) } else { Self::Unreachable(report) }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;
    use lock_proto::Invalid;
    use lock_proto::ServerError;
    use lock_proto::TlsFault;

    fn error(kind: AcquireErrorKind) -> AcquireError {
        let servers = ["redis://a:1", "redis://b:2"].map(Box::from);
        AcquireError::new(kind, "lock", &Arc::from(*b"job"), ClientId::from_bits(10), &Arc::from(servers), None, false)
    }

    #[test]
    fn message_names_lock_servers_and_wait() {
        let denied = ServerError { class: ErrorClass::Refused, text: "WRONGPASS no".into() };
        let waited = Duration::from_nanos(498_123);
        let refused = || Answer::Unreachable(Fault::Refused.into());
        for (nodes, expected) in [
            (
                alloc::vec![refused()],
                "lock \"job\": redis://a:1 is unreachable: the server refused the connection (waited 498µs)",
            ),
            (
                alloc::vec![Answer::Unreachable(Fault::Tls(TlsFault::CertificateRequired).into())],
                "lock \"job\": redis://a:1: the server demands a client certificate; name its files with `cert=` and `key=` (waited 498µs)",
            ),
            (
                alloc::vec![],
                "lock \"job\": held or waited for in this client, 0000000000000000000000000000000a (waited 498µs)",
            ),
            (
                alloc::vec![Answer::Unreachable(denied.into()), Answer::Taken(Expiry::In(Duration::from_millis(90)))],
                "lock \"job\": redis://a:1 rejected the connection: WRONGPASS no; redis://b:2: held for another 90ms (waited 498µs)",
            ),
        ] {
            assert_eq!(error(AcquireErrorKind::TimedOut(Report::new(waited, nodes))).to_string(), expected);
        }
        let silent = || [Answer::Unreachable(Fault::TimedOut.into())];
        for (waited, expected) in
            [(2, "the client pauses before the next attempt"), (800, "the server did not answer in time")]
        {
            let report = Report::new(Duration::from_millis(waited), silent());
            let error = error(AcquireErrorKind::Unreachable(report)).to_string();
            assert!(error.contains(expected), "{error}");
        }
        let equal = error(AcquireErrorKind::EqualNodes(NodeId::new(0), NodeId::new(1))).to_string();
        assert_eq!(equal, "lock \"job\": redis://a:1 and redis://b:2 are the same server");
    }

    #[test]
    fn name_that_is_too_long_is_not_kept() {
        let misuse = Invalid::NameLength { len: 10_000_000, max: MAX_NAME };
        let kind = AcquireErrorKind::Misuse(misuse.into());
        let error = AcquireError::new(
            kind,
            "lock",
            &alloc::vec![b'x'; 10_000_000].into(),
            ClientId::from_bits(10),
            &Servers::default(),
            None,
            false,
        );
        assert_eq!(error.to_string(), "lock: a lock's name must have 1 to 512 bytes, this one has 10000000");
        assert!(error.name().is_empty() && alloc::format!("{error:?}").len() < 200, "{error:?}");
    }

    #[test]
    fn predicates_distinguish_busy_from_unreachable() {
        let report = |answer| Report::new(Duration::ZERO, [answer]);
        let (held, down) = (|| report(Answer::Taken(Expiry::Unknown)), || report(Answer::Silent));
        for (kind, expected) in [
            (AcquireErrorKind::from(Failure::TimedOut(held())).once(), [true, false, false, false]),
            (AcquireErrorKind::from(Failure::TimedOut(held())), [true, true, false, false]),
            (AcquireErrorKind::from(Failure::TimedOut(down())).once(), [false, false, true, false]),
            (AcquireErrorKind::from(Failure::TimedOut(down())), [false, true, true, false]),
            (AcquireErrorKind::from(Failure::Refused(down())).once(), [false, false, false, true]),
            (AcquireErrorKind::EqualNodes(NodeId::new(0), NodeId::new(2)), [false, false, false, true]),
            (AcquireErrorKind::ShutDown, [false; 4]),
        ] {
            let error = error(kind);
            let found = [error.is_busy(), error.is_timeout(), error.is_unreachable(), error.is_refused()];
            assert_eq!(found, expected, "{error}");
        }
    }
}

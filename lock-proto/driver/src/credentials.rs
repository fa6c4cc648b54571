//! Carries the machine's requests for credentials to the source in the settings, or to a file.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::{Context, Poll};
use std::sync::Mutex;

use super::foreign::{foreign, foreign_value};
use super::host::{Host, Reading};
use super::reads::Reads;
use super::settings::{HostSettings, SupplyError, Supplying};
use super::ticket::{locked, locked_if_possible};
use lock_proto::Target;
use lock_proto::{ConnId, NodeId};
use lock_proto::{Credentials, CredentialsRequest, ServerError};

/// Password files that were not read, or whose content looks wrong. The handles name them in errors.
#[derive(Clone, Default)]
pub(super) struct UnreadFile(Arc<Mutex<CredentialFiles>>);

#[derive(Default)]
struct CredentialFiles {
    unread: Option<Unread>,
    odd: Option<Unread>,
}

struct Unread {
    node: NodeId,
    /// The path, and why it was not read, or what is odd.
    why: Arc<str>,
}

impl UnreadFile {
    pub(super) fn get(&self, forked: bool) -> Option<Arc<str>> {
        locked_if_possible(&self.0, forked)?.unread.as_ref().map(|unread| Arc::clone(&unread.why))
    }

    /// The file whose password may not be what was meant, in case a server rejects it.
    pub(super) fn odd(&self, forked: bool) -> Option<Arc<str>> {
        locked_if_possible(&self.0, forked)?.odd.as_ref().map(|odd| Arc::clone(&odd.why))
    }

    /// A read begins. Until it ends, an earlier reason stands.
    fn begin(&self, node: NodeId, path: &str) {
        locked(&self.0)
            .unread
            .get_or_insert_with(|| Unread { node, why: alloc::format!("{path}: not read yet").into() });
    }

    fn end(&self, node: NodeId, path: &str, result: &Result<Credentials, SupplyError>, odd: Option<&str>) {
        let mut files = locked(&self.0);
        match result {
            Err(error) => files.unread = Some(Unread { node, why: error.to_string().into() }),
            Ok(_) => {
                drop(files.unread.take_if(|unread| unread.node == node));
                drop(files.odd.take_if(|odd| odd.node == node));
                if let Some(what) = odd {
                    files.odd = Some(Unread { node, why: alloc::format!("{path}: the password in it {what}").into() });
                }
            }
        }
    }
}

/// Requests under way, at most one for each connection.
pub(super) struct CredentialRequests {
    settings: HostSettings,
    unread: UnreadFile,
    open: Vec<(ConnId, Target, CredentialsCall)>,
    reads: Reads,
    /// The last failures on each node. Repetitions are logged at level debug.
    last: BTreeMap<NodeId, LastFailures>,
}

#[derive(Default)]
struct LastFailures {
    /// Why there were no credentials.
    failure: Option<String>,
    /// Why the server rejected them.
    rejected: Option<ServerError>,
}

enum CredentialsCall {
    OfSource(Supplying),
    OfFile(Box<str>, Reading),
}

impl CredentialsCall {
    /// `odd` becomes what may be wrong with a password of a file.
    fn poll(&mut self, cx: &mut Context<'_>, odd: &mut Option<&'static str>) -> Poll<Result<Credentials, SupplyError>> {
        match self {
            Self::OfSource(supplying) => {
                foreign_value(|| supplying.as_mut().poll(cx)).unwrap_or_else(|| Poll::Ready(Err(panicked())))
            }
            Self::OfFile(path, reading) => reading.as_mut().poll(cx).map(|content| {
                let content = content.map_err(|error| NoAnswer(alloc::format!("{path}: {error}")))?;
                let password = password(path, content)?;
                *odd = oddity(&password);
                Ok(Credentials::new(&password))
            }),
        }
    }
}

impl CredentialRequests {
    pub(super) const fn new(settings: HostSettings, unread: UnreadFile) -> Self {
        Self { settings, unread, open: Vec::new(), reads: Reads::new(), last: BTreeMap::new() }
    }

    /// Begins a request, in place of an earlier one of this connection.
    pub(super) fn begin<H: Host>(&mut self, host: &H, conn: ConnId, request: CredentialsRequest) {
        self.cancel(conn);
        let rejected = &mut self.last.entry(conn.node()).or_default().rejected;
        let last = core::mem::replace(rejected, request.rejected.clone());
        if let Some(error) = &request.rejected {
            if last == request.rejected {
                tracing::debug!(%conn, server = %request.target, %error, "credentials rejected again");
            } else {
                tracing::warn!(%conn, server = %request.target, %error, "credentials rejected, requesting others");
            }
        }
        let target = request.target.clone();
        let request = match (&self.settings.credentials, &request.login.password_file) {
            (Some(source), _) => {
                let supplying = foreign_value(|| source(request));
                CredentialsCall::OfSource(supplying.unwrap_or_else(|| Box::pin(async { Err(panicked()) })))
            }
            (None, Some(path)) => {
                self.unread.begin(conn.node(), path);
                let (path, reading) = self.reads.read(host, path);
                CredentialsCall::OfFile(path, reading)
            }
            // The driver lets the machine ask only if there is one of them.
            (None, None) => return,
        };
        self.open.push((conn, target, request));
    }

    /// Drops the request of a connection that has ended.
    pub(super) fn cancel(&mut self, conn: ConnId) {
        let Some(place) = self.open.iter().position(|(id, ..)| *id == conn) else { return };
        match self.open.swap_remove(place) {
            (.., CredentialsCall::OfFile(path, reading)) => self.reads.keep([(path, reading)]),
            (.., CredentialsCall::OfSource(supplying)) => {
                foreign(|| drop(supplying));
            }
        }
    }

    /// Returns the next answer: `None` in it if there are no credentials.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Option<(ConnId, Option<Credentials>)> {
        for place in 0..self.open.len() {
            let (conn, target, request) = self.open.get_mut(place)?;
            let mut odd = None;
            let Poll::Ready(result) = request.poll(cx, &mut odd) else { continue };
            if let CredentialsCall::OfFile(path, _) = request {
                self.unread.end(conn.node(), path, &result, odd);
            }
            let failure = &mut self.last.entry(conn.node()).or_default().failure;
            let last = core::mem::replace(failure, result.as_ref().err().map(ToString::to_string));
            if let Err(error) = &result {
                if last == *failure {
                    tracing::debug!(%conn, server = %target, %error, "still no credentials");
                } else {
                    tracing::warn!(%conn, server = %target, %error, "no credentials");
                }
            }
            let answer = (*conn, result.ok());
            let answered = self.open.swap_remove(place);
            foreign(|| drop(answered));
            return Some(answer);
        }
        None
    }

    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.reads = Reads::new();
    }

    /// Forgets the requests without dropping them, in a forked process.
    pub(super) fn leak(&mut self) {
        core::mem::forget((core::mem::take(&mut self.open), core::mem::take(&mut self.reads)));
    }
}

fn panicked() -> SupplyError {
    NoAnswer("the source of credentials panicked".to_string()).into()
}

/// The content of a password file. Editors end it with a newline.
fn password(path: &str, content: Vec<u8>) -> Result<String, NoAnswer> {
    let text = String::from_utf8(content).map_err(|_| NoAnswer(alloc::format!("{path}: not UTF-8")))?;
    let password = text.strip_suffix('\n').map_or(&*text, |line| line.strip_suffix('\r').unwrap_or(line));
    if password.is_empty() {
        return Err(NoAnswer(alloc::format!("{path}: no password in it")));
    }
    Ok(password.to_string())
}

/// What editors and shells leave in a file, and nobody sees. It may be meant.
fn oddity(password: &str) -> Option<&'static str> {
    if password.starts_with('\u{feff}') {
        Some("begins with a byte order mark (U+FEFF), which counts")
    } else if password.ends_with(['\n', '\r']) {
        Some("ends with a line break, which counts: only one at the end of the file does not")
    } else if password.trim() != password {
        Some("begins or ends with white space, which counts")
    } else {
        None
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NoAnswer(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_parts_of_password_are_named() {
        for (password, expected) in [
            ("secret", None),
            ("two words", None),
            ("secret\n", Some("line break")),
            ("secret\r", Some("line break")),
            ("secret ", Some("white space")),
            ("\tsecret", Some("white space")),
            ("\u{feff}secret", Some("byte order mark")),
        ] {
            let found = oddity(password);
            assert_eq!(found.is_some(), expected.is_some(), "{password:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()), "{password:?}: {found:?}");
        }
    }

    #[test]
    fn password_file_may_end_with_one_newline() {
        for (content, expected) in [
            (&b"secret"[..], Some("secret")),
            (b"secret\n", Some("secret")),
            (b"secret\r\n", Some("secret")),
            (b" a b \n\n", Some(" a b \n")),
            (b"", None),
            (b"\n", None),
            (b"\xff\n", None),
        ] {
            assert_eq!(password("f", content.to_vec()).ok().as_deref(), expected, "{content:?}");
        }
    }
}

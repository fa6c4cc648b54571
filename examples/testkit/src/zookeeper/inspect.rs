//! Looks into a server, and changes what it has.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::PoisonError;
use std::time::Duration;

use super::{Mode, Session, Stat, ZkError, ZooKeeper};
use crate::{TIMEOUT, wait_until};

/// Time limit for one request to a server that is starting.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// The superuser, and the hash of its name and password as the server wants it.
const SUPERUSER: (&str, &str) = ("super", "super-secret");
pub(super) const SUPERUSER_DIGEST: &str = "super:2KCAOlea08rlrYvOZvQwvrr82Jc=";
/// The kit's own sessions.
#[derive(Debug, Default)]
pub(super) struct Admin {
    pub(super) current: Option<Session>,
    /// Of earlier ones, too, which end some time after their connections.
    ids: Vec<i64>,
}

impl ZooKeeper {
    /// Opens a session, as the superuser.
    ///
    /// # Panics
    ///
    /// If the server does not reply.
    #[must_use]
    pub fn connect(&self) -> Session {
        self.try_connect(TIMEOUT).unwrap_or_else(|e| panic!("ZooKeeper on port {}: {e:?}", self.port))
    }

    fn try_connect(&self, timeout: Duration) -> Result<Session, ZkError> {
        let mut session = Session::open(self.address(), timeout)?;
        session.log_in(SUPERUSER.0, SUPERUSER.1)?;
        Ok(session)
    }

    /// Runs requests as the superuser, on a connection that the kit keeps.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn try_run<T>(&self, requests: impl Fn(&mut Session) -> Result<T, ZkError>) -> Result<T, ZkError> {
        let mut admin = self.admin.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = admin.current.as_mut() {
            match requests(session) {
                Err(ZkError::Io(_) | ZkError::Expired) => admin.current = None,
                other => return other,
            }
        }
        let mut session = self.try_connect(TIMEOUT)?;
        admin.ids.push(session.id());
        let result = requests(&mut session);
        admin.current = Some(session);
        result
    }

    /// Like [`try_run`](Self::try_run).
    ///
    /// # Panics
    ///
    /// If it fails.
    #[track_caller]
    pub fn run<T>(&self, requests: impl Fn(&mut Session) -> Result<T, ZkError>) -> T {
        self.try_run(requests).unwrap_or_else(|e| panic!("ZooKeeper on port {}: {e:?}", self.port))
    }

    /// Creates a persistent node.
    #[track_caller]
    pub fn create(&self, path: &str, data: &str) {
        self.run(|session| session.create(path, data.as_bytes(), Mode::Persistent));
    }

    /// Creates a persistent node that only this user and the superuser may use.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    pub fn create_for(&self, path: &str, user: &str, password: &str) {
        let create = || {
            let mut session = Session::open(self.address(), TIMEOUT)?;
            session.log_in(user, password)?;
            session.create_private(path, b"", Mode::Persistent)?;
            session.close()
        };
        create().unwrap_or_else(|e| panic!("{path} is not created: {e:?}"));
    }

    /// The children of a node, sorted. Empty if it does not exist.
    #[must_use]
    pub fn children(&self, path: &str) -> Vec<String> {
        match self.try_run(|session| session.children(path)) {
            Err(error) if error.is_no_node() => Vec::new(),
            other => other.unwrap_or_else(|e| panic!("ZooKeeper on port {}: {e:?}", self.port)),
        }
    }

    /// All nodes below `path`, without the server's own below `/zookeeper`, sorted.
    #[must_use]
    pub fn nodes_below(&self, path: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut open = vec![path.trim_end_matches('/').to_owned()];
        while let Some(parent) = open.pop() {
            let children = self.children(if parent.is_empty() { "/" } else { &parent });
            let paths = children.into_iter().map(|child| format!("{parent}/{child}"));
            let paths: Vec<String> = paths.filter(|path| path != "/zookeeper").collect();
            found.extend_from_slice(&paths);
            open.extend(paths);
        }
        found.sort_unstable();
        found
    }

    /// The data of a node.
    #[must_use]
    pub fn get(&self, path: &str) -> String {
        String::from_utf8_lossy(&self.run(|session| session.get(path))).into_owned()
    }

    /// The metadata of a node, if it exists.
    #[must_use]
    pub fn stat(&self, path: &str) -> Option<Stat> {
        self.run(|session| session.stat(path))
    }

    /// Deletes a node. Returns true if it existed.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    pub fn delete(&self, path: &str) -> bool {
        match self.try_run(|session| session.delete(path)) {
            Ok(()) => true,
            Err(error) if error.is_no_node() => false,
            Err(error) => panic!("{path} is not deleted: {error:?}"),
        }
    }

    /// The ids of all sessions, without the kit's own, sorted. A follower knows all sessions, too.
    #[must_use]
    pub fn sessions(&self) -> Vec<i64> {
        let admin = self.admin.lock().unwrap_or_else(PoisonError::into_inner);
        let dump = self.ask("dump").unwrap_or_default();
        let (sessions, _) = dump.split_once("ephemeral nodes dump").unwrap_or((&dump, ""));
        let ids = sessions.lines().filter_map(|line| line.trim().strip_prefix("0x")?.split_whitespace().next());
        let ids = ids.filter_map(|id| u64::from_str_radix(id, 16).ok()).map(u64::cast_signed);
        let mut ids: Vec<i64> = ids.filter(|id| !admin.ids.contains(id)).collect();
        ids.sort_unstable();
        ids
    }

    /// Ends a session of a client, as if it had expired. Tries again if the client takes the
    /// session back first, by reconnecting.
    ///
    /// # Panics
    ///
    /// If there is no such session, or it does not end in time.
    pub fn expire(&self, session: i64) {
        let mut interrupted = None;
        let ended = wait_until(TIMEOUT, || {
            match Session::take_over(self.address(), session, TIMEOUT).and_then(Session::close) {
                Ok(()) => true,
                Err(ZkError::Io(error)) => {
                    interrupted = Some(error);
                    false
                }
                // An earlier attempt ended it, and its reply was lost.
                Err(ZkError::Expired) if interrupted.is_some() => true,
                Err(error) => panic!("the session {session:#x} does not end: {error:?}"),
            }
        });
        assert!(ended, "the session {session:#x} does not end: {interrupted:?}");
    }

    /// The number of the last transaction. Each write of a client, refused or not, takes one, and
    /// so does each begin and end of a session.
    ///
    /// # Panics
    ///
    /// If the server does not serve.
    #[must_use]
    pub fn zxid(&self) -> u64 {
        let text = self.ask("srvr").unwrap_or_default();
        let zxid = text.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("Zxid: 0x")?, 16).ok());
        zxid.unwrap_or_else(|| panic!("no zxid in {text}"))
    }

    /// A figure of the server (`mntr`).
    ///
    /// # Panics
    ///
    /// If the server has no such figure.
    #[must_use]
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.ask("mntr").unwrap_or_default();
        let figure = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t')?.parse().ok());
        figure.unwrap_or_else(|| panic!("ZooKeeper has no figure {name}"))
    }

    /// The answer to a four-letter word.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub fn ask(&self, word: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.address(), REPLY_TIMEOUT)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.write_all(word.as_bytes())?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// `standalone`, `leader` or `follower`. `None` while the server does not serve.
    #[must_use]
    pub fn mode(&self) -> Option<String> {
        let text = self.ask("srvr").ok()?;
        text.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
    }
}

//! Clients of other libraries: kazoo and Curator.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::Duration;

use super::java::{PROGRAM, java, javac};
use crate::TIMEOUT;
use crate::process::Process;

/// A process that uses another library, steered by lines. Killed on drop.
///
/// It obeys one command after the other, and answers each with a line:
///
/// | command | answers |
/// |---|---|
/// | `acquire PATH WAIT_MS` (`-`: forever) | `held NODE FENCE`, `busy` or `error NAME` |
/// | `release PATH` | `released` |
/// | `turns PATH COUNT HOLD_MS WITNESS` | `done COUNT`, see [`Witness`](crate::Witness) |
/// | kazoo: `lock PATH` | `held`: if the parent exists, with the fewest requests |
/// | kazoo: `cycles PATH COUNT` | `cycles COUNT SECONDS`: so locked and released |
/// | Curator: `write PATH WAIT_MS` | `held` or `busy`: the write lock of a read-write lock |
/// | Curator: `latch PATH ID` | `latched`, later `elected ID` and `deposed ID` |
/// | Curator: `leader PATH` | `leader ID` |
/// | Curator: `unlatch PATH` | `unlatched` |
///
/// The fence is the transaction that created the node, times 2^16. It also says how its connection
/// is: `state CONNECTED` and the like, see [`state`](Self::state).
#[derive(Debug)]
pub struct ZooKeeperPeer {
    process: Process,
    input: ChildStdin,
    lines: Receiver<String>,
    states: Receiver<String>,
}

impl ZooKeeperPeer {
    /// Starts a client of kazoo for these servers (`127.0.0.1:2181/chroot`). `node_name` comes
    /// between the id and the number in the name of its nodes: kazoo's own is `__lock__`.
    ///
    /// # Panics
    ///
    /// If Debian's Python or kazoo is not installed, or it does not connect.
    #[must_use]
    pub fn kazoo(hosts: &str, session: Duration, node_name: &str) -> Self {
        Self::start("KAZOO_PYTHON", "/usr/bin/python3", "python3-kazoo", |command| {
            command.arg(folder().join("kazoo_peer.py")).arg(hosts).arg(session.as_millis().to_string()).arg(node_name);
        })
    }

    /// Starts a client of Curator for these servers.
    ///
    /// # Panics
    ///
    /// If a JDK or Curator is not installed, or it does not connect.
    #[must_use]
    pub fn curator(hosts: &str, session: Duration) -> Self {
        let classes = javac(&folder().join("CuratorPeer.java"));
        Self::start("JAVA", PROGRAM, "default-jre-headless", |command| {
            command.args(java(&classes, "CuratorPeer").get_args()).arg(hosts).arg(session.as_millis().to_string());
        })
    }

    fn start(variable: &str, program: &str, package: &str, args: impl FnOnce(&mut Command)) -> Self {
        let mut process = Process::default();
        process.start(variable, program, package, |command| {
            args(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        });
        let (input, output) = process.pipes();
        let (line, lines) = channel();
        let (state, states) = channel();
        thread::spawn(move || {
            for text in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = match text.strip_prefix("state ") {
                    Some(new) => state.send(new.to_owned()),
                    None => line.send(text),
                };
            }
        });
        let peer = Self { process, input, lines, states };
        assert_eq!(peer.state(), "CONNECTED", "it does not connect");
        peer
    }

    /// Sends a command, and returns its answer.
    ///
    /// # Panics
    ///
    /// If there is none within [`TIMEOUT`].
    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.line()
    }

    /// Sends a command.
    ///
    /// # Panics
    ///
    /// If the process has ended.
    pub fn send(&mut self, command: &str) {
        writeln!(self.input, "{command}").expect("the peer runs");
    }

    /// The next line.
    ///
    /// # Panics
    ///
    /// If there is none within [`TIMEOUT`].
    #[must_use]
    pub fn line(&self) -> String {
        self.line_within(TIMEOUT)
    }

    /// The next line.
    ///
    /// # Panics
    ///
    /// If there is none within `limit`.
    #[must_use]
    pub fn line_within(&self, limit: Duration) -> String {
        self.lines.recv_timeout(limit).expect("the peer says nothing more")
    }

    /// Returns true if it has said nothing that was not read.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.lines.try_recv() == Err(TryRecvError::Empty)
    }

    /// The next change of its connection, in the words of its library: `SUSPENDED`, `LOST`, …
    ///
    /// # Panics
    ///
    /// If there is none within [`TIMEOUT`].
    #[must_use]
    pub fn state(&self) -> String {
        self.states.recv_timeout(TIMEOUT).expect("the peer's connection does not change")
    }

    /// The exit status, if it has ended without being killed. Returned once.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Kills it with SIGKILL. Its session lives on for its timeout.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Stops it with SIGSTOP.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Resumes it after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.process.resume();
    }
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/peers"))
}

//! A private NATS server.

use std::ffi::OsStr;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::{fs, io};

use lock_testkit::{Process, TIMEOUT, free_port, in_memory, launch_again, tail, wait_until_ready};
use tempfile::TempDir;

use crate::program;

/// Attempts with other ports: another process may take a port between finding and using it.
const MAX_PORT_ATTEMPTS: u32 = 10;
const PACKAGE: &str = "nats-server";

/// A running NATS server with JetStream on a free port of 127.0.0.1, with its data in memory.
/// Stopped on drop.
#[derive(Debug)]
pub struct NatsServer {
    process: Process,
    port: u16,
    dir: TempDir,
    args: Vec<String>,
}

impl NatsServer {
    /// Starts a server and waits until it replies.
    ///
    /// # Panics
    ///
    /// If it is not installed or does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Like [`start`](Self::start), with more arguments.
    ///
    /// # Panics
    ///
    /// As there.
    #[must_use]
    pub fn start_with(args: &[&str]) -> Self {
        let args = args.iter().copied().map(str::to_owned).collect();
        let mut server = Self { process: Process::default(), port: 0, dir: in_memory(), args };
        for _ in 0..MAX_PORT_ATTEMPTS {
            server.port = free_port();
            if server.launch().is_ok() {
                return server;
            }
        }
        panic!("nats-server does not start; its log ends with:\n{}", server.log_end());
    }

    /// The URL without a bucket.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills the server with SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Restarts the server on the same port with its data, and kills it first if it runs.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        launch_again("nats-server", self, Self::launch, Self::log_end);
    }

    /// Stops the server with SIGSTOP: it keeps its connections but does not reply.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Starts the process on `self.port`, and waits until it greets a connection.
    fn launch(&mut self) -> Result<(), String> {
        let program = program::find("NATS_BIN", &["/usr/bin", "/usr/sbin"].map(PathBuf::from), "nats-server");
        let (dir, log, port, args) = (self.dir.path().to_owned(), self.log(), self.port, self.args.clone());
        self.process.run(program.as_os_str(), PACKAGE, |command| {
            command.arg("--jetstream").arg("--addr").arg("127.0.0.1").arg("--port").arg(port.to_string());
            command.args([OsStr::new("--store_dir"), dir.as_os_str(), OsStr::new("--log"), log.as_os_str()]).args(args);
        });
        wait_until_ready(
            self,
            |server| server.process.ended(),
            |server| server.greets().is_ok_and(|greets| greets),
            Self::kill,
        )
    }

    /// The server speaks first.
    fn greets(&self) -> io::Result<bool> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let mut connection = TcpStream::connect_timeout(&address, TIMEOUT)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        Ok(connection.read(&mut [0; 8])? > 0)
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn log_end(&self) -> String {
        tail(&fs::read_to_string(self.log()).unwrap_or_default())
    }
}

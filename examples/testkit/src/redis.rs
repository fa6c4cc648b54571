//! A private Redis server.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

use tempfile::TempDir;

use crate::authority::ServerTls;
use crate::folder;
use crate::monitor::Monitor;
use crate::process::{Process, free_port, launch_again, tail, wait_until_ready};
use crate::resp::{Connection, Value};
use crate::{TIMEOUT, wait_until};

/// Attempts with other ports: another process may take a port between finding and using it.
const MAX_PORT_ATTEMPTS: u32 = 10;

/// Settings of a [`Redis`].
#[derive(Clone, Debug, Default)]
pub struct RedisBuilder {
    lines: Vec<String>,
    password: Option<String>,
    unix_socket: bool,
    tls: Option<ServerTls>,
}

impl RedisBuilder {
    /// Adds a line to the configuration file, as in `redis.conf`.
    pub fn arg(mut self, name: &str, value: impl AsRef<str>) -> Self {
        self.lines.push(format!("{name} {}", value.as_ref()));
        self
    }

    /// Sets the default user's password.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.arg("requirepass", password)
    }

    /// Adds a user, by the rules of `ACL SETUSER`: `.acl("worker", "on >secret ~lock:* +@all")`.
    pub fn acl(self, user: &str, rules: &str) -> Self {
        self.arg("user", format!("{user} {rules}"))
    }

    /// Keeps the data over restarts, with an fsync after each command.
    pub fn append_only(self) -> Self {
        self.arg("appendonly", "yes").arg("appendfsync", "always")
    }

    /// Also listens on a unix socket, see [`Redis::socket`].
    pub const fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Also listens on a port with TLS, see [`Redis::tls_url`].
    pub fn tls(mut self, tls: ServerTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Replicates `master`.
    pub fn replica_of(self, master: &Redis) -> Self {
        let replica = self.arg("replicaof", format!("127.0.0.1 {}", master.port));
        match &master.spec.password {
            Some(password) => replica.arg("masterauth", password),
            None => replica,
        }
    }

    /// Starts the server and waits until it replies.
    ///
    /// # Panics
    ///
    /// If `redis-server` is not installed or does not start.
    #[must_use]
    pub fn start(self) -> Redis {
        let dir = folder::temporary();
        let mut redis = Redis { process: Process::default(), port: 0, tls_port: 0, dir, spec: self };
        for _ in 0..MAX_PORT_ATTEMPTS {
            redis.port = free_port();
            redis.tls_port = free_port();
            if redis.launch().is_ok() {
                return redis;
            }
        }
        panic!("redis-server does not start; its log ends with:\n{}", redis.log_end());
    }
}

/// A running Redis server on a free port of 127.0.0.1. Stopped on drop.
#[derive(Debug)]
pub struct Redis {
    process: Process,
    port: u16,
    tls_port: u16,
    dir: TempDir,
    spec: RedisBuilder,
}

impl Redis {
    /// Starts a server without persistence.
    ///
    /// # Panics
    ///
    /// If `redis-server` is not installed or does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A builder for a server with settings.
    #[must_use]
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    /// Starts several servers.
    ///
    /// # Panics
    ///
    /// Like [`start`](Self::start).
    #[must_use]
    pub fn start_many(count: usize) -> Vec<Self> {
        (0..count).map(|_| Self::start()).collect()
    }

    /// The server's port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The server's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Path of the unix socket. Exists only with [`RedisBuilder::unix_socket`].
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// The server's URL, with the default user's password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.spec.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}", self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// The URL for a client without a certificate: with TLS if the server has it.
    #[must_use]
    pub fn lock_url(&self) -> String {
        match &self.spec.tls {
            Some(tls) => self.tls_url(&format!("ca={}", tls.ca.display())),
            None => self.url(),
        }
    }

    /// The URL of the port with TLS, with these parameters. Works only with [`RedisBuilder::tls`].
    #[must_use]
    pub fn tls_url(&self, query: &str) -> String {
        self.url().replace("redis://", "rediss://").replace(&format!(":{}", self.port), &format!(":{}", self.tls_port))
            + &format!("?{query}")
    }

    /// The address of the port with TLS.
    #[must_use]
    pub fn tls_address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.tls_port))
    }

    /// The server's URL for the given user.
    #[must_use]
    pub fn url_with(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}", self.port)
    }

    /// Opens a connection and logs in.
    #[must_use]
    pub fn connect(&self) -> Connection {
        self.try_connect(TIMEOUT).unwrap_or_else(|e| panic!("redis-server on port {}: {e}", self.port))
    }

    fn try_connect(&self, timeout: Duration) -> io::Result<Connection> {
        let mut connection = Connection::open(self.address(), timeout)?;
        if let Some(password) = &self.spec.password {
            connection.command(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Runs a command on a new connection.
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Value {
        self.connect().command(args).unwrap_or_else(|e| panic!("redis-server on port {}: {e}", self.port))
    }

    /// Runs a command, and returns the reply as text: see [`Value`]'s `Display`.
    pub fn cli(&self, args: &[&str]) -> String {
        self.command(args).to_string()
    }

    /// All keys of database 0, sorted.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let Value::Array(keys) = self.command(&["KEYS", "*"]) else { panic!("KEYS was refused") };
        let mut keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
        keys.sort_unstable();
        keys
    }

    /// Makes a server in cluster mode serve all slots, and waits until it does.
    ///
    /// # Panics
    ///
    /// If it refuses, or is not ready in time.
    pub fn serve_all_slots(&self) {
        // `ADDSLOTSRANGE` is newer than Redis 6.2.
        let slots = (0..16384).map(|slot| slot.to_string());
        let command: Vec<String> = ["CLUSTER", "ADDSLOTS"].map(str::to_owned).into_iter().chain(slots).collect();
        assert_eq!(self.command(&command).to_string(), "OK");
        let is_ready = || self.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
        assert!(wait_until(TIMEOUT, is_ready), "the cluster is not ready");
    }

    /// Collects all commands from now on.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor::attach(self)
    }

    /// Kills the server with SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Restarts the server on the same port, and kills it first if it runs. An
    /// [append-only](RedisBuilder::append_only) server keeps its data, any other starts empty.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        launch_again("redis-server", self, Self::launch, Self::log_end);
    }

    /// Restarts the server on the same port without its data.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart_empty(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(self.dir.path().join("appendonlydir"));
        for file in ["appendonly.aof", "dump.rdb"] {
            let _ = fs::remove_file(self.dir.path().join(file));
        }
        self.restart();
    }

    /// Stops the server with SIGSTOP: it keeps its connections but does not reply.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Starts the process on `self.port`, and waits until it replies.
    fn launch(&mut self) -> Result<(), String> {
        let path = self.dir.path().join("redis.conf");
        fs::write(&path, self.config()).expect("a file in a temporary directory");
        self.process.start("REDIS_SERVER", "redis-server", "redis-server", |command| {
            command.arg(path);
        });
        // A server of another test on this port would reply as well, so compare the process ids.
        let is_ready = |redis: &Self| redis.answering_process() == Some(redis.process.id());
        wait_until_ready(self, |redis| redis.process.ended(), is_ready, Self::kill)
    }

    fn answering_process(&self) -> Option<u32> {
        let mut connection = self.try_connect(Duration::from_secs(1)).ok()?;
        if connection.command(&["PING"]).ok()? != Value::Text(b"PONG".to_vec()) {
            return None;
        }
        let info = connection.command(&["INFO", "server"]).ok()?.to_string();
        info.lines().find_map(|line| line.strip_prefix("process_id:"))?.trim().parse().ok()
    }

    fn config(&self) -> String {
        let dir = self.dir.path().display();
        let mut config = format!(
            "bind 127.0.0.1\nport {}\ndir \"{dir}\"\nlogfile \"{dir}/redis.log\"\nsave \"\"\ndaemonize no\nrepl-diskless-sync-delay 0\n",
            self.port
        );
        if self.spec.unix_socket {
            let _ = writeln!(config, "unixsocket \"{}\"", self.socket().display());
        }
        if let Some(ServerTls { pair, ca, needs_client, .. }) = &self.spec.tls {
            let _ = writeln!(
                config,
                "tls-port {}\ntls-cert-file \"{}\"\ntls-key-file \"{}\"\ntls-ca-cert-file \"{}\"\ntls-auth-clients {}",
                self.tls_port,
                pair.cert.display(),
                pair.key.display(),
                ca.display(),
                if *needs_client { "yes" } else { "no" }
            );
        }
        for line in &self.spec.lines {
            let _ = writeln!(config, "{line}");
        }
        config
    }

    fn log_end(&self) -> String {
        tail(&fs::read_to_string(self.dir.path().join("redis.log")).unwrap_or_default())
    }
}

//! A Redis server of one's own.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::PATIENCE;
use crate::monitor::Monitor;
use crate::resp::{Connection, Value};
use crate::spawn::spawn;

/// How often another port is tried: somebody may take the one found between looking and using it.
const PORTS_TO_TRY: u32 = 10;

/// How a [`Redis`] is to be started.
#[derive(Clone, Debug, Default)]
pub struct RedisBuilder {
    lines: Vec<String>,
    password: Option<String>,
    unix_socket: bool,
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

    /// Keeps the data over restarts, written at each command.
    pub fn append_only(self) -> Self {
        self.arg("appendonly", "yes").arg("appendfsync", "always")
    }

    /// Listens on a unix socket as well, see [`Redis::socket`].
    pub const fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
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

    /// Starts the server and waits until it answers.
    ///
    /// # Panics
    ///
    /// If `redis-server` is not installed, or does not start.
    #[must_use]
    pub fn start(self) -> Redis {
        let dir = tempfile::Builder::new().prefix("lock-testkit-").tempdir().expect("a temporary directory");
        let mut redis = Redis { child: None, port: 0, dir, spec: self };
        for _ in 0..PORTS_TO_TRY {
            redis.port = free_port();
            if redis.launch().is_ok() {
                return redis;
            }
        }
        panic!("redis-server does not start; its log ends with:\n{}", redis.log_end());
    }
}

/// A running Redis server, on a free port of 127.0.0.1. Dropping it stops it.
#[derive(Debug)]
pub struct Redis {
    child: Option<Child>,
    port: u16,
    dir: TempDir,
    spec: RedisBuilder,
}

impl Redis {
    /// A server that keeps nothing over restarts.
    ///
    /// # Panics
    ///
    /// If `redis-server` is not installed, or does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A server with settings.
    #[must_use]
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    /// Several servers.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_many(count: usize) -> Vec<Self> {
        (0..count).map(|_| Self::start()).collect()
    }

    /// Its port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// Its process.
    ///
    /// # Panics
    ///
    /// If it was killed.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    /// Path of its unix socket. It is there only with [`RedisBuilder::unix_socket`].
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// Its URL, with the default user's password if it has one.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.spec.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}", self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// Its URL for a certain user.
    #[must_use]
    pub fn url_with(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@127.0.0.1:{}", self.port)
    }

    /// Opens a connection and logs in.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    #[must_use]
    pub fn connect(&self) -> Connection {
        self.try_connect(PATIENCE).unwrap_or_else(|e| panic!("redis-server on port {}: {e}", self.port))
    }

    fn try_connect(&self, patience: Duration) -> io::Result<Connection> {
        let mut connection = Connection::open(self.address(), patience)?;
        if let Some(password) = &self.spec.password {
            connection.command(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Runs a command on a connection of its own.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Value {
        self.connect().command(args).unwrap_or_else(|e| panic!("redis-server on port {}: {e}", self.port))
    }

    /// Runs a command, and gives the answer as text: see [`Value`]'s `Display`.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    pub fn cli(&self, args: &[&str]) -> String {
        self.command(args).to_string()
    }

    /// All keys of database 0, sorted.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let Value::Array(keys) = self.command(&["KEYS", "*"]) else { panic!("KEYS was refused") };
        let mut keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
        keys.sort_unstable();
        keys
    }

    /// Collects all commands from now on.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor::attach(self)
    }

    /// Kills the server as by `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again on the same port, after a kill if it runs. It has its data if it is
    /// [append-only](RedisBuilder::append_only), and nothing otherwise.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        let end = Instant::now() + PATIENCE;
        // The port may be in use for a moment by a connection of the past.
        while let Err(error) = self.launch() {
            assert!(Instant::now() < end, "redis-server does not start again: {error}\n{}", self.log_end());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts it again on the same port without its data.
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

    /// Stops it as by `kill -STOP`: it keeps its connections and answers nothing.
    ///
    /// # Panics
    ///
    /// If it was killed.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a paused server go on.
    ///
    /// # Panics
    ///
    /// If it was killed.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("the server runs");
        kill_process(Pid::from_child(child), signal).expect("a signal to one's own child");
    }

    /// Starts the process on `self.port`, and waits until it answers.
    fn launch(&mut self) -> Result<(), String> {
        let path = self.dir.path().join("redis.conf");
        fs::write(&path, self.config()).expect("a file in a temporary directory");
        let program = env::var_os("REDIS_SERVER").unwrap_or_else(|| OsString::from("redis-server"));
        let mut command = Command::new(&program);
        command.arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = match spawn(command) {
            Ok(child) => child,
            Err(e) if e.kind() == io::ErrorKind::NotFound => panic!(
                "{} is not installed, and this test needs it: run `make servers`, or install the package redis-server",
                program.display(),
            ),
            Err(e) => panic!("{} does not run: {e}", program.display()),
        };
        let pid = child.id();
        self.child = Some(child);
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                self.child = None;
                return Err(format!("it ended with {status}"));
            }
            // Somebody else's server on this port would answer as well: ask for the process.
            if self.answering_process() == Some(pid) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(3));
        }
        self.kill();
        Err(format!("no answer within {PATIENCE:?}"))
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
        for line in &self.spec.lines {
            let _ = writeln!(config, "{line}");
        }
        config
    }

    fn log_end(&self) -> String {
        let log = fs::read_to_string(self.dir.path().join("redis.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A port that nobody listens on at this moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port on loopback");
    listener.local_addr().expect("a bound socket has an address").port()
}

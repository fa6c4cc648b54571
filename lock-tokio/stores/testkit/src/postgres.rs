//! A private Postgres server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use lock_testkit::{Process, TIMEOUT, free_port, in_memory, launch_again, tail, wait_until, wait_until_ready};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::account::Account;
use crate::program;

/// Attempts with other ports: another process may take a port between finding and using it.
const MAX_PORT_ATTEMPTS: u32 = 10;
const PACKAGE: &str = "postgresql";

/// Settings of a [`Postgres`].
#[derive(Clone, Debug, Default)]
pub struct PostgresBuilder {
    settings: Vec<String>,
    access: String,
}

impl PostgresBuilder {
    /// Adds a setting, as in `postgresql.conf`.
    pub fn arg(mut self, name: &str, value: impl AsRef<str>) -> Self {
        self.settings.push(format!("{name}={}", value.as_ref()));
        self
    }

    /// Adds a line before the others to `pg_hba.conf`, which let everybody in without a password.
    pub fn access(mut self, line: &str) -> Self {
        self.access.push_str(line);
        self.access.push('\n');
        self
    }

    /// Starts the server and waits until it replies. It takes about a second.
    ///
    /// # Panics
    ///
    /// If Postgres is not installed or does not start.
    #[must_use]
    pub fn start(self) -> Postgres {
        self.start_on(Postgres::create)
    }

    /// Starts the server on the data that this makes.
    fn start_on(self, create: impl FnOnce(&Postgres)) -> Postgres {
        let dir = in_memory();
        let account = Account::in_place_of_root(&["postgres", "nobody"]);
        if let Some(account) = account {
            account.own(dir.path());
        }
        let mut postgres = Postgres { process: Process::default(), port: 0, dir, account, spec: self };
        create(&postgres);
        for _ in 0..MAX_PORT_ATTEMPTS {
            postgres.port = free_port();
            if postgres.launch().is_ok() {
                return postgres;
            }
        }
        panic!("Postgres does not start; its log ends with:\n{}", postgres.log_end());
    }
}

/// A running Postgres server on a free port of 127.0.0.1, with its data in memory. Stopped on
/// drop.
///
/// It does not sync its files, unless a setting says so. Without that it still keeps what it
/// confirmed when it is [killed](Self::kill), because the system does not end.
#[derive(Debug)]
pub struct Postgres {
    process: Process,
    port: u16,
    dir: TempDir,
    account: Option<Account>,
    spec: PostgresBuilder,
}

impl Postgres {
    /// Starts a server.
    ///
    /// # Panics
    ///
    /// If Postgres is not installed or does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A builder for a server with settings.
    #[must_use]
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::default()
    }

    /// Starts a standby of this server, with its settings. It follows asynchronously: this server
    /// confirms what the standby does not have yet.
    ///
    /// # Panics
    ///
    /// If this server does not run, or the standby does not start.
    #[must_use]
    pub fn standby(&self) -> Self {
        self.spec.clone().start_on(|standby| {
            let from = ["-R", "-c", "fast", "--no-sync", "-d", &self.url()];
            standby.make_data(Command::new(program_of("pg_basebackup")).args(from));
        })
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

    /// The process id of the server, the parent of those that serve connections.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The URL of the superuser, who needs no password.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_as("postgres")
    }

    /// The URL of a user.
    #[must_use]
    pub fn url_as(&self, user: &str) -> String {
        self.url_of(user, "postgres")
    }

    pub(crate) fn url_of(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// Runs SQL as the superuser on a new connection, and returns the rows as `psql -At` prints
    /// them.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    pub fn sql(&self, sql: &str) -> String {
        self.try_sql(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Runs SQL as the superuser on a new connection.
    ///
    /// # Errors
    ///
    /// What the server answered.
    ///
    /// # Panics
    ///
    /// If Postgres is not installed.
    pub fn try_sql(&self, sql: &str) -> Result<String, String> {
        psql(&self.url(), sql)
    }

    /// Kills the server and all its processes with SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.process.ended();
        if !self.process.is_running() {
            return;
        }
        // Stopped, so that it starts no others meanwhile.
        self.process.pause();
        self.signal_children(Signal::KILL);
        self.process.kill();
    }

    /// Restarts the server on the same port with its data, and kills it first if it runs.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        launch_again("Postgres", self, Self::launch, Self::log_end);
    }

    /// Stops all processes of the server with SIGSTOP: it keeps its connections but does not
    /// reply.
    pub fn pause(&self) {
        self.process.pause();
        assert!(!self.children().is_empty(), "/proc names no processes of the server");
        self.signal_children(Signal::STOP);
        let stopped = || self.children().iter().all(|pid| matches!(state(*pid), None | Some('T' | 'Z')));
        assert!(wait_until(TIMEOUT, stopped), "Postgres does not stop");
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        self.signal_children(Signal::CONT);
        self.process.resume();
    }

    /// The folder of its data.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn children(&self) -> Vec<Pid> {
        let pid = self.process.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    /// Those that ended meanwhile need no signal. The server is paused and collects none, so no
    /// number is reused.
    fn signal_children(&self, signal: Signal) {
        for child in self.children() {
            let _ = kill_process(child, signal);
        }
    }

    fn create(&self) {
        let settings = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync"];
        self.make_data(Command::new(program_of("initdb")).args(settings));
        let path = self.data().join("pg_hba.conf");
        let lines = fs::read_to_string(&path).expect("initdb makes it");
        fs::write(path, format!("{}{lines}", self.spec.access)).expect("it is writable");
    }

    /// Runs a program that makes the folder of the data.
    fn make_data(&self, command: &mut Command) {
        // It changes into its folder, and may not enter that of this process.
        command.arg("-D").arg(self.data()).current_dir(self.dir.path());
        if let Some(account) = self.account {
            account.run(command);
        }
        program::run(command, PACKAGE).unwrap_or_else(|error| panic!("{}: {error}", command.get_program().display()));
    }

    /// Starts the process on `self.port`, and waits until it accepts connections.
    fn launch(&mut self) -> Result<(), String> {
        let log = fs::File::options().create(true).append(true).open(self.log()).expect("a file in a temporary folder");
        let (dir, data, port) = (self.dir.path().to_owned(), self.data(), self.port.to_string());
        let (account, settings) = (self.account, self.spec.settings.clone());
        self.process.run(program_of("postgres").as_os_str(), PACKAGE, |command| {
            command.current_dir(dir).stderr(log).arg("-D").arg(data).args(["-h", "127.0.0.1", "-k", "", "-p", &port]);
            for setting in ["fsync=off"].into_iter().chain(settings.iter().map(String::as_str)) {
                command.args(["-c", setting]);
            }
            if let Some(account) = account {
                account.run(command);
            }
        });
        wait_until_ready(self, |server| server.process.ended(), Self::is_ready, Self::kill)
    }

    /// Its own file says so, and no server of another test can.
    fn is_ready(&self) -> bool {
        let file = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let mut lines = file.lines().map(str::trim);
        lines.next() == Some(&self.process.id().to_string()) && lines.nth(6).is_some_and(|state| state == "ready")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// What the server has logged so far.
    #[must_use]
    pub fn log_text(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    fn log_end(&self) -> String {
        tail(&self.log_text())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.process.is_running() {
            self.resume();
        }
        // Killed, it would leave a segment of shared memory behind.
        self.process.quit();
    }
}

/// Runs SQL on a new connection.
pub(crate) fn psql(url: &str, sql: &str) -> Result<String, String> {
    let mut command = Command::new(program_of("psql"));
    command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql]);
    command.env("PGCONNECT_TIMEOUT", "5");
    program::run(&mut command, PACKAGE).map(|rows| rows.trim_end().to_owned())
}

/// The program of this name.
fn program_of(name: &str) -> PathBuf {
    program::find("POSTGRES_BIN", &program::versions("/usr/lib/postgresql"), name)
}

/// The state of a process as in `/proc/PID/stat`; `None` if it is gone.
fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

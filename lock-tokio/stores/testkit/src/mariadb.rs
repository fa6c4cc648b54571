//! A private MariaDB server.

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use lock_testkit::{Process, TIMEOUT, free_port, in_memory, launch_again, tail, wait_until_ready};
use tempfile::TempDir;

use crate::account::Account;
use crate::program;

/// Attempts with other ports: another process may take a port between finding and using it.
const MAX_PORT_ATTEMPTS: u32 = 10;
const PACKAGE: &str = "mariadb-server-core mariadb-client-core";

/// A running MariaDB server on a free port of 127.0.0.1, with its data in memory. Stopped on
/// drop.
#[derive(Debug)]
pub struct MariaDb {
    process: Process,
    port: u16,
    dir: TempDir,
    account: Option<Account>,
}

impl MariaDb {
    /// Starts a server and waits until it replies. It takes some seconds.
    ///
    /// # Panics
    ///
    /// If MariaDB is not installed or does not start.
    #[must_use]
    pub fn start() -> Self {
        let dir = in_memory();
        let account = Account::in_place_of_root(&["mysql", "nobody"]);
        if let Some(account) = account {
            account.own(dir.path());
        }
        let mut mariadb = Self { process: Process::default(), port: 0, dir, account };
        mariadb.create();
        for _ in 0..MAX_PORT_ATTEMPTS {
            mariadb.port = free_port();
            if mariadb.launch().is_ok() {
                return mariadb;
            }
        }
        panic!("MariaDB does not start; its log ends with:\n{}", mariadb.log_end());
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The URL of the superuser, who needs no password, with the database `test`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/test", self.port)
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
        launch_again("MariaDB", self, Self::launch, Self::log_end);
    }

    /// Stops the server with SIGSTOP: it keeps its connections but does not reply.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        self.process.resume();
    }

    fn create(&self) {
        let mut command = Command::new(program_of("mariadb-install-db"));
        confine(&mut command, self.dir.path(), self.account);
        command.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-name-resolve"]);
        command.arg(format!("--datadir={}", self.data().display()));
        program::run(&mut command, PACKAGE).unwrap_or_else(|error| panic!("mariadb-install-db failed: {error}"));
    }

    /// Starts the process on `self.port`, and waits until it greets a connection.
    fn launch(&mut self) -> Result<(), String> {
        let log = fs::File::options().create(true).append(true).open(self.log()).expect("a file in a temporary folder");
        let (dir, data, port, account) = (self.dir.path().to_owned(), self.data(), self.port, self.account);
        self.process.run(program_of("mariadbd").as_os_str(), PACKAGE, |command| {
            confine(command, &dir, account);
            command.stderr(log).args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve"]);
            command.arg(format!("--port={port}")).arg(format!("--datadir={}", data.display()));
            command.arg(format!("--socket={}", dir.join("socket").display())).arg("--innodb-flush-log-at-trx-commit=2");
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
        let mut connection = TcpStream::connect_timeout(&self.address(), TIMEOUT)?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        Ok(connection.read(&mut [0; 8])? > 0)
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    fn log_end(&self) -> String {
        tail(&fs::read_to_string(self.log()).unwrap_or_default())
    }
}

/// The program of this name.
fn program_of(name: &str) -> PathBuf {
    program::find("MARIADB_BIN", &["/usr/bin", "/usr/sbin"].map(PathBuf::from), name)
}

/// Runs a program in the folder of its server. Its temporary tables are there, too: each server
/// deletes those of others when it starts.
fn confine(command: &mut Command, dir: &Path, account: Option<Account>) {
    command.current_dir(dir).env("TMPDIR", dir);
    if let Some(account) = account {
        account.run(command);
    }
}

//! A private PgBouncer.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;

use lock_testkit::{Process, free_port, in_memory, tail, wait_until_ready};
use tempfile::TempDir;

use crate::account::Account;
use crate::postgres::Postgres;

/// Attempts with other ports: another process may take a port between finding and using it.
const MAX_PORT_ATTEMPTS: u32 = 10;

/// A running PgBouncer in front of a [`Postgres`], in transaction mode: each transaction of a client
/// gets any of its connections to the server. Stopped on drop.
#[derive(Debug)]
pub struct PgBouncer {
    process: Process,
    port: u16,
    dir: TempDir,
}

impl PgBouncer {
    /// Starts it, with at most this many connections to the server.
    ///
    /// # Panics
    ///
    /// If PgBouncer is not installed or does not start.
    #[must_use]
    pub fn start(postgres: &Postgres, connections: u32) -> Self {
        let dir = in_memory();
        let account = Account::in_place_of_root(&["postgres", "nobody"]);
        if let Some(account) = account {
            account.own(dir.path());
        }
        let mut pgbouncer = Self { process: Process::default(), port: 0, dir };
        for _ in 0..MAX_PORT_ATTEMPTS {
            pgbouncer.port = free_port();
            let settings = format!(
                "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
                 unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = {connections}\n",
                postgres.port(),
                pgbouncer.port,
                pgbouncer.file("users").display()
            );
            fs::write(pgbouncer.file("users"), "\"postgres\" \"\"\n").expect("a file in a temporary folder");
            fs::write(pgbouncer.file("settings"), settings).expect("a file in a temporary folder");
            if pgbouncer.launch(account) {
                return pgbouncer;
            }
        }
        panic!("PgBouncer does not start; its log ends with:\n{}", tail(&pgbouncer.log()));
    }

    /// The URL of the superuser, through it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    fn launch(&mut self, account: Option<Account>) -> bool {
        let log = fs::File::create(self.file("log")).expect("a file in a temporary folder");
        let settings = self.file("settings");
        let program = ["/usr/sbin/pgbouncer", "pgbouncer"].into_iter().find(|path| Path::new(path).exists());
        self.process.run(program.unwrap_or("pgbouncer").as_ref(), "pgbouncer", |command| {
            command.current_dir("/").stderr(log).arg(settings);
            if let Some(account) = account {
                account.run(command);
            }
        });
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let is_ready = |server: &Self| server.log().contains("process up") && TcpStream::connect(address).is_ok();
        wait_until_ready(self, |server| server.process.ended(), is_ready, |server| server.process.kill()).is_ok()
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap_or_default()
    }
}

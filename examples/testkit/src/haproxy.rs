//! A private haproxy.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::authority::ServerTls;
use crate::folder;
use crate::process::{Process, free_port, wait_until_ready};

/// Attempts with other ports: another process may take a port between finding and using it.
const MAX_PORT_ATTEMPTS: u32 = 10;

/// A running haproxy on a free port of 127.0.0.1. It terminates TLS, passes bytes to a server
/// without TLS, and closes idle connections. Stopped on drop.
#[derive(Debug)]
pub struct Haproxy {
    process: Process,
    port: u16,
    dir: TempDir,
}

impl Haproxy {
    /// Starts haproxy with this certificate in front of `server`. A connection is closed once
    /// nothing was sent over it for `idle`.
    ///
    /// # Panics
    ///
    /// If `haproxy` is not installed or does not start.
    #[must_use]
    pub fn start(tls: &ServerTls, server: SocketAddr, idle: Duration) -> Self {
        let dir = folder::temporary();
        let mut haproxy = Self { process: Process::default(), port: 0, dir };
        let [cert, key] = [&tls.pair.cert, &tls.pair.key].map(|path| fs::read_to_string(path).expect("a certificate"));
        fs::write(haproxy.path("pair.pem"), cert + &key).expect("a file in a temporary directory");
        for _ in 0..MAX_PORT_ATTEMPTS {
            haproxy.port = free_port();
            if haproxy.launch(server, idle) {
                return haproxy;
            }
        }
        panic!("haproxy does not start");
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns false if it ended, for example because the port is taken.
    fn launch(&mut self, server: SocketAddr, idle: Duration) -> bool {
        let (pair, admin) = (self.path("pair.pem"), self.path("admin.sock"));
        let config = format!(
            "global\n stats socket {}\n\
             defaults\n mode tcp\n timeout connect 5s\n timeout client {idle}\n timeout server {idle}\n\
             frontend redis\n bind 127.0.0.1:{port} ssl crt {}\n default_backend redis\n\
             backend redis\n server redis {server}\n",
            admin.display(),
            pair.display(),
            idle = format_args!("{}ms", idle.as_millis()),
            port = self.port,
        );
        let path = self.path("haproxy.cfg");
        fs::write(&path, config).expect("a file in a temporary directory");
        // Debian puts it where only root looks.
        let program = if Path::new("/usr/sbin/haproxy").exists() { "/usr/sbin/haproxy" } else { "haproxy" };
        self.process.start("HAPROXY", program, "haproxy", |command| {
            // In the foreground, in one process.
            command.args(["-db", "-f"]).arg(path);
        });
        wait_until_ready(self, |haproxy| haproxy.process.ended(), Self::answers, |haproxy| haproxy.process.kill())
            .is_ok()
    }

    fn answers(&self) -> bool {
        let ask = || {
            let mut admin = UnixStream::connect(self.path("admin.sock"))?;
            admin.set_read_timeout(Some(Duration::from_secs(1)))?;
            admin.write_all(b"show info\n")?;
            let mut answer = String::new();
            admin.read_to_string(&mut answer).map(|_| answer)
        };
        ask().is_ok_and(|answer| answer.contains("\nPid: "))
    }
}

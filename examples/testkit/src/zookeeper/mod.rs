//! A private ZooKeeper server or ensemble.

mod builder;
mod ensemble;
mod inspect;
mod java;
mod peer;
mod session;
mod shared;
mod snapshot;

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::TIMEOUT;
use crate::folder;
use crate::process::{Process, free_port, tail, wait_until_ready};

pub use builder::ZooKeeperBuilder;
pub use ensemble::ZooKeeperEnsemble;
pub use peer::ZooKeeperPeer;
pub use session::{Mode, Session, Stat, ZkError};
pub use shared::Chroot;

/// Attempts with other ports: other processes may take ports between finding and using them.
const MAX_PORT_ATTEMPTS: u32 = 10;
/// A JVM that starts keeps a processor busy for a second: one at a time.
fn starting() -> MutexGuard<'static, ()> {
    static STARTING: Mutex<()> = Mutex::new(());
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server of an ensemble, as another one sees it.
#[derive(Clone, Copy, Debug)]
struct Member {
    id: usize,
    quorum_port: u16,
    election_port: u16,
}

/// A running ZooKeeper server on free ports of 127.0.0.1. Stopped on drop.
#[derive(Debug)]
pub struct ZooKeeper {
    process: Process,
    port: u16,
    tls_port: u16,
    quorum_port: u16,
    election_port: u16,
    members: Vec<Member>,
    dir: TempDir,
    spec: ZooKeeperBuilder,
    admin: Mutex<inspect::Admin>,
}

impl ZooKeeper {
    /// Starts a single server.
    ///
    /// # Panics
    ///
    /// If Java or ZooKeeper is not installed, or does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A builder for a server with settings.
    #[must_use]
    pub fn builder() -> ZooKeeperBuilder {
        ZooKeeperBuilder::default()
    }

    fn new(spec: ZooKeeperBuilder) -> Self {
        Self {
            process: Process::default(),
            port: free_port(),
            tls_port: free_port(),
            quorum_port: free_port(),
            election_port: free_port(),
            members: Vec::new(),
            dir: folder::in_memory(),
            spec,
            admin: Mutex::default(),
        }
    }

    const fn as_peer(&self, id: usize) -> Member {
        Member { id, quorum_port: self.quorum_port, election_port: self.election_port }
    }

    /// Makes this the server `id` of an ensemble.
    fn join(&mut self, id: usize, members: Vec<Member>) {
        self.members = members;
        let data = self.data();
        fs::create_dir_all(&data).expect("a folder in a temporary directory");
        fs::write(data.join("myid"), id.to_string()).expect("a file in a temporary directory");
    }

    /// The server's client port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The server's client address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The address of the port with TLS.
    #[must_use]
    pub fn tls_address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.tls_port))
    }

    /// The server's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The length of a tick.
    #[must_use]
    pub const fn tick(&self) -> Duration {
        self.spec.tick
    }

    /// The server's URL for locks, without a login. Like all others it names the tick, which a
    /// client cannot learn.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at("")
    }

    /// The server's URL for the given user.
    #[must_use]
    pub fn url_with(&self, user: &str, password: &str) -> String {
        self.url().replace("zk://", &format!("zk://{user}:{password}@"))
    }

    /// The URL of the port with TLS, with these parameters. Works only with
    /// [`ZooKeeperBuilder::tls`].
    #[must_use]
    pub fn tls_url(&self, query: &str) -> String {
        self.tls_url_at("", query)
    }

    /// The URL for a client without a certificate: with TLS if the server has it.
    #[must_use]
    pub fn lock_url(&self) -> String {
        self.lock_url_at("")
    }

    /// Returns true if it also listens on a port with TLS.
    #[must_use]
    pub const fn has_tls(&self) -> bool {
        self.spec.tls.is_some()
    }

    /// [`url`](Self::url) with this path as the chroot.
    fn url_at(&self, chroot: &str) -> String {
        format!("zk://{}{chroot}?{}", self.address(), self.spec.tick_query())
    }

    fn tls_url_at(&self, chroot: &str, query: &str) -> String {
        format!("zks://{}{chroot}?{}&{query}", self.tls_address(), self.spec.tick_query())
    }

    fn lock_url_at(&self, chroot: &str) -> String {
        match &self.spec.tls {
            Some(tls) => self.tls_url_at(chroot, &format!("ca={}", tls.ca.display())),
            None => self.url_at(chroot),
        }
    }

    /// Kills the server with SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Restarts the server with its data and waits until it serves. Kills it first if it runs. A
    /// member of an ensemble serves only once there is a leader.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&mut self) {
        let end = Instant::now() + TIMEOUT;
        loop {
            self.restart_without_waiting();
            match self.wait_until_ready() {
                Ok(()) => return,
                // An old connection may occupy the port for a moment.
                Err(error) => assert!(Instant::now() < end, "ZooKeeper does not start again: {error}"),
            }
        }
    }

    /// Like [`restart`](Self::restart), but does not wait.
    pub fn restart_without_waiting(&mut self) {
        self.kill();
        self.launch();
    }

    /// Restarts the server, whose next sequential child of `path` gets the number `next`. Works
    /// only for a single server.
    ///
    /// # Panics
    ///
    /// If there is no such node, or it does not start.
    pub fn restart_with_sequence(&mut self, path: &str, next: i32) {
        // As it starts, it writes a snapshot of what it has.
        self.restart();
        self.kill();
        snapshot::set_sequence(&self.data(), path, next);
        self.restart();
        assert!(self.stat(path).is_some(), "the server has not taken the snapshot");
    }

    /// Stops the server with SIGSTOP: it keeps its connections but does not reply.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        self.process.resume();
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn launch(&mut self) {
        self.admin.get_mut().unwrap_or_else(PoisonError::into_inner).current = None;
        let (dir, config) = (self.dir.path(), self.dir.path().join("zoo.cfg"));
        fs::write(&config, self.config()).expect("a file in a temporary directory");
        let (log, spec) = (dir.join("log"), &self.spec);
        self.process.start("JAVA", java::PROGRAM, "default-jre-headless", |command| {
            match spec.fast {
                true => command.args(["-Xmx512m", "-XX:+UseSerialGC", "-XX:-UsePerfData"]),
                false => command.args(java::QUICK),
            };
            command
                .args([
                    format!("-Dorg.slf4j.simpleLogger.logFile={}", log.display()),
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn".to_owned(),
                    format!("-Dzookeeper.DigestAuthenticationProvider.superDigest={}", inspect::SUPERUSER_DIGEST),
                    // KiB that each log file takes at once; the default is 64 MiB.
                    "-Dzookeeper.preAllocSize=1024".to_owned(),
                    // An edited snapshot would not match it.
                    "-Dzookeeper.digest.enabled=false".to_owned(),
                    // From 3.9 on, this follows its checksum.
                    "-Dzookeeper.serializeLastProcessedZxid.enabled=false".to_owned(),
                ])
                .args(&spec.properties)
                .arg("-cp")
                .arg(java::class_path())
                .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
                .arg(&config);
        });
    }

    fn config(&self) -> String {
        let mut config = format!(
            "tickTime={}\ninitLimit=50\nsyncLimit={}\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
             maxSessionTimeout=60000\nmaxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n\
             autopurge.purgeInterval=0\n",
            self.spec.tick.as_millis(),
            self.spec.sync_limit,
            self.data().display(),
            self.port,
        );
        for Member { id, quorum_port, election_port } in &self.members {
            let _ = writeln!(config, "server.{id}=127.0.0.1:{quorum_port}:{election_port}");
        }
        if let Some(tls) = &self.spec.tls {
            // The server wants the key and the certificate in one file.
            let [cert, key] = [&tls.pair.cert, &tls.pair.key].map(|path| fs::read_to_string(path).expect("a file"));
            let pair = self.dir.path().join("pair.pem");
            fs::write(&pair, key + &cert).expect("a file in a temporary directory");
            let _ = writeln!(
                config,
                "secureClientPort={}\nsecureClientPortAddress=127.0.0.1\n\
                 serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
                 ssl.keyStore.location={}\nssl.keyStore.type=PEM\nssl.trustStore.location={}\n\
                 ssl.trustStore.type=PEM\nssl.clientAuth={}\nssl.hostnameVerification=false\n\
                 ssl.clientHostnameVerification=false",
                self.tls_port,
                pair.display(),
                tls.ca.display(),
                if tls.needs_client { "need" } else { "none" },
            );
        }
        for line in &self.spec.lines {
            let _ = writeln!(config, "{line}");
        }
        config
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        wait_until_ready(self, |zookeeper| zookeeper.process.ended(), Self::serves, Self::kill)
            .map_err(|error| format!("{error}; its log ends with:\n{}", self.log_end()))
    }

    /// Returns true if this server serves clients, and not another test's server on the same port.
    fn serves(&self) -> bool {
        let data = format!("dataDir={}", self.data().display());
        self.ask("conf").is_ok_and(|conf| conf.contains(&data)) && self.mode().is_some()
    }

    fn log_end(&self) -> String {
        tail(&fs::read_to_string(self.dir.path().join("log")).unwrap_or_default())
    }
}

//! A private etcd server or cluster.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use tempfile::TempDir;

use crate::authority::{ServerTls, SigningKey};
use crate::folder;
use crate::process::{Process, free_port, program_of, tail, wait_until_ready};
use crate::{TIMEOUT, wait_until};

/// Attempts with other ports: other processes may take ports between finding and using them.
const MAX_PORT_ATTEMPTS: u32 = 10;
/// Time limit for one request to a server that is starting.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// Name and password of the superuser, for servers with authentication.
const ROOT: (&str, &str) = ("root", "root-secret");

/// Settings of an [`Etcd`].
#[derive(Clone, Debug, Default)]
pub struct EtcdBuilder {
    args: Vec<String>,
    users: Vec<(String, String, Option<String>)>,
    auth: bool,
    tls: Option<ServerTls>,
    /// Keeps the files.
    signing_key: Option<SigningKey>,
}

impl EtcdBuilder {
    /// Adds a command-line argument.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Enables authentication: for `root` with `root-secret`, and for users added by
    /// [`user`](Self::user).
    pub const fn auth(mut self) -> Self {
        self.auth = true;
        self
    }

    /// Adds a user with access to the keys that begin with `prefix`, or to no keys. Implies
    /// [`auth`](Self::auth).
    pub fn user(mut self, name: &str, password: &str, prefix: Option<&str>) -> Self {
        self.users.push((name.to_owned(), password.to_owned(), prefix.map(str::to_owned)));
        self.auth()
    }

    /// Also listens on a port with TLS, see [`Etcd::tls_url`].
    pub fn tls(mut self, tls: ServerTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Lifetime of a login in seconds. Implies [`auth`](Self::auth).
    pub fn token_ttl(self, seconds: u32) -> Self {
        self.arg(format!("--auth-token-ttl={seconds}")).auth()
    }

    /// Members sign tokens (`--auth-token jwt`), which are valid for this many seconds whether used
    /// or not. Implies [`auth`](Self::auth).
    ///
    /// # Panics
    ///
    /// If the temporary folder for the keys cannot be written.
    pub fn jwt(mut self, seconds: u32) -> Self {
        let key = SigningKey::new();
        let (public, private) = (key.public().display().to_string(), key.private().display().to_string());
        self.signing_key = Some(key);
        let keys = format!("pub-key={public},priv-key={private},sign-method=ES256");
        self.arg(format!("--auth-token=jwt,{keys},ttl={seconds}s")).auth()
    }

    /// Starts the server and waits until it replies.
    ///
    /// # Panics
    ///
    /// If `etcd` or `etcdctl` is not installed, or does not start.
    #[must_use]
    pub fn start(self) -> Etcd {
        let mut cluster = self.start_cluster(1);
        cluster.members.pop().expect("a cluster of one has one member")
    }

    /// Starts a cluster of `count` members and waits until it has a leader.
    ///
    /// # Panics
    ///
    /// Like [`start`](Self::start).
    #[must_use]
    pub fn start_cluster(self, count: usize) -> EtcdCluster {
        let mut why = String::new();
        for _ in 0..MAX_PORT_ATTEMPTS {
            match self.try_start(count) {
                Ok(cluster) => {
                    if self.auth {
                        cluster.enable_auth(&self.users);
                    }
                    return cluster;
                }
                Err(error) => why = error,
            }
        }
        panic!("etcd does not start: {why}");
    }

    fn try_start(&self, count: usize) -> Result<EtcdCluster, String> {
        static CLUSTERS: AtomicU32 = AtomicU32::new(0);
        // Unique, to tell a member from another test's server on the same port.
        let token = format!("kit-{}-{}", process::id(), CLUSTERS.fetch_add(1, Ordering::Relaxed));
        let mut members: Vec<Etcd> =
            (0..count).map(|number| Etcd::new(format!("{token}-{number}"), self.clone())).collect();
        let peers: Vec<String> =
            members.iter().map(|member| format!("{}={}", member.name, member.peer_url())).collect();
        let peers = peers.join(",");
        for member in &mut members {
            member.peers.clone_from(&peers);
            member.launch();
        }
        for member in &mut members {
            member.wait_until_ready()?;
        }
        Ok(EtcdCluster { members })
    }
}

/// A running etcd server on free ports of 127.0.0.1. Stopped on drop.
///
/// Elections are quick, so that the minimal TTL of a lease is one second.
#[derive(Debug)]
pub struct Etcd {
    process: Process,
    name: String,
    port: u16,
    tls_port: u16,
    peer_port: u16,
    peers: String,
    /// It joins a cluster that runs already.
    joins: bool,
    dir: TempDir,
    spec: EtcdBuilder,
}

impl Etcd {
    /// Starts a single server without users.
    ///
    /// # Panics
    ///
    /// If `etcd` or `etcdctl` is not installed, or does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A builder for a server with settings.
    #[must_use]
    pub fn builder() -> EtcdBuilder {
        EtcdBuilder::default()
    }

    fn new(name: String, spec: EtcdBuilder) -> Self {
        Self {
            process: Process::default(),
            name,
            port: free_port(),
            tls_port: free_port(),
            peer_port: free_port(),
            peers: String::new(),
            joins: false,
            dir: folder::in_memory(),
            spec,
        }
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

    /// The server's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The server's URL for locks, with `root`'s login if authentication is enabled.
    #[must_use]
    pub fn url(&self) -> String {
        match self.spec.auth {
            true => self.url_with(ROOT.0, ROOT.1),
            false => format!("etcd://127.0.0.1:{}", self.port),
        }
    }

    /// The server's URL for the given user.
    #[must_use]
    pub fn url_with(&self, user: &str, password: &str) -> String {
        format!("etcd://{user}:{password}@127.0.0.1:{}", self.port)
    }

    /// The URL for a client without a certificate: with TLS if the server has it.
    #[must_use]
    pub fn lock_url(&self) -> String {
        match &self.spec.tls {
            Some(tls) => self.tls_url(&format!("ca={}", tls.ca.display())),
            None => self.url(),
        }
    }

    /// The URL of the port with TLS, with these parameters. Works only with [`EtcdBuilder::tls`].
    #[must_use]
    pub fn tls_url(&self, query: &str) -> String {
        self.url().replace("etcd://", "etcds://").replace(&format!(":{}", self.port), &format!(":{}", self.tls_port))
            + &format!("?{query}")
    }

    /// Runs `etcdctl` with version 3 of the API, as `root` if authentication is enabled. Returns
    /// its output without the last newline.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn etcdctl(&self, args: &[&str]) -> String {
        self.try_etcdctl(args).unwrap_or_else(|error| panic!("etcdctl {args:?}: {error}"))
    }

    /// Like [`etcdctl`](Self::etcdctl), but returns errors.
    ///
    /// # Errors
    ///
    /// The error output of `etcdctl`.
    ///
    /// # Panics
    ///
    /// If it is not installed.
    pub fn try_etcdctl(&self, args: &[&str]) -> Result<String, String> {
        run(&mut self.etcdctl_command(args))
    }

    /// The `etcdctl` command, for long-running ones such as `etcdctl lock` or `etcdctl elect`.
    #[must_use]
    pub fn etcdctl_command(&self, args: &[&str]) -> Command {
        etcdctl_command(&self.address().to_string(), self.spec.auth, args)
    }

    /// All keys, sorted.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.keys_of("")
    }

    /// The keys that begin with `prefix`, sorted.
    #[must_use]
    pub fn keys_of(&self, prefix: &str) -> Vec<String> {
        let all = self.etcdctl(&["get", "--prefix", "--keys-only", prefix]);
        all.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> String {
        self.etcdctl(&["get", "--print-value-only", key])
    }

    /// Writes a key.
    pub fn put(&self, key: &str, value: &str) {
        self.etcdctl(&["put", key, value]);
    }

    /// Deletes a key. Returns true if it existed.
    pub fn delete(&self, key: &str) -> bool {
        self.etcdctl(&["del", key]) == "1"
    }

    /// The ids of all leases, sorted, in hexadecimal without padding as in keys.
    #[must_use]
    pub fn leases(&self) -> Vec<String> {
        let all = self.etcdctl(&["lease", "list"]);
        // `etcdctl` pads them with zeros.
        let ids = all.lines().skip(1).filter(|line| !line.is_empty()).map(|id| id.trim_start_matches('0').to_owned());
        let mut leases: Vec<String> = ids.collect();
        leases.sort_unstable();
        leases
    }

    /// Revokes a lease, by its id in hexadecimal.
    ///
    /// # Panics
    ///
    /// If there is no such lease, or the server does not reply.
    pub fn revoke(&self, lease: &str) {
        self.etcdctl(&["lease", "revoke", lease]);
    }

    /// The revision of the store.
    #[must_use]
    pub fn revision(&self) -> i64 {
        let fields = self.etcdctl(&["get", "no such key", "-w", "fields"]);
        let revision = fields.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
        revision.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no revision in {fields}"))
    }

    /// The sum of a metric of the server (`/metrics`) over labels that contain `label`. Reading
    /// metrics does not count as a request.
    ///
    /// # Panics
    ///
    /// If the server does not reply, or has no such metric.
    #[must_use]
    pub fn metric(&self, name: &str, label: &str) -> u64 {
        let page = crate::http::get(self.address(), "/metrics", TIMEOUT);
        let page = page.unwrap_or_else(|e| panic!("the figures of etcd on port {}: {e}", self.port));
        let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
        let figures: Vec<f64> = lines
            .filter(|(labels, _)| (labels.is_empty() || labels.starts_with('{')) && labels.contains(label))
            .filter_map(|(_, figure)| figure.parse().ok())
            .collect();
        assert!(!figures.is_empty(), "etcd has no figure {name} with {label:?}");
        figures.iter().sum::<f64>() as u64
    }

    /// Compacts the history up to now.
    pub fn compact(&self) {
        self.etcdctl(&["compact", &self.revision().to_string()]);
    }

    /// Kills the server with SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Restarts the server with its data and waits until it replies. Kills it first if it runs. A
    /// member of a cluster replies only once the cluster has a leader.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        let end = Instant::now() + TIMEOUT;
        loop {
            self.launch();
            match self.wait_until_ready() {
                Ok(()) => return,
                Err(error) => assert!(Instant::now() < end, "etcd does not start again: {error}"),
            }
            // An old connection may occupy a port for a moment.
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Restarts the server with its data, without waiting for a reply: there is none while its
    /// cluster has no quorum.
    pub fn restart_without_waiting(&mut self) {
        self.kill();
        self.launch();
    }

    /// Stops the server with SIGSTOP: it keeps its connections but does not reply.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        self.process.resume();
    }

    fn client_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port)
    }

    fn launch(&mut self) {
        let (client, peer, dir) = (self.client_url(), self.peer_url(), self.dir.path());
        let mut listen = client.clone();
        let mut tls_flags = Vec::new();
        if let Some(ServerTls { pair, ca, needs_client, .. }) = &self.spec.tls {
            listen += &format!(",https://127.0.0.1:{}", self.tls_port);
            tls_flags =
                vec![("cert-file", pair.cert.display().to_string()), ("key-file", pair.key.display().to_string())];
            if *needs_client {
                tls_flags.push(("trusted-ca-file", ca.display().to_string()));
                tls_flags.push(("client-cert-auth", "true".to_owned()));
            }
        }
        let flags = [
            ("name", self.name.clone()),
            ("data-dir", dir.join("data").display().to_string()),
            ("listen-client-urls", listen),
            ("advertise-client-urls", client),
            ("listen-peer-urls", peer.clone()),
            ("initial-advertise-peer-urls", peer),
            ("initial-cluster", self.peers.clone()),
            ("initial-cluster-state", if self.joins { "existing" } else { "new" }.to_owned()),
            ("initial-cluster-token", self.name.rsplit_once('-').map_or("kit", |(token, _)| token).to_owned()),
            ("heartbeat-interval", "30".to_owned()),
            ("election-timeout", "300".to_owned()),
            // Keeps logins cheap. On a busy machine they could take longer than the short waits of
            // the tests.
            ("bcrypt-cost", "4".to_owned()),
            ("logger", "zap".to_owned()),
            ("log-level", "warn".to_owned()),
            ("log-outputs", dir.join("log").display().to_string()),
        ];
        self.process.start("ETCD", "etcd", "etcd-server", |command| {
            // etcd would take settings from the environment too.
            for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_")) {
                command.env_remove(name);
            }
            command
                .args(flags.iter().chain(&tls_flags).map(|(name, value)| format!("--{name}={value}")))
                .args(&self.spec.args);
        });
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        wait_until_ready(self, |etcd| etcd.process.ended(), Self::replies, Self::kill)
            .map_err(|error| format!("{error}; its log ends with:\n{}", self.log_end()))
    }

    /// Returns true if this member replies and has a leader, and not another test's server on the
    /// same port. Uses the JSON gateway, which needs no extra process.
    fn replies(&self) -> bool {
        let post = |path: &str, body: &str| crate::http::post(self.address(), path, body, REPLY_TIMEOUT);
        post("/v3/cluster/member/list", "{}").is_ok_and(|members| members.contains(&self.name))
            && post("/v3/maintenance/status", "{}").is_ok_and(|status| status.contains("\"leader\""))
    }

    fn log_end(&self) -> String {
        tail(&fs::read_to_string(self.dir.path().join("log")).unwrap_or_default())
    }
}

/// A cluster of members.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Etcd>,
}

impl EtcdCluster {
    /// Starts a cluster without users.
    ///
    /// # Panics
    ///
    /// Like [`Etcd::start`].
    #[must_use]
    pub fn start(count: usize) -> Self {
        Etcd::builder().start_cluster(count)
    }

    /// The members.
    #[must_use]
    pub fn members(&self) -> &[Etcd] {
        &self.members
    }

    /// One member.
    ///
    /// # Panics
    ///
    /// If `index` is out of range.
    pub fn member(&mut self, index: usize) -> &mut Etcd {
        &mut self.members[index]
    }

    /// The URL of all members, with `root`'s login if authentication is enabled.
    #[must_use]
    pub fn url(&self) -> String {
        let login = if self.has_auth() { format!("{}:{}@", ROOT.0, ROOT.1) } else { String::new() };
        format!("etcd://{login}{}", self.endpoints())
    }

    /// Runs `etcdctl` with all members as endpoints: see [`Etcd::etcdctl`].
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn etcdctl(&self, args: &[&str]) -> String {
        let mut command = etcdctl_command(&self.endpoints(), self.has_auth(), args);
        run(&mut command).unwrap_or_else(|error| panic!("etcdctl {args:?}: {error}"))
    }

    /// Starts another member, which does not vote, and waits until it has joined. It is not one of
    /// [`members`](Self::members).
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn start_learner(&self) -> Etcd {
        let first = &self.members[0];
        let mut learner = Etcd::new(format!("{}-learner", first.name), first.spec.clone());
        learner.joins = true;
        let peer = format!("{}={}", learner.name, learner.peer_url());
        learner.peers = format!("{},{peer}", first.peers);
        let urls = format!("--peer-urls={}", learner.peer_url());
        // etcd refuses until all members have been connected for a few seconds.
        let add = || first.try_etcdctl(&["member", "add", &learner.name, "--learner", &urls]).is_ok();
        assert!(wait_until(TIMEOUT, add), "the cluster does not accept a learner");
        learner.launch();
        // It has joined once it reports its URL, which the others show in their list.
        let url = learner.client_url();
        let joined = wait_until(TIMEOUT, || first.etcdctl(&["member", "list"]).contains(&url));
        assert!(joined, "the learner does not join; its log ends with:\n{}", learner.log_end());
        learner
    }

    /// The index of the leader. Waits until exactly one member claims to lead.
    ///
    /// # Panics
    ///
    /// If there is none within [`TIMEOUT`].
    #[must_use]
    pub fn leader(&self) -> usize {
        let mut found = None;
        let is_there = wait_until(TIMEOUT, || {
            let leads = |member: &Etcd| {
                // Endpoint, id, version, size, is leader, …
                let status = member.try_etcdctl(&["endpoint", "status", "--command-timeout=1s"]);
                status.is_ok_and(|status| status.split(", ").nth(4) == Some("true"))
            };
            let mut leaders = self.members.iter().enumerate().filter(|(_, member)| leads(member));
            found = leaders.next().map(|(index, _)| index);
            found.is_some() && leaders.next().is_none()
        });
        found.filter(|_| is_there).expect("no member leads")
    }

    fn endpoints(&self) -> String {
        let addresses: Vec<String> = self.members.iter().map(|member| member.address().to_string()).collect();
        addresses.join(",")
    }

    fn has_auth(&self) -> bool {
        self.members.first().is_some_and(|member| member.spec.auth)
    }

    fn enable_auth(&self, users: &[(String, String, Option<String>)]) {
        let endpoints = self.endpoints();
        let run = |args: &[&str]| {
            let mut command = etcdctl_command(&endpoints, false, args);
            run(&mut command).unwrap_or_else(|error| panic!("etcdctl {args:?}: {error}"));
        };
        run(&["user", "add", &format!("{}:{}", ROOT.0, ROOT.1)]);
        for (name, password, prefix) in users {
            run(&["user", "add", &format!("{name}:{password}")]);
            run(&["role", "add", name]);
            if let Some(prefix) = prefix {
                run(&["role", "grant-permission", name, "--prefix=true", "readwrite", prefix]);
            }
            run(&["user", "grant-role", name, name]);
        }
        run(&["user", "grant-role", ROOT.0, "root"]);
        run(&["auth", "enable"]);
    }
}

fn etcdctl_command(endpoints: &str, auth: bool, args: &[&str]) -> Command {
    let mut command = Command::new(program_of("ETCDCTL", "etcdctl"));
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCDCTL_")) {
        command.env_remove(name);
    }
    command.env("ETCDCTL_API", "3").arg(format!("--endpoints={endpoints}"));
    if auth {
        command.arg(format!("--user={}:{}", ROOT.0, ROOT.1));
    }
    command.args(args);
    command
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap_or_else(|e| {
        panic!("etcdctl does not run: {e}. Run `make servers`, or install the package etcd-client");
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\n').to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

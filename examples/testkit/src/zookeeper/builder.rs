//! Settings of a server.

use std::time::Duration;

use super::{MAX_PORT_ATTEMPTS, ZooKeeper, ZooKeeperEnsemble};
use crate::authority::ServerTls;

/// Default length of a tick. The server's default of 3 s makes tests long.
const TICK: Duration = Duration::from_millis(200);

/// Settings of a [`ZooKeeper`].
#[derive(Clone, Debug)]
pub struct ZooKeeperBuilder {
    pub(super) tick: Duration,
    pub(super) sync_limit: u32,
    pub(super) lines: Vec<String>,
    pub(super) properties: Vec<String>,
    pub(super) tls: Option<ServerTls>,
    pub(super) links: bool,
    pub(super) fast: bool,
}

impl Default for ZooKeeperBuilder {
    fn default() -> Self {
        Self {
            tick: TICK,
            sync_limit: 10,
            lines: Vec::new(),
            properties: Vec::new(),
            tls: None,
            links: false,
            fast: false,
        }
    }
}

impl ZooKeeperBuilder {
    /// Sets the length of a tick, by default 200 ms. A session may be as short as two.
    pub const fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Sets the number of ticks after which a follower and its leader give each other up. By
    /// default 10.
    pub const fn sync_limit(mut self, ticks: u32) -> Self {
        self.sync_limit = ticks;
        self
    }

    /// Adds a line to the configuration file, as in `zoo.cfg`.
    pub fn line(mut self, name: &str, value: impl AsRef<str>) -> Self {
        self.lines.push(format!("{name}={}", value.as_ref()));
        self
    }

    /// Sets a system property of the server.
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push(format!("-D{name}={value}"));
        self
    }

    /// Deletes empty containers after at most twice this time. The server's default is a minute.
    pub fn container_check(self, interval: Duration) -> Self {
        self.property("znode.container.checkIntervalMs", &interval.as_millis().to_string())
    }

    /// Also listens on a port with TLS, see [`ZooKeeper::tls_url`].
    pub fn tls(mut self, tls: ServerTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Connects the members of an ensemble by proxies, for [`ZooKeeperEnsemble::isolate`].
    pub const fn links(mut self) -> Self {
        self.links = true;
        self
    }

    /// Lets the JVM optimise fully and take more memory, for measurements. It starts slower.
    pub const fn optimised(mut self) -> Self {
        self.fast = true;
        self
    }

    /// The tick as a parameter of a URL.
    pub(super) fn tick_query(&self) -> String {
        format!("tick_ms={}", self.tick.as_millis())
    }

    /// Starts a single server and waits until it serves.
    ///
    /// # Panics
    ///
    /// If Java or ZooKeeper is not installed, or does not start.
    #[must_use]
    pub fn start(self) -> ZooKeeper {
        let mut why = String::new();
        for _ in 0..MAX_PORT_ATTEMPTS {
            let _starting = super::starting();
            let mut server = ZooKeeper::new(self.clone());
            server.launch();
            match server.wait_until_ready() {
                Ok(()) => return server,
                Err(error) => why = error,
            }
        }
        panic!("ZooKeeper does not start: {why}");
    }

    /// Starts an ensemble of `count` servers and waits until it serves.
    ///
    /// # Panics
    ///
    /// Like [`start`](Self::start).
    #[must_use]
    pub fn start_ensemble(self, count: usize) -> ZooKeeperEnsemble {
        ZooKeeperEnsemble::start_with(&self, count)
    }
}

//! The addresses of a server, and the order in which the driver tries them.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
#[cfg(feature = "tls")]
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, SocketAddr};

use super::connect::ConnectError;
use super::fault::OpenError;
#[cfg(feature = "tls")]
use super::reads::Reads;
use super::settings::HostSettings;
#[cfg(feature = "tls")]
use super::tls::{Connector, TlsSettings};
use lock_proto::Cause;
use lock_proto::Instant;
use lock_proto::Target;
use lock_proto::{ConnId, NodeId};

/// Reasons of failed attempts that are remembered for the log.
const REASONS: usize = 8;

/// Where a [`Host`](super::Host) connects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// A TCP port.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(Box<str>),
}

/// The name of a cluster in reports: one URL with all servers. All of them use TLS, or none does.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(super) fn cluster_name<'a>(
    scheme: &str,
    scheme_with_tls: &str,
    servers: impl IntoIterator<Item = &'a Target>,
) -> Box<str> {
    let (mut scheme, mut names) = (scheme, Vec::new());
    for server in servers {
        if let Target::Tls { .. } = server {
            scheme = scheme_with_tls;
        }
        names.push(ToString::to_string(server));
    }
    alloc::format!("{scheme}://{}", names.join(",")).into()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => f.write_str(path),
        }
    }
}

/// A server and its known addresses. `R` is the future of [`Host::resolve`](super::Host::resolve).
pub(super) struct Route<R> {
    pub(super) target: Target,
    /// A resolution that took longer than its attempt to connect, and when it began. The next
    /// attempt continues it, or a slow resolver would never get to its answer.
    pub(super) resolving: Option<(Instant, R)>,
    /// Addresses to try last: connecting failed or was abandoned, or the server there did not reply
    /// or refuses writes.
    last: Vec<Address>,
    /// The address of the command connection (on etcd, of the only one).
    pub(super) current: Option<Address>,
    /// Why attempts to connect have failed since the last success: the newest reasons.
    failures: VecDeque<Cause>,
    #[cfg(feature = "tls")]
    pub(super) connector: Option<Connector>,
    /// Unfinished reads of the connector's files.
    #[cfg(feature = "tls")]
    pub(super) reads: Reads,
}

/// How a target becomes addresses.
pub(super) enum Lookup<'a> {
    Address(Address),
    Name { host: &'a str, port: u16 },
}

/// The routes to the servers of a client, by node.
pub(super) struct Routes<R> {
    routes: BTreeMap<NodeId, Route<R>>,
    #[cfg(feature = "tls")]
    tls: TlsSettings,
}

impl<R> Routes<R> {
    /// Loads the certificates of all servers, so that errors in the settings come early.
    pub(super) fn new<'a>(
        targets: impl IntoIterator<Item = &'a Target>,
        settings: &HostSettings,
        http2: bool,
    ) -> Result<Self, ConnectError> {
        #[cfg(not(feature = "tls"))]
        let _ = (settings, http2);
        let mut routes = Self {
            routes: BTreeMap::new(),
            #[cfg(feature = "tls")]
            // The platform's trust store is read again for each client.
            tls: TlsSettings { http2, platform: Arc::default(), ..settings.tls.clone() },
        };
        for (index, target) in (0..).zip(targets) {
            routes.set(NodeId::new(index), target)?;
        }
        #[cfg(feature = "tls")]
        if routes.tls.config.is_some() && routes.routes.values().all(|route| route.connector.is_none()) {
            return Err(ConnectError::Tls(
                "`tls_config` needs a URL with TLS: rediss://, valkeys://, etcds:// or zks://".into(),
            ));
        }
        Ok(routes)
    }

    /// Sets where a node is now. Its route stays if that has not changed.
    // N8
    pub(super) fn set(&mut self, node: NodeId, target: &Target) -> Result<&mut Route<R>, ConnectError> {
        let new = match self.routes.get(&node) {
            Some(route) if route.target == *target => None,
            Some(_) | None => Some(self.route(target)?),
        };
        let route = self.routes.entry(node).or_insert_with(|| Route::plain(target.clone()));
        if let Some(new) = new {
            *route = new;
        }
        Ok(route)
    }

    /// Returns a route to a server. Reads no files if a known server has the same TLS settings: for
    /// a server that another one has reported, this runs in the driver's task.
    #[cfg(feature = "tls")]
    fn route(&self, target: &Target) -> Result<Route<R>, ConnectError> {
        let Target::Tls { host, tls, .. } = target else { return Ok(Route::plain(target.clone())) };
        let mut known = self.routes.values().filter_map(|route| route.connector.as_ref());
        let connector = match known.find(|known| known.tls() == tls) {
            Some(known) => known.for_host(host)?,
            None => Connector::new(tls, host, &self.tls)?,
        };
        Ok(Route { connector: Some(connector), ..Route::plain(target.clone()) })
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_self, reason = "as with TLS")]
    fn route(&self, target: &Target) -> Result<Route<R>, ConnectError> {
        match target {
            Target::Tls { .. } => Err(ConnectError::MissingFeature { feature: "tls" }),
            Target::Tcp { .. } | Target::Unix { .. } => Ok(Route::plain(target.clone())),
        }
    }

    pub(super) fn get_mut(&mut self, node: NodeId) -> Option<&mut Route<R>> {
        self.routes.get_mut(&node)
    }
}

impl<R> fmt::Debug for Routes<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.routes.iter().map(|(node, route)| (node, &route.target))).finish()
    }
}

impl<R> Route<R> {
    pub(super) const fn plain(target: Target) -> Self {
        Self {
            target,
            resolving: None,
            last: Vec::new(),
            current: None,
            failures: VecDeque::new(),
            #[cfg(feature = "tls")]
            connector: None,
            #[cfg(feature = "tls")]
            reads: Reads::new(),
        }
    }

    pub(super) fn find(&self) -> Lookup<'_> {
        match &self.target {
            Target::Tcp { host, port } | Target::Tls { host, port, .. } => match host.parse::<IpAddr>() {
                Ok(ip) => Lookup::Address(Address::Tcp(SocketAddr::new(ip, *port))),
                Err(_) => Lookup::Name { host, port: *port },
            },
            Target::Unix { path } => Lookup::Address(Address::Unix(path.clone())),
        }
    }

    /// Sorts the addresses: the two families alternate, starting with that of the first address
    /// (RFC 8305, section 4). Addresses that failed come last.
    // P5
    pub(super) fn order(&mut self, found: &[SocketAddr]) -> VecDeque<Address> {
        let begins_with_v6 = found.first().is_some_and(SocketAddr::is_ipv6);
        let (first, second): (Vec<&SocketAddr>, Vec<&SocketAddr>) =
            found.iter().partition(|address| address.is_ipv6() == begins_with_v6);
        let mut order = Vec::with_capacity(found.len());
        for place in 0..found.len() {
            for address in [first.get(place), second.get(place)].into_iter().flatten() {
                order.push(Address::Tcp(**address));
            }
        }
        self.last.retain(|address| order.contains(address));
        order.sort_by_key(|address| self.last.iter().position(|last| last == address).map_or(0, |place| place + 1));
        order.into()
    }

    /// A connection works: the next failure is a warning again.
    pub(super) fn succeeded(&mut self) {
        self.failures.clear();
    }

    /// Logs the end of a connection, or of the attempt to open it. The second and later attempts
    /// that fail for the same reason are logged at level debug, also if reasons alternate. `was_up`: the server has shown
    /// that it works. `error` says more than `fault`.
    pub(super) fn log_end(&mut self, conn: ConnId, was_up: bool, fault: Cause, error: Option<&OpenError>) {
        let (server, error) = (&self.target, error.map(tracing::field::display));
        if was_up {
            tracing::warn!(%conn, %server, %fault, "connection lost");
        } else if !self.failures.contains(&fault) {
            tracing::warn!(%conn, %server, %fault, error, "cannot connect, retrying");
            if self.failures.len() >= REASONS {
                self.failures.pop_front();
            }
            self.failures.push_back(fault);
        } else {
            tracing::debug!(%conn, %server, %fault, error, "still cannot connect");
        }
    }

    /// Tries this address last from now on.
    pub(super) fn put_last(&mut self, address: Address) {
        self.last.retain(|last| *last != address);
        self.last.push(address);
    }

    /// Tries the current address last.
    pub(super) fn avoid_current(&mut self) {
        if let Some(address) = self.current.take() {
            self.put_last(address);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn all(addresses: &[&str]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    fn order(route: &mut Route<()>, found: &[&str]) -> Vec<String> {
        route.order(&all(found)).iter().map(ToString::to_string).collect()
    }

    fn name() -> Route<()> {
        Route::<()>::plain(Target::Tcp { host: "name".into(), port: 1 })
    }

    #[test]
    fn address_families_alternate_starting_with_first_resolved() {
        for (found, expected) in [
            (&["[::1]:1", "[::2]:1", "1.1.1.1:1", "[::3]:1"][..], &["[::1]:1", "1.1.1.1:1", "[::2]:1", "[::3]:1"][..]),
            (&["1.1.1.1:1", "1.1.1.2:1", "[::1]:1"], &["1.1.1.1:1", "[::1]:1", "1.1.1.2:1"]),
            (&["1.1.1.2:1", "1.1.1.1:1"], &["1.1.1.2:1", "1.1.1.1:1"]),
            (&[], &[]),
        ] {
            assert_eq!(order(&mut name(), found), expected);
        }
    }

    #[test]
    fn failed_address_comes_last_until_no_longer_resolved() {
        let mut route = name();
        let put_last = |route: &mut Route<()>, address: &str| route.put_last(Address::Tcp(address.parse().unwrap()));
        let found = ["1.1.1.1:1", "1.1.1.2:1", "1.1.1.3:1"];
        put_last(&mut route, "1.1.1.2:1");
        put_last(&mut route, "1.1.1.1:1");
        assert_eq!(order(&mut route, &found), ["1.1.1.3:1", "1.1.1.2:1", "1.1.1.1:1"]);
        put_last(&mut route, "1.1.1.2:1");
        assert_eq!(order(&mut route, &found), ["1.1.1.3:1", "1.1.1.1:1", "1.1.1.2:1"]);
        assert_eq!(order(&mut route, &["1.1.1.4:1"]), ["1.1.1.4:1"]);
        assert_eq!(order(&mut route, &found), found, "an address that the name had not");
    }

    #[test]
    fn route_stays_until_address_of_node_changes() {
        // N8
        let target = |host: &str| Target::Tcp { host: host.into(), port: 1 };
        let mut routes = Routes::<()>::new([&target("a"), &target("b")], &HostSettings::default(), false).unwrap();
        let node = NodeId::new(1);
        let address = Address::Tcp("1.1.1.1:1".parse().unwrap());
        routes.get_mut(node).unwrap().current = Some(address.clone());
        assert_eq!(routes.set(node, &target("b")).unwrap().current, Some(address));
        let moved = routes.set(node, &target("c")).unwrap();
        assert_eq!((&moved.target, &moved.current), (&target("c"), &None));
        assert_eq!(routes.get_mut(NodeId::new(0)).unwrap().target, target("a"));
        assert_eq!(routes.set(NodeId::new(7), &target("new")).unwrap().target, target("new"));
    }

    /// A file server that hangs must not stop the driver.
    #[cfg(feature = "tls-ring")]
    #[test]
    fn route_to_reported_server_reads_no_file() {
        let authority = lock_testkit::Authority::new();
        let tls = lock_proto::Tls::default().with_ca(authority.ca().to_str().unwrap());
        let target = |host: &str| Target::Tls { host: host.into(), port: 1, tls: tls.clone() };
        let mut routes = Routes::<()>::new([&target("a")], &HostSettings::default(), true).unwrap();
        std::fs::remove_file(authority.ca()).unwrap();
        assert_eq!(routes.set(NodeId::new(1), &target("b")).unwrap().target, target("b"));
        assert!(routes.set(NodeId::new(2), &target("no name")).is_err());
    }

    #[test]
    fn ip_addresses_need_no_resolver() {
        for (host, is_name) in [("127.0.0.1", false), ("::1", false), ("localhost", true), ("fe80::1%eth0", true)] {
            let route = Route::<()>::plain(Target::Tcp { host: host.into(), port: 6379 });
            assert_eq!(matches!(route.find(), Lookup::Name { .. }), is_name, "{host}");
        }
    }
}

//! The endpoints of a channel: those in the settings, and members that the cluster reports.
// N22

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::time::Duration;

use super::Channel;
use crate::etcd::message::{Member, MemberListResponse};
use crate::etcd::rpc::{RpcReply, Status};
use crate::etcd::status::Meaning;
use crate::etcd::url::Endpoint;
use crate::fault::{Breach, Fault};
use crate::id::NodeId;
use crate::jitter::mix;
use crate::time::Instant;
use crate::url::Target;

/// Maximum number of members that are not in the settings.
const MAX_REPORTED: usize = 15;
/// Priority of members that are not in the settings.
const LAST: u16 = u16::MAX;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Members {
    /// First those in the settings, then those that the cluster reported.
    endpoints: Vec<Endpoint>,
    configured: usize,
    /// Place of the endpoint in use, or of the next one to try.
    current: usize,
    /// Places of the endpoints that were tried since a connection lasted.
    tried: BTreeSet<usize>,
    /// Interval of requests for the list. `None` for never.
    every: Option<Duration>,
    due: Instant,
    /// The cluster that reported members.
    cluster: u64,
    /// The latest list of members. Takes effect at the next connection: while one is open,
    /// endpoints are identified by their place.
    // N8
    reported: Option<Vec<Endpoint>>,
}

impl Members {
    pub(super) fn new(endpoints: Vec<Endpoint>, every: Option<Duration>, seed: u64) -> Self {
        let configured = endpoints.len();
        let current = first(&endpoints, mix(seed, 0));
        let (due, cluster) = (Instant::ZERO, 0);
        Self { endpoints, configured, current, tried: BTreeSet::new(), every, due, cluster, reported: None }
    }

    pub(super) const fn node(&self) -> NodeId {
        NodeId::new(self.current as u16)
    }

    pub(super) fn get(&self, node: NodeId) -> Option<&Endpoint> {
        self.endpoints.get(node.index())
    }

    pub(super) fn current(&self) -> Option<&Endpoint> {
        self.endpoints.get(self.current)
    }

    /// At least one.
    pub(super) fn count(&self) -> u32 {
        self.endpoints.len().max(1) as u32
    }

    /// Returns true if the endpoint is not in the settings. It may lead to another cluster.
    pub(super) const fn is_reported(&self) -> bool {
        self.current >= self.configured
    }

    /// Moves on to the next endpoint: of those that were not tried yet, one of the lowest priority
    /// number.
    pub(super) fn failed(&mut self, lasted: bool) {
        if lasted {
            self.tried.clear();
        }
        self.tried.insert(self.current);
        let count = self.endpoints.len();
        if self.tried.len() >= count {
            self.tried.clear();
        }
        let untried = (1..=count).map(|step| (self.current + step) % count);
        let next =
            untried.filter(|place| !self.tried.contains(place)).min_by_key(|place| self.endpoints[*place].priority);
        self.current = next.unwrap_or(0);
    }

    /// The connection was closed because nothing needs it: the next one may lead to a preferred
    /// endpoint again.
    pub(super) fn closed(&mut self, seed: u64) {
        self.tried.clear();
        let first = first(&self.endpoints, seed);
        let priority = |place: usize| self.endpoints.get(place).map(|endpoint| endpoint.priority);
        if priority(first) < priority(self.current) {
            self.current = first;
        }
    }

    /// Applies the last list. Called while there is no connection.
    // N22
    pub(super) fn update(&mut self, seed: u64) {
        let Some(reported) = self.reported.take() else { return };
        let current = self.current().cloned();
        self.endpoints.truncate(self.configured);
        self.endpoints.extend(reported);
        self.tried.retain(|place| *place < self.configured);
        let place = self.endpoints.iter().position(|endpoint| Some(endpoint) == current.as_ref());
        self.current = place.unwrap_or_else(|| first(&self.endpoints, seed));
    }

    /// When to request the list.
    pub(super) fn due(&self) -> Option<Instant> {
        self.every.map(|_| self.due)
    }

    pub(super) fn requested(&mut self, now: Instant) {
        self.due = now + self.every.unwrap_or_default();
    }

    /// Handles the list of an endpoint in the settings. Learners refuse most requests.
    // N22
    pub(super) fn listed(&mut self, list: MemberListResponse) {
        let Some(header) = list.header else { return };
        self.cluster = header.cluster_id;
        let mut reported = Vec::<Endpoint>::new();
        let voters = list.members.iter().filter(|member| !member.is_learner);
        for endpoint in voters.flat_map(|member: &Member| &member.client_urls).filter_map(|url| self.parse(url)) {
            let known = self.endpoints[..self.configured].iter().chain(&reported);
            if !known.clone().any(|known| known.authority == endpoint.authority) && reported.len() < MAX_REPORTED {
                reported.push(endpoint);
            }
        }
        self.reported = (reported != self.endpoints[self.configured..]).then_some(reported);
    }

    /// Parses the URL of a member. It must use TLS if the endpoints in the settings do.
    // N4
    fn parse(&self, url: &str) -> Option<Endpoint> {
        let tls = match self.endpoints.first().map(|endpoint| &endpoint.target) {
            Some(Target::Tls { tls, .. }) => Some(tls),
            Some(Target::Tcp { .. } | Target::Unix { .. }) | None => None,
        };
        let (scheme, place) = url.split_once("://")?;
        if scheme != if tls.is_some() { "https" } else { "http" } {
            return None;
        }
        let endpoint = Endpoint::parse(place.trim_end_matches('/')).ok()?.with_priority(LAST);
        Some(match tls {
            Some(tls) => endpoint.with_tls(tls.clone()),
            None => endpoint,
        })
    }

    /// Returns true if the list comes from the cluster that reported the endpoint. Otherwise
    /// forgets the endpoint: an address such as `localhost` may lead elsewhere.
    // N22
    pub(super) fn verify(&mut self, list: Option<&MemberListResponse>) -> bool {
        let same = list.and_then(|list| list.header).is_some_and(|header| header.cluster_id == self.cluster);
        if !same {
            let current = self.current().cloned();
            let mut reported = self.reported.take().unwrap_or_else(|| self.endpoints[self.configured..].to_vec());
            reported.retain(|endpoint| Some(endpoint) != current.as_ref());
            self.reported = Some(reported);
        }
        same
    }
}

impl Channel {
    #[cold]
    pub(super) fn verified(&mut self, result: Result<RpcReply, Status>, until: Instant) {
        let verified = match &result {
            Ok(RpcReply::MemberList(list)) => self.state.members.verify(Some(list)),
            // A member that restarts, or whose connection ends, has shown nothing.
            Err(status) if matches!(Meaning::of(status), Meaning::Unknown { .. }) => false,
            Ok(_) | Err(_) => self.state.members.verify(None),
        };
        if verified {
            self.state.verified = true;
            return self.begin_login(until);
        }
        let cause = match result {
            Ok(_) => Fault::Protocol(Breach::OtherCluster).into(),
            Err(status) => Meaning::of(&status).error(&status).into(),
        };
        self.fail(cause, true);
    }

    /// When to request the list of members. An idle connection stays idle.
    pub(super) fn sync_at(&self) -> Option<Instant> {
        self.state.members.due().filter(|_| self.is_up() && self.state.idle_since.is_none() && self.state.own.is_none())
    }

    pub(super) fn sync_is_due(&self) -> bool {
        self.sync_at().is_some_and(|at| at <= self.now)
    }
}

/// Returns the place of the first endpoint to try: one of the lowest priority number, by weight.
fn first(endpoints: &[Endpoint], random: u64) -> usize {
    let Some(best) = endpoints.iter().map(|endpoint| endpoint.priority).min() else { return 0 };
    let candidates = || endpoints.iter().enumerate().filter(move |(_, endpoint)| endpoint.priority == best);
    let total: u64 = candidates().map(|(_, endpoint)| u64::from(endpoint.weight)).sum();
    let weight = |endpoint: &Endpoint| if total == 0 { 1 } else { u64::from(endpoint.weight) };
    let mut rest = random % candidates().map(|(_, endpoint)| weight(endpoint)).sum::<u64>().max(1);
    for (place, endpoint) in candidates() {
        match rest.checked_sub(weight(endpoint)) {
            Some(less) => rest = less,
            None => return place,
        }
    }
    0
}

//! Several servers that vote.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::{MAX_PORT_ATTEMPTS, Member, ZooKeeper, ZooKeeperBuilder};
use crate::{Proxy, TIMEOUT, wait_until};

/// Ensembles that may run at once: each is three JVMs.
const MAX_ENSEMBLES: usize = 2;

/// An ensemble of servers. Stopped on drop.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    members: Vec<ZooKeeper>,
    /// Only with [`ZooKeeperBuilder::links`].
    links: Vec<Link>,
    _permit: Arc<Permit>,
}

/// How one member reaches another.
#[derive(Debug)]
struct Link {
    from: usize,
    to: usize,
    proxy: Proxy,
}

impl ZooKeeperEnsemble {
    /// Starts an ensemble of three servers, and waits until it serves.
    ///
    /// # Panics
    ///
    /// Like [`ZooKeeper::start`].
    #[must_use]
    pub fn start() -> Self {
        ZooKeeper::builder().start_ensemble(3)
    }

    pub(super) fn start_with(spec: &ZooKeeperBuilder, count: usize) -> Self {
        let permit = Arc::new(Permit::take());
        let mut why = String::new();
        for _ in 0..MAX_PORT_ATTEMPTS {
            match Self::try_start(spec, count, Arc::clone(&permit)) {
                Ok(ensemble) => return ensemble,
                Err(error) => why = error,
            }
        }
        panic!("ZooKeeper does not start: {why}");
    }

    fn try_start(spec: &ZooKeeperBuilder, count: usize, permit: Arc<Permit>) -> Result<Self, String> {
        let _starting = super::starting();
        let mut members: Vec<ZooKeeper> = (0..count).map(|_| ZooKeeper::new(spec.clone())).collect();
        let peers: Vec<Member> = (1..).zip(&members).map(|(id, member)| member.as_peer(id)).collect();
        let mut links = Vec::new();
        for (from, member) in members.iter_mut().enumerate() {
            let mut seen = peers.clone();
            if spec.links {
                for (to, peer) in seen.iter_mut().enumerate().filter(|(to, _)| *to != from) {
                    // A member that has elected another one retries until that one listens. A
                    // connection that is accepted and closed would end its election instead.
                    let proxy = Proxy::waiting(([127, 0, 0, 1], peer.quorum_port).into(), TIMEOUT / 4);
                    peer.quorum_port = proxy.address().port();
                    links.push(Link { from, to, proxy });
                }
            }
            member.join(from + 1, seen);
            member.launch();
        }
        for member in &mut members {
            member.wait_until_ready()?;
        }
        Ok(Self { members, links, _permit: permit })
    }

    /// The members.
    #[must_use]
    pub fn members(&self) -> &[ZooKeeper] {
        &self.members
    }

    /// One member.
    ///
    /// # Panics
    ///
    /// If `index` is out of range.
    pub fn member(&mut self, index: usize) -> &mut ZooKeeper {
        &mut self.members[index]
    }

    /// The URL of all members.
    #[must_use]
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.members.iter().map(|member| member.address().to_string()).collect();
        format!("zk://{}?{}", addresses.join(","), self.members[0].spec.tick_query())
    }

    /// The index of the leader. Waits until exactly one member leads, and at least one follows.
    ///
    /// # Panics
    ///
    /// If there is none within [`TIMEOUT`].
    #[must_use]
    pub fn leader(&self) -> usize {
        let mut leader = None;
        let is_there = wait_until(TIMEOUT, || {
            let modes: Vec<Option<String>> = self.members.iter().map(ZooKeeper::mode).collect();
            let of = |mode: &str| modes.iter().filter(|found| found.as_deref() == Some(mode)).count();
            leader = modes.iter().position(|found| found.as_deref() == Some("leader"));
            of("leader") == 1 && of("follower") > 0
        });
        leader.filter(|_| is_there).expect("no member leads")
    }

    /// The index of a follower.
    #[must_use]
    pub fn follower(&self) -> usize {
        (self.leader() + 1) % self.members.len()
    }

    /// Drops all packets between a member and the others, except those of elections. Clients still
    /// reach it. Works only with [`ZooKeeperBuilder::links`].
    pub fn isolate(&self, member: usize) {
        self.links_of(member).for_each(Proxy::pause);
    }

    /// Ends [`isolate`](Self::isolate).
    pub fn heal(&self, member: usize) {
        self.links_of(member).for_each(Proxy::resume);
    }

    fn links_of(&self, member: usize) -> impl Iterator<Item = &Proxy> {
        let touches = move |link: &&Link| link.from == member || link.to == member;
        self.links.iter().filter(touches).map(|link| &link.proxy)
    }
}

/// The right to run an ensemble.
#[derive(Debug)]
struct Permit;

static RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

impl Permit {
    fn take() -> Self {
        let running = RUNNING.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running =
            RUNNING.1.wait_while(running, |running| *running >= MAX_ENSEMBLES).unwrap_or_else(PoisonError::into_inner);
        *running += 1;
        Self
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *RUNNING.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        RUNNING.1.notify_one();
    }
}

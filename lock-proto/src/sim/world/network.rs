//! Connections with latency and cuts. A cut holds bytes back, as TCP does: what was sent arrives after the cut is healed, even
//! if its sender has long given up.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use super::super::rng::Rng;
use super::super::way::Way;
use crate::fault::Fault;
use crate::id::ConnId;
use crate::time::Instant;

/// What is said over a connection, in either direction.
pub(in crate::sim) trait Payload {
    /// How many bytes of the sender's window it takes.
    fn size(&self) -> usize;
}

impl Payload for Vec<u8> {
    fn size(&self) -> usize {
        self.len()
    }
}

/// What travels over a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Packet<P> {
    /// The client asks for a connection, or the server's kernel accepts it.
    Open,
    Data(P),
    Close(Fault),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim) struct Link<P> {
    pub(in crate::sim) client: usize,
    pub(in crate::sim) node: usize,
    pub(in crate::sim) conn: ConnId,
    /// The client has not closed it, nor been told of its end.
    pub(in crate::sim) client_open: bool,
    /// The client has been told that it is open.
    pub(in crate::sim) established: bool,
    /// The server process knows it.
    pub(in crate::sim) node_open: bool,
    paths: [Path<P>; 2],
}

/// One direction of a connection: first in, first out.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Path<P> {
    last: Instant,
    in_flight: usize,
    held: VecDeque<Packet<P>>,
}

impl<P> Path<P> {
    const fn new() -> Self {
        Self { last: Instant::ZERO, in_flight: 0, held: VecDeque::new() }
    }
}

/// A packet that arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim) struct Arrival<P> {
    pub(in crate::sim) link: u64,
    pub(in crate::sim) way: Way,
    pub(in crate::sim) packet: Packet<P>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::sim) struct Network<P> {
    pub(in crate::sim) links: BTreeMap<u64, Link<P>>,
    next_link: u64,
    arrivals: BTreeMap<(Instant, u64), Arrival<P>>,
    serial: u64,
    cuts: BTreeSet<(usize, usize, Way)>,
    latency: Range<Duration>,
    slow: BTreeMap<(usize, usize, Way), Range<Duration>>,
    window: usize,
    rng: Rng,
}

impl<P: Payload> Network<P> {
    pub(in crate::sim) const fn new(latency: Range<Duration>, rng: Rng) -> Self {
        Self {
            links: BTreeMap::new(),
            next_link: 1,
            arrivals: BTreeMap::new(),
            serial: 0,
            cuts: BTreeSet::new(),
            latency,
            slow: BTreeMap::new(),
            window: 64 * 1024,
            rng,
        }
    }

    /// A new connection, asked for by the client.
    pub(in crate::sim) fn open(&mut self, now: Instant, client: usize, node: usize, conn: ConnId) -> u64 {
        let id = self.next_link;
        self.next_link += 1;
        let link = Link {
            client,
            node,
            conn,
            client_open: true,
            established: false,
            node_open: false,
            paths: [Path::new(), Path::new()],
        };
        self.links.insert(id, link);
        self.send(now, id, Way::ToNode, Packet::Open);
        id
    }

    pub(in crate::sim) fn find(&self, client: usize, conn: ConnId) -> Option<u64> {
        let found = self.links.iter().find(|(_, link)| link.client == client && link.conn == conn && link.client_open);
        found.map(|(id, _)| *id)
    }

    /// The open connections of a client or of a node, in order.
    pub(in crate::sim) fn of_client(&self, client: usize) -> Vec<u64> {
        self.links.iter().filter(|(_, link)| link.client == client && link.client_open).map(|(id, _)| *id).collect()
    }

    pub(in crate::sim) fn of_node(&self, node: usize) -> Vec<u64> {
        self.links.iter().filter(|(_, link)| link.node == node && link.node_open).map(|(id, _)| *id).collect()
    }

    /// How many bytes the sender's kernel still takes.
    pub(in crate::sim) fn room(&self, link: u64, way: Way) -> usize {
        self.links.get(&link).map_or(0, |link| self.window.saturating_sub(link.paths[way.index()].in_flight))
    }

    pub(in crate::sim) fn send(&mut self, now: Instant, id: u64, way: Way, packet: Packet<P>) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let latency = self.slow.get(&(link.client, link.node, way)).unwrap_or(&self.latency);
        let at = (now + self.rng.duration(latency)).max(link.paths[way.index()].last);
        let path = &mut link.paths[way.index()];
        path.last = at;
        if let Packet::Data(data) = &packet {
            path.in_flight += data.size();
        }
        self.serial += 1;
        self.arrivals.insert((at, self.serial), Arrival { link: id, way, packet });
    }

    pub(in crate::sim) fn next_arrival(&self) -> Option<Instant> {
        self.arrivals.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next packet that is due. What meets a cut is held back there.
    pub(in crate::sim) fn arrive(&mut self, now: Instant) -> Option<Arrival<P>> {
        loop {
            let due = self.arrivals.first_entry().filter(|first| first.key().0 <= now)?;
            let arrival = due.remove();
            let Some(link) = self.links.get_mut(&arrival.link) else { continue };
            let path = &mut link.paths[arrival.way.index()];
            // Behind something that is held everything waits, or the order would be lost.
            if self.cuts.contains(&(link.client, link.node, arrival.way)) || !path.held.is_empty() {
                path.held.push_back(arrival.packet);
                continue;
            }
            if let Packet::Data(data) = &arrival.packet {
                path.in_flight -= data.size();
            }
            return Some(arrival);
        }
    }

    /// Loses what is under way on a connection.
    pub(in crate::sim) fn lose(&mut self, id: u64) {
        self.arrivals.retain(|_, arrival| arrival.link != id);
        if let Some(link) = self.links.get_mut(&id) {
            link.paths = [Path::new(), Path::new()];
        }
    }

    pub(in crate::sim) fn cut(&mut self, client: usize, node: usize, way: Way) {
        self.cuts.insert((client, node, way));
    }

    /// Ends cuts; what they held back goes on its way.
    pub(in crate::sim) fn heal(&mut self, now: Instant, which: impl Fn(usize, usize, Way) -> bool) {
        self.cuts.retain(|(client, node, way)| !which(*client, *node, *way));
        let all: Vec<u64> = self.links.keys().copied().collect();
        for id in all {
            for way in Way::BOTH {
                let Some(link) = self.links.get_mut(&id) else { continue };
                if self.cuts.contains(&(link.client, link.node, way)) {
                    continue;
                }
                let path = &mut link.paths[way.index()];
                let mut packets: Vec<Packet<P>> = core::mem::take(&mut path.held).into();
                if packets.is_empty() {
                    continue;
                }
                // What is still under way was sent later than what was held, and must stay behind it.
                (path.last, path.in_flight) = (now, 0);
                let behind = |arrival: &Arrival<P>| arrival.link == id && arrival.way == way;
                let keys: Vec<(Instant, u64)> =
                    self.arrivals.iter().filter(|(_, arrival)| behind(arrival)).map(|(key, _)| *key).collect();
                packets.extend(keys.iter().filter_map(|key| Some(self.arrivals.remove(key)?.packet)));
                for packet in packets {
                    self.send(now, id, way, packet);
                }
            }
        }
    }

    /// Every path is as it was at first.
    pub(in crate::sim) fn quick(&mut self) {
        self.slow.clear();
    }

    /// Nothing is under way.
    pub(in crate::sim) fn is_quiet(&self) -> bool {
        self.arrivals.is_empty()
    }

    pub(in crate::sim) fn slow(&mut self, client: usize, node: usize, way: Way, latency: Range<Duration>) {
        self.slow.insert((client, node, way), latency);
    }

    /// Forgets connections that both sides have closed and that carry nothing any more.
    pub(in crate::sim) fn sweep(&mut self) {
        let busy: BTreeSet<u64> = self.arrivals.values().map(|arrival| arrival.link).collect();
        self.links.retain(|id, link| {
            let held = link.paths.iter().any(|path| !path.held.is_empty());
            link.client_open || link.node_open || held || busy.contains(id)
        });
    }
}

impl Network<Vec<u8>> {
    /// Sends bytes, now and then in several pieces.
    pub(in crate::sim) fn send_bytes(&mut self, now: Instant, link: u64, way: Way, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let len = rest.len() as u64;
            let piece = if self.rng.one_in(4) { 1 + self.rng.below(len) } else { len };
            let (head, tail) = rest.split_at(usize::try_from(piece).unwrap_or(rest.len()).min(rest.len()));
            self.send(now, link, way, Packet::Data(head.to_vec()));
            rest = tail;
        }
    }
}

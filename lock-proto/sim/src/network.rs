//! Connections with latency and cuts. A cut holds bytes back until it heals, as TCP does.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Debug;
use core::ops::Range;
use core::time::Duration;

use super::agenda::Agenda;
use super::direction::Direction;
use super::rng::Rng;
use super::trace::MessageId;
use lock_proto::ConnId;
use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::TlsFault;

/// The data that a connection carries, in either direction.
pub(crate) trait Payload: Clone + Debug {
    /// The space that it occupies in the sender's window.
    fn size(&self) -> usize;

    /// A short label for visualisation.
    fn label(&self, direction: Direction) -> String;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Packet<P> {
    /// The client requests a connection, or the server's kernel accepts it.
    Open,
    /// A message of a TLS handshake, with the number of round trips that are left.
    Handshake(u8),
    Data(P),
    Close(Fault),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetworkLink<P> {
    pub(crate) client: usize,
    pub(crate) node: usize,
    pub(crate) conn: ConnId,
    /// The client has not closed it and has not seen its end.
    pub(crate) client_open: bool,
    /// The client knows that it is open.
    pub(crate) established: bool,
    /// A TLS handshake has begun.
    pub(crate) in_handshake: bool,
    /// The server is going to refuse the client's certificate.
    pub(crate) refusal: Option<TlsFault>,
    /// The server process has accepted it.
    pub(crate) node_open: bool,
    /// When the client last received something, or first sent a request.
    pub(crate) last_received: Instant,
    paths: [Path<P>; 2],
}

/// The connections in the order of creation. There are few, so a sorted `Vec` is fastest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetworkLinks<P>(Vec<(u64, NetworkLink<P>)>);

impl<P> NetworkLinks<P> {
    fn place(&self, id: u64) -> Option<usize> {
        self.0.binary_search_by_key(&id, |(id, _)| *id).ok()
    }

    pub(crate) fn get(&self, id: &u64) -> Option<&NetworkLink<P>> {
        self.place(*id).map(|place| &self.0[place].1)
    }

    pub(crate) fn get_mut(&mut self, id: &u64) -> Option<&mut NetworkLink<P>> {
        self.place(*id).map(|place| &mut self.0[place].1)
    }

    fn iter(&self) -> impl Iterator<Item = (u64, &NetworkLink<P>)> {
        self.0.iter().map(|(id, link)| (*id, link))
    }

    /// Returns the first connection at or after index `from` that matches, with its index.
    fn next(&self, from: usize, which: impl Fn(&NetworkLink<P>) -> bool) -> Option<(usize, u64, &NetworkLink<P>)> {
        let (skipped, (id, link)) = self.0.get(from..)?.iter().enumerate().find(|(_, (_, link))| which(link))?;
        Some((from + skipped, *id, link))
    }
}

/// One direction of a connection, in FIFO order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Path<P> {
    last: Instant,
    in_flight: usize,
    held: VecDeque<Posted<P>>,
}

impl<P> Path<P> {
    const fn new() -> Self {
        Self { last: Instant::ZERO, in_flight: 0, held: VecDeque::new() }
    }
}

/// A packet, and its message id in the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Posted<P> {
    pub(crate) packet: Packet<P>,
    pub(crate) message: Option<MessageId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival<P> {
    pub(crate) link: u64,
    pub(crate) direction: Direction,
    pub(crate) posted: Posted<P>,
    /// The sender's window was full and now has room.
    pub(crate) frees_window: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Network<P> {
    pub(crate) links: NetworkLinks<P>,
    next_link: u64,
    arrivals: Agenda<Arrival<P>>,
    /// Number of packets sent or due so far.
    steps: u64,
    cuts: BTreeSet<(usize, usize, Direction)>,
    latency: Range<Duration>,
    slow: BTreeMap<(usize, usize, Direction), Range<Duration>>,
    window: usize,
    /// The sockets of a client to a node that take nothing.
    full: BTreeSet<(usize, usize)>,
    rng: Rng,
}

impl<P: Payload> Network<P> {
    pub(crate) const fn new(latency: Range<Duration>, rng: Rng) -> Self {
        Self {
            links: NetworkLinks(Vec::new()),
            next_link: 1,
            arrivals: Agenda::new(),
            steps: 0,
            cuts: BTreeSet::new(),
            latency,
            slow: BTreeMap::new(),
            window: 64 * 1024,
            full: BTreeSet::new(),
            rng,
        }
    }

    pub(crate) const fn steps(&self) -> u64 {
        self.steps
    }

    /// Creates a connection for a client. The client still has to send [`Packet::Open`].
    pub(crate) fn open(&mut self, now: Instant, client: usize, node: usize, conn: ConnId) -> u64 {
        let id = self.next_link;
        self.next_link += 1;
        let link = NetworkLink {
            client,
            node,
            conn,
            client_open: true,
            established: false,
            in_handshake: false,
            refusal: None,
            node_open: false,
            last_received: now,
            paths: [Path::new(), Path::new()],
        };
        // Ids grow, so the list stays sorted.
        self.links.0.push((id, link));
        id
    }

    pub(crate) fn find(&self, client: usize, conn: ConnId) -> Option<u64> {
        let found = self.links.iter().find(|(_, link)| link.client == client && link.conn == conn && link.client_open);
        found.map(|(id, _)| id)
    }

    pub(crate) fn of_client(&self, client: usize) -> Vec<u64> {
        self.links.iter().filter(|(_, link)| link.client == client && link.client_open).map(|(id, _)| id).collect()
    }

    pub(crate) fn of_node(&self, node: usize) -> Vec<u64> {
        self.links.iter().filter(|(_, link)| link.node == node && link.node_open).map(|(id, _)| id).collect()
    }

    /// Finds the first established connection of a client from index `from` on, with its index.
    pub(crate) fn next_of_client(&self, client: usize, from: usize) -> Option<(usize, u64, &NetworkLink<P>)> {
        self.links.next(from, |link| link.client == client && link.client_open && link.established)
    }

    /// Returns the index and id of the first open connection of a node at or after index `from`.
    pub(crate) fn next_of_node(&self, node: usize, from: usize) -> Option<(usize, u64)> {
        self.links.next(from, |link| link.node == node && link.node_open).map(|(place, id, _)| (place, id))
    }

    /// Returns how much more the sender's kernel accepts.
    pub(crate) fn room(&self, link: &NetworkLink<P>, direction: Direction) -> usize {
        if direction == Direction::ToNode && self.full.contains(&(link.client, link.node)) {
            return 0;
        }
        self.window.saturating_sub(link.paths[direction.index()].in_flight)
    }

    /// Returns how many of the next `len` bytes travel together. Occasionally splits them.
    pub(crate) fn draw_piece(&mut self, len: usize) -> usize {
        if self.rng.one_in(4) { 1 + usize::try_from(self.rng.below(len as u64)).unwrap_or(0) } else { len }
    }

    pub(crate) fn send(&mut self, now: Instant, id: u64, direction: Direction, posted: Posted<P>) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let latency = self.slow.get(&(link.client, link.node, direction)).unwrap_or(&self.latency);
        let at = (now + self.rng.duration(latency)).max(link.paths[direction.index()].last);
        let path = &mut link.paths[direction.index()];
        path.last = at;
        if let Packet::Data(data) = &posted.packet {
            path.in_flight += data.size();
        }
        self.steps += 1;
        self.arrivals.plan(at, Arrival { link: id, direction, posted, frees_window: false });
    }

    pub(crate) fn next_arrival(&self) -> Option<Instant> {
        self.arrivals.next()
    }

    /// Delivers the next packet that is due. Packets that meet a cut are held back.
    pub(crate) fn arrive(&mut self, now: Instant) -> Option<Arrival<P>> {
        loop {
            let mut arrival = self.arrivals.due(now)?;
            self.steps += 1;
            let Some(link) = self.links.get_mut(&arrival.link) else { continue };
            let path = &mut link.paths[arrival.direction.index()];
            // Queue behind packets that are held, to preserve the order.
            if self.cuts.contains(&(link.client, link.node, arrival.direction)) || !path.held.is_empty() {
                path.held.push_back(arrival.posted);
                continue;
            }
            if let Packet::Data(data) = &arrival.posted.packet {
                arrival.frees_window = path.in_flight >= self.window;
                path.in_flight -= data.size();
            }
            return Some(arrival);
        }
    }

    /// Drops everything in flight in the given directions, and returns the message ids.
    pub(crate) fn lose(&mut self, id: u64, directions: &[Direction]) -> Vec<MessageId> {
        let under_way = self.arrivals.extract(|arrival| arrival.link == id && directions.contains(&arrival.direction));
        let mut lost: Vec<MessageId> = under_way.filter_map(|arrival| arrival.posted.message).collect();
        if let Some(link) = self.links.get_mut(&id) {
            for direction in directions {
                let path = core::mem::replace(&mut link.paths[direction.index()], Path::new());
                lost.extend(path.held.iter().filter_map(|posted| posted.message));
            }
        }
        lost
    }

    pub(crate) fn cut(&mut self, client: usize, node: usize, direction: Direction) {
        self.cuts.insert((client, node, direction));
    }

    pub(crate) const fn cuts(&self) -> &BTreeSet<(usize, usize, Direction)> {
        &self.cuts
    }

    /// Heals cuts, and sends the packets that they held back.
    pub(crate) fn heal(&mut self, now: Instant, which: impl Fn(usize, usize, Direction) -> bool) {
        self.cuts.retain(|(client, node, direction)| !which(*client, *node, *direction));
        let all: Vec<u64> = self.links.iter().map(|(id, _)| id).collect();
        for id in all {
            for direction in Direction::BOTH {
                let Some(link) = self.links.get_mut(&id) else { continue };
                if self.cuts.contains(&(link.client, link.node, direction)) {
                    continue;
                }
                let path = &mut link.paths[direction.index()];
                let mut packets: Vec<Posted<P>> = core::mem::take(&mut path.held).into();
                if packets.is_empty() {
                    continue;
                }
                // Packets in flight were sent later than the held ones and must stay behind.
                (path.last, path.in_flight) = (now, 0);
                let behind = self.arrivals.extract(|arrival| arrival.link == id && arrival.direction == direction);
                packets.extend(behind.map(|arrival| arrival.posted));
                for packet in packets {
                    self.send(now, id, direction, packet);
                }
            }
        }
    }

    pub(crate) fn reset_latencies(&mut self) {
        self.slow.clear();
    }

    /// From now on the sockets of this client to this node take nothing, or bytes again.
    pub(crate) fn set_full(&mut self, client: usize, node: usize, full: bool) {
        if full {
            self.full.insert((client, node));
        } else {
            self.full.remove(&(client, node));
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Draws the latency of a message that belongs to no connection.
    pub(crate) fn draw_latency(&mut self) -> Duration {
        self.rng.duration(&self.latency)
    }

    /// Returns the longest round trip on paths that are not slowed down.
    pub(crate) fn round_trip(&self) -> Duration {
        self.latency.end * 2
    }

    /// Delays everything in flight on a connection in one direction.
    pub(crate) fn delay(&mut self, now: Instant, id: u64, direction: Direction, by: Duration) {
        let held = self.arrivals.extract(|arrival| arrival.link == id && arrival.direction == direction);
        let held: Vec<Arrival<P>> = held.collect();
        for arrival in held {
            self.arrivals.plan(now + by, arrival);
        }
        if let Some(link) = self.links.get_mut(&id) {
            link.paths[direction.index()].last = now + by;
        }
    }

    /// Delays everything sent from now on over the open connections until `until`.
    pub(crate) fn stall(&mut self, client: usize, node: usize, direction: Direction, until: Instant) {
        for (_, link) in self.links.0.iter_mut().filter(|(_, link)| link.client == client && link.node == node) {
            let path = &mut link.paths[direction.index()];
            path.last = path.last.max(until);
        }
    }

    pub(crate) fn slow(&mut self, client: usize, node: usize, direction: Direction, latency: Range<Duration>) {
        self.slow.insert((client, node, direction), latency);
    }

    /// Removes connections that both sides have closed and that carry nothing.
    pub(crate) fn sweep(&mut self) {
        let arrivals = &self.arrivals;
        self.links.0.retain(|(id, link)| {
            let held = link.paths.iter().any(|path| !path.held.is_empty());
            link.client_open || link.node_open || held || arrivals.iter().any(|arrival| arrival.link == *id)
        });
    }
}

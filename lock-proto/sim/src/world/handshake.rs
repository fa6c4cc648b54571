//! TLS handshakes, as machines see them: time between a request to connect and its success, and
//! failures before and after it. Nothing is encrypted.
// S10

use alloc::format;
use core::fmt;

use super::super::direction::Direction;
use super::super::network::Packet;
use super::super::trace::Lane;
use super::World;
use super::store::SimServers;
use lock_proto::Fault;
use lock_proto::TlsFault;

/// What happens when a client connects to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Handshake {
    /// No TLS: the connection is open when the server's kernel has accepted it.
    #[default]
    None,
    /// The handshake succeeds and takes this many round trips, after the one of the connection
    /// itself. A paused server takes no part in it.
    Trips(u8),
    /// The handshake fails after a round trip: the certificate has expired, for example.
    /// [`TlsFault::Closed`] stands for a connection that is cut.
    Fails(TlsFault),
    /// The client takes the connection for open, and then the server refuses the client's
    /// certificate, as with TLS 1.3. It executes nothing of what the client has sent.
    FailsLater(TlsFault),
    /// The server never answers.
    Silent,
}

impl Handshake {
    /// Returns the round trips of the handshake.
    const fn trips(self) -> Option<u8> {
        match self {
            Self::None => None,
            Self::Trips(trips) => Some(trips),
            Self::Fails(_) | Self::FailsLater(_) | Self::Silent => Some(1),
        }
    }

    const fn is_broken(self) -> bool {
        match self {
            Self::None | Self::Trips(_) => false,
            Self::Fails(_) | Self::FailsLater(_) | Self::Silent => true,
        }
    }
}

impl fmt::Display for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no TLS"),
            Self::Trips(trips) => write!(f, "TLS handshakes succeed after {trips} round trips"),
            Self::Fails(fault) => write!(f, "TLS handshakes fail: {fault:?}"),
            Self::FailsLater(fault) => write!(f, "TLS fails after the handshake: {fault:?}"),
            Self::Silent => f.write_str("TLS handshakes get no answer"),
        }
    }
}

impl<S: SimServers> World<S> {
    /// Sets what happens from now on when this client connects to this server. Open connections
    /// stay as they are. [`calm`](Self::calm) ends every failure.
    pub fn set_handshake(&mut self, client: usize, node: usize, handshake: Handshake) {
        self.journal.write(self.now, format_args!("c{client} {}{node} {handshake}", S::NODE));
        self.note_fault();
        self.annotate(Some(Lane::Client(client)), || format!("to node {node}: {handshake}"));
        self.handshakes.insert((client, node), handshake);
    }

    /// Ends the failures. Handshakes take one round trip.
    pub(super) fn repair_handshakes(&mut self) {
        for handshake in self.handshakes.values_mut().filter(|handshake| handshake.is_broken()) {
            *handshake = Handshake::Trips(1);
        }
    }

    fn handshake(&self, client: usize, node: usize) -> Handshake {
        self.handshakes.get(&(client, node)).copied().unwrap_or_default()
    }

    /// The kernel of a server accepts a connection.
    pub(super) fn accept(&mut self, id: u64) {
        let Some(link) = self.network.links.get(&id) else { return };
        let trips = self.handshake(link.client, link.node).trips();
        let Some(link) = self.network.links.get_mut(&id) else { return };
        link.node_open = true;
        link.in_handshake = trips.is_some();
        let answer = trips.map_or(Packet::Open, Packet::Handshake);
        self.send(id, Direction::ToClient, answer);
    }

    /// A client answers a message of a handshake.
    pub(super) fn continue_handshake(&mut self, id: u64, left: u8) {
        self.send(id, Direction::ToNode, Packet::Handshake(left));
    }

    /// A server process answers a message of a handshake. Returns true if the server closes the
    /// connection.
    #[must_use]
    pub(super) fn answer_handshake(&mut self, id: u64, left: u8) -> bool {
        let Some(link) = self.network.links.get(&id).filter(|link| link.node_open) else { return false };
        let handshake = self.handshake(link.client, link.node);
        let failure = match (link.refusal, left, handshake) {
            (Some(fault), _, _) => fault,
            (None, 2.., _) => {
                self.send(id, Direction::ToClient, Packet::Handshake(left - 1));
                return false;
            }
            (None, _, Handshake::Silent) => return false,
            (None, _, Handshake::Fails(fault)) => fault,
            (None, _, Handshake::None | Handshake::Trips(_) | Handshake::FailsLater(_)) => {
                if let (Handshake::FailsLater(fault), Some(link)) = (handshake, self.network.links.get_mut(&id)) {
                    link.refusal = Some(fault);
                }
                self.send(id, Direction::ToClient, Packet::Open);
                return false;
            }
        };
        self.send(id, Direction::ToClient, Packet::Close(Fault::Tls(failure)));
        true
    }
}

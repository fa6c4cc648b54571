//! What a store adds to its connection.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::fmt::Debug;
use core::hash::Hash;
use core::time::Duration;

use super::Phase;
use crate::fault::Fault;
use crate::id::{ConnId, NodeId};
use crate::lock::{Backoff, Cause, CredentialsRequest, Renewal};
use crate::time::Instant;
use crate::url::{Login, Target};

/// The wire protocol of a store: handshake, requests in flight, and the server in use.
pub trait Protocol: Sized {
    /// Progress of the handshake.
    type Handshake: Clone + Debug + PartialEq + Eq + Hash;
    /// A request that waits for the connection.
    type Pending: Clone + PartialEq + Eq + Hash;
    /// An output for the host or the hub.
    type Output: Clone + Debug + PartialEq + Eq + Hash;

    /// Returns the present settings of the connection.
    fn policy(&self) -> Policy;

    /// Returns the address of the server in use, or of the next one.
    fn target(&self) -> Option<&Target>;

    /// Returns the login in the settings if the host is asked for the credentials.
    fn asks(&self) -> Option<&Login>;

    /// Turns a decision of the connection into an output.
    fn order(&self, order: Order) -> Option<Self::Output>;

    /// A new connection is opened, the one after `generation`. Forgets what belongs to an earlier
    /// one.
    fn begin(&mut self, seed: u64, generation: u64);

    /// Sends the handshake, or a new login on an open connection. `None` if there is nothing to
    /// wait for.
    fn shake_hands(&mut self, opening: &mut Opening<'_, Self::Output>) -> Result<Option<Self::Handshake>, Fault>;

    /// The handshake is complete. Returns true if requests may follow.
    fn established(
        &mut self,
        now: Instant,
        handshake: Option<Self::Handshake>,
        renewal: &mut Renewal,
        outputs: &mut VecDeque<Self::Output>,
    ) -> bool;

    /// Queues a request on the open connection.
    fn queue(&mut self, now: Instant, pending: Self::Pending);

    /// Returns when the connection ends if nothing arrives. `None` if no reply is expected.
    // P6, E13
    fn silent_until(&self, heard: Instant) -> Option<Instant>;

    /// The connection has failed. Turns to the next server, and returns how long the connection
    /// lasted.
    fn ended(&mut self, failed: &Failed<'_, Self::Handshake>) -> Duration;

    /// Answers the requests that were given to the connection: as `Unknown` if the host has seen
    /// them, else as `NotSent`.
    // M8
    fn settle(&mut self, end: &Settlement<'_>, outputs: &mut VecDeque<Self::Output>);

    /// Answers a request that was not given to the connection.
    fn answer_unsent(&self, pending: Self::Pending, cause: &Cause) -> Option<Self::Output>;
}

/// The settings of a connection, as they are now.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The number of the server to connect to.
    pub node: NodeId,
    /// How many servers are tried before there is a pause.
    pub servers: u32,
    /// Something needs a connection.
    pub wanted: bool,
    /// A failed connection is opened again after a pause, if something needs it then.
    pub reopens: bool,
    /// The next server is tried within the call that reports the failure.
    pub at_once: bool,
    /// How long connecting and the handshake may take together.
    pub connect_timeout: Duration,
    /// The pause before a failed connection is reopened.
    pub reconnect: Backoff,
}

/// A decision of the connection, to be turned into an output.
#[derive(Debug)]
pub enum Order {
    /// Open a connection to the [target](Protocol::target).
    Connect(ConnId),
    /// Supply credentials.
    Credentials(ConnId, Box<CredentialsRequest>),
    /// Close the connection, or stop opening it; why, if it failed.
    Disconnect(ConnId, Option<Cause>),
    /// The connection has failed. It is opened again if something needs it.
    Down(Cause),
}

/// A connection that opens, or logs in again.
#[derive(Debug)]
pub struct Opening<'a, O> {
    /// The time.
    pub now: Instant,
    /// The connection.
    pub conn: ConnId,
    /// When the handshake must be complete. The protocol may change it.
    pub until: Instant,
    /// The connection is open, and logs in again.
    pub open: bool,
    /// The login.
    pub renewal: &'a Renewal,
    /// Receives outputs.
    pub outputs: &'a mut VecDeque<O>,
}

/// A connection that has failed.
#[derive(Debug)]
pub struct Failed<'a, H> {
    /// The time.
    pub now: Instant,
    /// When it was opened, if it was.
    pub opened: Instant,
    /// The phase in which it failed.
    pub phase: &'a Phase<H>,
    /// Why.
    pub cause: &'a Cause,
}

impl<H> Failed<'_, H> {
    /// Returns how long the connection was up.
    pub(crate) const fn lasted(&self) -> Duration {
        match self.phase {
            Phase::Up { since } => self.now.since(*since),
            Phase::Closed
            | Phase::Connecting { .. }
            | Phase::AwaitingCredentials { .. }
            | Phase::Handshake { .. }
            | Phase::BackingOff { .. } => Duration::ZERO,
        }
    }
}

/// The requests of a connection that are settled.
#[derive(Debug)]
pub struct Settlement<'a> {
    /// The time.
    pub now: Instant,
    /// Why it ended.
    pub cause: &'a Cause,
    /// Consecutive failures, this one included; 0 if nothing needs the connection any more.
    pub failures: u32,
}

//! Clients with a planted flaw: a wrapper changes what passes between a client and the world.

use alloc::vec::Vec;
use core::time::Duration;

use lock_proto::Fault;
use lock_proto::Instant;
use lock_proto::Misuse;
use lock_proto::{Acquire, ClientInfo, Credentials, Elections, LockClient, Machine, Operation, OperationId};
use lock_proto::{ConnId, LockId};

/// The connections that a client opens one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenedConnections {
    pub(super) current: Option<ConnId>,
    /// The connection that the client has closed last.
    closed: Option<ConnId>,
    /// A connection was lost: the client opened another one without having closed it.
    pub(super) lost: bool,
}

impl OpenedConnections {
    pub(super) fn opened(&mut self, conn: ConnId) {
        self.lost |= self.current != self.closed;
        self.current = Some(conn);
    }

    pub(super) const fn closed(&mut self, conn: ConnId) {
        self.closed = Some(conn);
    }
}

/// A client whose inputs and outputs are modified by a flaw.
#[derive(Clone, Debug)]
pub(super) struct Flawed<C, F> {
    pub(super) client: C,
    pub(super) flaw: F,
    /// Whether releases are withheld from the client.
    pub(super) withholds_releases: bool,
    pub(super) withheld: Vec<LockId>,
}

impl<C, F> Flawed<C, F> {
    pub(super) const fn new(client: C, flaw: F) -> Self {
        Self { client, flaw, withholds_releases: false, withheld: Vec::new() }
    }
}

impl<C: Machine, F> LockClient for Flawed<C, F> {
    fn acquire(&mut self, now: Instant, want: &Acquire) -> Result<LockId, Misuse> {
        self.client.acquire(now, want)
    }

    fn claim(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.client.claim(now, lock)
    }

    fn extend(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        self.client.extend(now, lock)
    }

    fn release(&mut self, now: Instant, lock: LockId) -> Result<(), Misuse> {
        if self.withholds_releases {
            self.withheld.push(lock);
            return Ok(());
        }
        self.client.release(now, lock)
    }

    fn abandon(&mut self, now: Instant, lock: LockId) {
        self.client.abandon(now, lock);
    }

    fn shutdown(&mut self, now: Instant, within: Duration) {
        self.client.shutdown(now, within);
    }

    fn start(&mut self, now: Instant, operation: Operation) -> Result<OperationId, Misuse> {
        self.client.start(now, operation)
    }

    fn cancel(&mut self, now: Instant, operation: OperationId) {
        self.client.cancel(now, operation);
    }

    fn valid_until(&self, lock: LockId) -> Option<Instant> {
        self.client.valid_until(lock)
    }

    fn info(&self) -> ClientInfo<'_> {
        self.client.info()
    }

    fn elections(&mut self) -> Option<&mut dyn Elections> {
        self.client.elections()
    }
}

impl<C: Machine, F> Machine for Flawed<C, F> {
    fn handle_connected(&mut self, now: Instant, conn: ConnId) {
        self.client.handle_connected(now, conn);
    }

    fn handle_disconnected(&mut self, now: Instant, conn: ConnId, why: Fault) {
        self.client.handle_disconnected(now, conn, why);
    }

    fn handle_credentials(&mut self, now: Instant, conn: ConnId, credentials: Option<Credentials>) {
        self.client.handle_credentials(now, conn, credentials);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.client.handle_timeout(now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.client.next_deadline()
    }

    fn holds_any(&self) -> bool {
        self.client.holds_any()
    }
}

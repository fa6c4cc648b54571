//! What the measurements of all stores do with a client.

use core::time::Duration;

use lock_proto::{Acquire, Instant, LockClient, LockId, Machine};

/// A client with open connections, and its clock.
pub trait Rig: Sized + 'static {
    /// The measured machine.
    type Client: Machine;

    /// A client that has acquired and released a lock, so that its connections are established.
    fn ready() -> Self;
    /// Returns the client and the present.
    fn client(&mut self) -> (&mut Self::Client, Instant);
    /// Lets time pass.
    fn pass(&mut self, by: Duration);
    /// The servers grant the lock requested last. Claims it.
    fn granted(&mut self) -> LockId;
    /// The servers execute a release.
    fn released(&mut self);

    /// Requests a lock. The servers do not answer.
    fn wait(&mut self, name: &str) {
        let (client, now) = self.client();
        client.acquire(now, &Acquire::new(name)).expect("a valid request");
    }

    /// Acquires a lock and keeps it.
    fn hold(&mut self, name: &str) -> LockId {
        self.wait(name);
        self.granted()
    }

    /// Releases a lock.
    fn release(&mut self, lock: LockId) {
        let (client, now) = self.client();
        client.release(now, lock).expect("held");
        self.released();
    }

    /// Acquires a lock and releases it.
    fn cycle(&mut self) {
        self.pass(Duration::from_micros(50));
        let lock = self.hold("invoice:42");
        self.release(lock);
    }
}

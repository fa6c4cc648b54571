//! Locks and elections on anything with compare-and-set: a database, an object store, a file.
//!
//! A *register* is a key whose value has a revision. `read(key)` returns a [`Record`] and its
//! [`Revision`]; `write(key, record, expected)` succeeds only if the key still has the expected one.
//! The record says who holds the lock, and stays when the lock is released. A holder renews it; a
//! client that has seen the same record for its TTL replaces it. No clock of another client counts.
//!
//! [`Client`] is a sans-IO state machine. It has no connections: the host carries out its requests
//! with whatever client the store has, one at a time for each key:
//!
//! ```
//! use lock_proto::register::{Client, Config, Output, Reply, Request, Revision};
//! use lock_proto::{Acquire, ClientId, Event, Instant, LockClient, Machine, Release};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let now = Instant::from_millis(1); // your clock
//! let id = ClientId::from_bits(0x5eed); // 128 random bits of yours
//! let mut client = Client::new(now, Config::new().label("host-1 4711"), id, 7)?;
//! client.set_time_of_day(now, Duration::from_secs(1_764_288_000)); // since 1970
//!
//! // Request the lock. The client reads its record: there is none.
//! let lock = client.acquire(now, &Acquire::new("invoice:42"))?;
//! let Some(Output::Send { call, request: Request::Read { .. }, .. }) = client.poll_output() else {
//!     unreachable!()
//! };
//! client.handle_reply(now, call, &Reply::Absent);
//!
//! // It creates the record, and has the lock.
//! let Some(Output::Send { call, request: Request::Write { record, expected, .. }, .. }) = client.poll_output() else {
//!     unreachable!()
//! };
//! assert!(record.held && expected.is_none());
//! client.handle_reply(now, call, &Reply::Written(Revision::from(1)));
//! let Some(Output::Event { event: Event::Granted(grant), .. }) = client.poll_output() else { unreachable!() };
//! client.claim(now, lock)?;
//! assert_eq!(grant.fence.map(|fence| fence.get()), Some(1_764_288_000_000 << 10));
//! assert!(client.valid_until(lock) > Some(now));
//! assert!(client.next_deadline() > Some(now), "the next renewal");
//!
//! // Work under the lock, then release it: the record stays, and says that the lock is free.
//! client.release(now, lock)?;
//! let Some(Output::Send { call, request: Request::Write { record, .. }, .. }) = client.poll_output() else {
//!     unreachable!()
//! };
//! assert!(!record.held);
//! client.handle_reply(now, call, &Reply::Written(Revision::from(2)));
//! let released = Event::Released(Release::Released);
//! assert_eq!(client.poll_output(), Some(Output::Event { lock, event: released }));
//! # Ok(())
//! # }
//! ```

mod client;
mod config;
mod election;
mod flaw;
#[expect(unnameable_types, reason = "parts of `Locks`, which applications need not name")]
mod lock;
mod output;
mod record;
mod request;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests")]
mod tests;
mod url;

pub use client::{Client, Locks};
pub use config::{Config, RegisterSettings};
pub use lock::{Cas, RegisterLock, RegisterShared, Stake};
pub use output::Output;
pub use record::{Entry, MAX_LABEL, MAX_REVISION, NoRecord, Record, Revision, Writer};
pub use request::{Reply, Request};
pub use url::parse_folder;

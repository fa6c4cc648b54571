//! Locks in a folder: what the register promises, whatever its processes do.
#![allow(clippy::unwrap_used, reason = "tests")]

mod folders;
#[cfg(unix)]
mod processes;
mod steps;

use core::time::Duration;

use bytes::Bytes;
use lock_proto::ClientId;
use lock_proto::register::{Entry, Record, Writer};

/// A record of a client, the successor of another one.
fn record(client: u128, expected: Option<&Entry>) -> Record {
    Record {
        version: expected.map_or(1_764_000_000_000, |expected| expected.record.version + 1),
        writer: Writer { client: ClientId::from_bits(client), number: 7 },
        held: true,
        fence: 1,
        ttl: Duration::from_secs(10),
        label: "".into(),
        value: Bytes::new(),
    }
}

//! The machines that speak bytes: for Redis, one node or a quorum, and for ZooKeeper.

use core::hint::black_box;

use lock_proto::lock::Output;
use lock_proto::{Acquire, ByteClient, ClientId, Fault};

use crate::{call, now};

#[cfg(feature = "redis")]
pub(crate) fn redis() -> Option<()> {
    use lock_proto::redis::{Client, Config, Endpoint};
    let nodes = black_box(&["redis://a"][..]).iter().filter_map(|url| Endpoint::parse(url).ok());
    drive(&mut Client::new(now(), Config::new(nodes), ClientId::from_bits(black_box(1)), black_box(1)).ok()?)
}

#[cfg(feature = "zookeeper")]
pub(crate) fn zookeeper() -> Option<()> {
    use lock_proto::zookeeper::{Client, Config};
    let config = Config::parse(black_box("zk://a")).ok()?;
    drive(&mut Client::new(now(), config, ClientId::from_bits(black_box(1)), black_box(1)).ok()?)
}

/// Calls everything that a program calls.
fn drive(client: &mut impl ByteClient) -> Option<()> {
    let lock = client.acquire(now(), &Acquire::new(black_box("name"))).ok()?;
    while black_box(true) {
        while let Some(output) = client.poll_output() {
            match &output {
                Output::Connect { conn, .. } if black_box(true) => client.handle_connected(now(), *conn),
                Output::Connect { conn, .. } => {
                    client.handle_received(now(), *conn, black_box(b"+OK\r\n"));
                    let sent = black_box(client.outgoing(*conn)).len();
                    client.consume(*conn, sent);
                    client.handle_disconnected(now(), *conn, Fault::Closed);
                }
                _ => {}
            }
            black_box(&output);
        }
        call(client, lock)?;
    }
    Some(())
}

//! Host names with several addresses, some of which do not work.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::net::TcpListener;
use std::time::Instant as StdInstant;

use lock_driver::Settings;
use lock_proto::redis::{Config, Endpoint};
use lock_proto::{etcd, zookeeper};
use lock_testkit::{DeadAddress, Redis, TIMEOUT};

use crate::{Kit, Runtime, Server};

/// A driver that tries addresses one at a time gets no lock before this timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The first address does not respond, so the second is tried concurrently.
pub async fn dead_first_address_does_not_block_connect<R: Runtime>(kit: Kit<R>, server: Server) {
    let dead = DeadAddress::new();
    let since = StdInstant::now();
    take_behind(&kit, &server, dead.address(), CONNECT_TIMEOUT).await;
    let took = since.elapsed();
    assert!(took < CONNECT_TIMEOUT / 2, "{took:?}");
}

/// The server at the first address accepts connections and never replies.
pub async fn silent_first_address_is_tried_last<R: Runtime>(kit: Kit<R>, server: Server) {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    take_behind(&kit, &server, silent.local_addr().unwrap(), Duration::from_millis(500)).await;
}

/// Takes a lock on a server at the second address of its name.
async fn take_behind<R: Runtime>(kit: &Kit<R>, server: &Server, first: SocketAddr, connect_timeout: Duration) {
    let settings: Settings = match server {
        Server::Redis(_) => {
            Config::new([Endpoint::parse("redis://name.test").unwrap()]).connect_timeout(connect_timeout).into()
        }
        Server::Etcd(_) => etcd::Config::parse("etcd://name.test").unwrap().connect_timeout(connect_timeout).into(),
        Server::ZooKeeper(chroot) => {
            let url = chroot.url().replace(&chroot.server().address().to_string(), "name.test");
            zookeeper::Config::parse(&url).unwrap().connect_timeout(connect_timeout).into()
        }
    };
    let client = kit.resolving_to(vec![first, server.address()], settings);
    kit.release(kit.take(&client, "a").await).await;
}

/// The first address is a read-only replica, so the other one is preferred.
pub async fn replica_at_first_address_is_skipped<R: Runtime>(kit: Kit<R>) {
    let primary = Redis::start();
    let replica = Redis::builder().replica_of(&primary).start();
    let settings = Settings::parse(["redis://name.test"]).unwrap();
    let client = kit.resolving_to(vec![replica.address(), primary.address()], settings);
    kit.release(kit.take(&client, "a").await).await;
    assert_eq!(kit.in_time("shutdown", client.shutdown(TIMEOUT)).await.unreleased, 0);
}

/// A name that the host's resolver knows.
pub async fn host_name_is_resolved_by_system_resolver<R: Runtime>(kit: Kit<R>) {
    let server = Redis::start();
    let client = kit.client(&format!("redis://localhost:{}", server.address().port()));
    kit.release(kit.take(&client, "a").await).await;
}

//! Clients and server queries for the tests.

use core::time::Duration;

use lock_testkit::{Chroot, Proxy, TIMEOUT, ZooKeeper, ZooKeeperEnsemble};
use lock_tokio::Client;
use lock_tokio::zookeeper::Config;

pub(crate) use crate::common::{
    LONG_TTL, failure, in_time, ms, poll_once, release, shut_down, take, wait_for, wait_until_blocked,
};

/// As short as possible without losing locks on a busy machine. A tick is 200 ms.
pub(crate) const TTL: Duration = ms(2_000);

pub(crate) fn config(chroot: &Chroot) -> Config {
    Config::parse(&chroot.url()).unwrap().session_ttl(LONG_TTL)
}

pub(crate) fn with(config: Config) -> Client {
    lock_tokio::connect_with(config).unwrap()
}

pub(crate) fn client(chroot: &Chroot) -> Client {
    with(config(chroot))
}

/// A server that no other test uses.
pub(crate) fn alone() -> Chroot {
    Chroot::alone(ZooKeeper::start())
}

/// Settings of a client that reaches the server through this proxy.
pub(crate) fn through(proxy: &Proxy, chroot: &Chroot) -> Config {
    let url = chroot.url().replace(&chroot.server().address().to_string(), &proxy.address().to_string());
    Config::parse(&url).unwrap().session_ttl(LONG_TTL)
}

/// Settings for all members. The session survives an election on a busy machine.
pub(crate) fn ensemble_config(ensemble: &ZooKeeperEnsemble) -> Config {
    Config::parse(&ensemble.url()).unwrap().session_ttl(LONG_TTL).release_within(TIMEOUT)
}

/// The session that holds the only ephemeral node.
#[track_caller]
pub(crate) fn session_of_holder(chroot: &Chroot) -> i64 {
    let nodes = chroot.ephemerals();
    let [node] = &nodes[..] else { panic!("{nodes:?}") };
    chroot.server().stat(&format!("{}{node}", chroot.path())).unwrap().ephemeral_owner
}

pub(crate) async fn assert_clean(chroot: &Chroot) {
    wait_for("all nodes are gone", || chroot.ephemerals().is_empty()).await;
}

//! Locks of other libraries.

use std::time::{Duration, Instant};

use lock_bench::{Measured, Meter, measure};
use lock_testkit::{ZooKeeper, ZooKeeperPeer};
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix};

const SESSION: Duration = Duration::from_secs(10);

/// Opens sessions of `zookeeper-client`.
pub async fn connect(server: &ZooKeeper, clients: usize) -> Vec<Client> {
    let mut open = Vec::new();
    for _ in 0..clients {
        let connector = Client::connector().with_session_timeout(SESSION);
        open.push(connector.connect(&server.address().to_string()).await.expect("it connects"));
    }
    open
}

/// `zookeeper-client`: each task locks `name` of its number, on the client of its number.
pub async fn zookeeper_client(
    clients: &[Client],
    tasks: usize,
    span: Duration,
    name: impl Fn(usize) -> String,
) -> Measured {
    measure(tasks, span, |n, meter| run(clients[n % clients.len()].clone(), name(n), meter)).await
}

async fn run(client: Client, path: String, meter: Meter) {
    let acls = Acls::anyone_all();
    while meter.is_running() {
        let parent = CreateMode::Persistent.with_acls(acls);
        let options = LockOptions::new(acls).with_ancestor_options(parent).expect("options");
        let prefix = LockPrefix::new_curator(&path, "lock-").expect("a path");
        let lock = client.lock(prefix, b"", options).await.expect("granted");
        let node = lock.lock_path().to_owned();
        // It would delete the node in the background, and not say when that is done.
        std::mem::forget(lock);
        client.delete(&node, None).await.expect("released");
        meter.count();
    }
}

/// kazoo: one task, which counts by itself. Cycles per second.
pub fn kazoo(server: &ZooKeeper, span: Duration) -> f64 {
    let mut peer = ZooKeeperPeer::kazoo(&server.address().to_string(), SESSION, "__lock__");
    assert!(peer.ask("acquire /kazoo -").starts_with("held"), "the first lock makes the parent");
    assert_eq!(peer.ask("release /kazoo"), "released");
    let (mut cycles, mut seconds, since) = (0, 0.0, Instant::now());
    while since.elapsed() < span {
        const COUNT: u32 = 100;
        let answer = peer.ask(&format!("cycles /kazoo {COUNT}"));
        let took: f64 = answer.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number of seconds");
        cycles += COUNT;
        seconds += took;
    }
    f64::from(cycles) / seconds
}

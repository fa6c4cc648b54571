//! Lock and unlock without contention.

use std::time::Duration;

use lock_bench::raw_zookeeper::RawZooKeeper;
use lock_bench::{Measured, measure, median};
use lock_proto::zookeeper::codec::{CreateMode, Op};
use lock_testkit::ZooKeeper;

use crate::cost::{Count, Sample, sample};
use crate::peers;

const CYCLES: u64 = 1_000;

/// Lets the JVM compile the server's code.
pub async fn warm_up(server: &ZooKeeper, span: Duration) {
    bare(server, 16, span, false).await;
    ours(server, 16, span).await;
}

/// Compares a bare create and delete, the same with a list of the queue, this library,
/// `zookeeper-client` and kazoo.
pub async fn contest(server: &ZooKeeper, tasks: usize, rounds: usize, span: Duration) {
    println!(
        "uncontended, {tasks} tasks with a name each, over one connection: cycles a second, µs of processor time for each here and on the server"
    );
    println!(
        "{:>24} {:>24} {:>24} {:>24} {:>10} {:>11} {:>8} {:>8} {:>9}",
        "create + delete",
        "create + list + delete",
        "lock + unlock",
        "zookeeper-client",
        "kazoo",
        "time / bare",
        "/ list",
        "/ crate",
        "/ kazoo"
    );
    let [mut to_bare, mut to_listed, mut to_crate, mut to_kazoo] = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        let least = sample(server, bare(server, tasks, span, false)).await;
        let listed = sample(server, bare(server, tasks, span, true)).await;
        let ours = sample(server, ours(server, tasks, span)).await;
        let name = |n| format!("/crate-{n}");
        let open = peers::connect(server, 1).await;
        let other = sample(server, peers::zookeeper_client(&open, tasks, span, name)).await;
        // It has one thread for Python's code.
        let kazoo = if tasks == 1 { tokio::task::block_in_place(|| peers::kazoo(server, span)) } else { f64::NAN };
        to_bare.push(least.rate / ours.rate);
        to_listed.push(listed.rate / ours.rate);
        to_crate.push(ours.rate / other.rate);
        to_kazoo.push(ours.rate / kazoo);
        let text = |of: &Sample| format!("{:.0} {:>6.0} {:>6.0}", of.rate, of.cpu.0, of.cpu.1);
        println!(
            "{:>24} {:>24} {:>24} {:>24} {kazoo:>10.0} {:>11.2} {:>8.2} {:>8.2} {:>9.2}",
            text(&least),
            text(&listed),
            text(&ours),
            text(&other),
            least.rate / ours.rate,
            listed.rate / ours.rate,
            ours.rate / other.rate,
            ours.rate / kazoo,
        );
    }
    println!(
        "{:>110} {:>11.2} {:>8.2} {:>8.2} {:>9.2}   budget: 1.10 of the time of create + delete; more than the others\n",
        "median",
        median(to_bare),
        median(to_listed),
        median(to_crate),
        median(to_kazoo)
    );
}

async fn ours(server: &ZooKeeper, tasks: usize, span: Duration) -> Measured {
    let client = lock_bench::connect(&server.url()).expect("a URL of the testkit");
    let measured = measure(tasks, span, |n, meter| {
        let lock = client.lock(format!("ours-{n}"));
        async move {
            while meter.is_running() {
                let guard = lock.acquire().await.expect("granted");
                let _ = guard.release().await;
                meter.count();
            }
        }
    });
    let measured = measured.await;
    client.shutdown(Duration::from_secs(5)).await;
    measured
}

/// The least that a lock needs: create and delete an ephemeral node. `listed` also lists the queue,
/// in the round trip of the create, as a client must that does not know who is first.
async fn bare(server: &ZooKeeper, tasks: usize, span: Duration, listed: bool) -> Measured {
    let peer = RawZooKeeper::connect(server).await;
    for n in 0..tasks {
        if server.stat(&format!("/bare-{n}")).is_none() {
            peer.create(&format!("/bare-{n}"), CreateMode::Persistent).await;
        }
    }
    measure(tasks, span, |n, meter| {
        let (peer, queue, path) = (peer.clone(), format!("/bare-{n}"), format!("/bare-{n}/one"));
        async move {
            while meter.is_running() {
                if listed {
                    let list = Op::GetChildren { path: queue.as_str().into(), watch: false };
                    tokio::join!(peer.create(&path, CreateMode::Ephemeral), peer.call(list));
                } else {
                    peer.create(&path, CreateMode::Ephemeral).await;
                }
                peer.delete(&path).await;
                meter.count();
            }
        }
    })
    .await
}

/// Prints the cost of uncontended cycles, counted by the server.
pub async fn cost(server: &ZooKeeper) {
    let client = lock_bench::connect(&server.url()).expect("a URL of the testkit");
    let lock = client.lock("counted");
    let _ = lock.acquire().await.expect("granted").release().await;
    let before = Count::read(server);
    for _ in 0..CYCLES {
        let _ = lock.acquire().await.expect("granted").release().await;
    }
    let after = Count::read(server);
    let each = |from: u64, to: u64| (to - from) as f64 / CYCLES as f64;
    let (writes, packets) = (each(before.writes, after.writes), each(before.packets, after.packets));
    println!("uncontended, {CYCLES} cycles: {writes:.3} writes and {packets:.3} packets each\n");
    assert!(writes < 2.01 && packets < 2.1, "the budget is a create and a delete");
    client.shutdown(Duration::from_secs(5)).await;
}

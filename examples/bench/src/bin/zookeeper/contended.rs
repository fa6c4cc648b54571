//! Many clients that want one lock.

use std::time::Duration;

use lock_bench::{Measured, measure, median};
use lock_testkit::ZooKeeper;
use lock_tokio::Client;

use crate::cost::{Sample, sample};
use crate::peers;

/// Compares clients of this library with as many of `zookeeper-client`.
pub async fn contest(server: &ZooKeeper, clients: usize, rounds: usize, span: Duration) {
    println!("one lock, {clients} clients, no hold: locks a second, and for each lock");
    println!(
        "{:>20} {:>9} {:>8} {:>8} {:>8} {:>7} {:>7}",
        "", "locks/s", "writes", "events", "packets", "µs", "server"
    );
    let (mut to_crate, mut writes, mut events) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mine = ours(server, clients, span).await;
        print("this library", &mine);
        let name = |_| "/contended-crate".to_owned();
        let open = peers::connect(server, clients).await;
        let other = sample(server, peers::zookeeper_client(&open, clients, span, name)).await;
        print("zookeeper-client", &other);
        to_crate.push(mine.rate / other.rate);
        writes.push(mine.writes - 1.0);
        events.push(mine.events);
    }
    println!(
        "medians: {:.2} x zookeeper-client; {:.3} writes and {:.3} events a hand-over beside the create   budget: 1.05 writes, 1 event\n",
        median(to_crate),
        median(writes),
        median(events)
    );
}

fn print(title: &str, Sample { rate, writes, packets, events, cpu }: &Sample) {
    println!("{title:>20} {rate:>9.0} {writes:>8.3} {events:>8.3} {packets:>8.3} {:>7.0} {:>7.0}", cpu.0, cpu.1);
}

/// Counted without the begin and end of the sessions.
async fn ours(server: &ZooKeeper, count: usize, span: Duration) -> Sample {
    let mut clients = Vec::new();
    for n in 0..count {
        let client = lock_bench::connect(&server.url()).expect("a URL of the testkit");
        let _ = client.lock(format!("first-{n}")).acquire().await.expect("granted").release().await;
        clients.push(client);
    }
    let sample = sample(server, contend(&clients, span)).await;
    for client in clients {
        client.shutdown(Duration::from_secs(5)).await;
    }
    sample
}

async fn contend(clients: &[Client], span: Duration) -> Measured {
    measure(clients.len(), span, |n, meter| {
        let lock = clients[n].lock("contended");
        async move {
            while meter.is_running() {
                let guard = lock.acquire().await.expect("granted");
                let _ = guard.release().await;
                meter.count();
            }
        }
    })
    .await
}

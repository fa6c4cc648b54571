//! Uncontended acquire and release over loopback on real servers.
//!
//! Run with `cargo bench -p lock-smol --features etcd --bench cycle`. Most of the time is spent
//! in the servers and the scheduler, so compare only figures of the same run. `make bench` compares
//! with bare sockets and bare calls.

#![allow(missing_docs, reason = "the macros of criterion make public functions")]

use criterion::{Criterion, criterion_group, criterion_main};
use lock_smol::Client;
use lock_testkit::{Etcd, Redis, TIMEOUT};

async fn cycle(client: &Client) {
    let guard = client.lock("invoice:42").acquire().await.expect("nobody else wants it");
    let _ = guard.release().await;
}

fn cycles(c: &mut Criterion) {
    let (redis, etcd) = (Redis::start(), Etcd::start());
    for (name, url) in [("redis", redis.url()), ("etcd", etcd.url())] {
        let client = smol::block_on(async { lock_smol::connect(&url) }).expect("a good URL");
        c.bench_function(&format!("smol, {name}, acquire + release"), |b| b.iter(|| smol::block_on(cycle(&client))));
        assert_eq!(smol::block_on(client.shutdown(TIMEOUT)).unreleased, 0);
    }
}

criterion_group!(benches, cycles);
criterion_main!(benches);

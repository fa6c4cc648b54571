//! Cost of a hand-over and of another waiter, by the number of waiters in an etcd client.
//!
//! `cargo bench -p lock-proto --bench etcd_queue`.

#![allow(missing_docs, reason = "the macros of criterion make public functions")]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use lock_gauge::etcd::Line;

fn queue(c: &mut Criterion) {
    let mut group = c.benchmark_group("etcd, waiters of one client");
    for waiters in [10, 1_000] {
        let mut line = Line::new(waiters);
        group.bench_function(BenchmarkId::new("release + next + enter", waiters), |b| b.iter(|| line.turn()));
        group.bench_function(BenchmarkId::new("enter + leave", waiters), |b| b.iter(|| line.enter_and_leave()));
    }
}

criterion_group!(benches, queue);
criterion_main!(benches);

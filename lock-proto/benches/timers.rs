//! How the cost of one renewal grows with the number of locks that are held (requirement M7).
//!
//! `cargo bench -p lock-proto --bench timers`.

#![allow(missing_docs, reason = "the macros of criterion make public functions")]

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use lock_gauge::redis;

fn timers(c: &mut Criterion) {
    let mut group = c.benchmark_group("locks held");
    for held in [1_000, 10_000, 100_000] {
        let mut rig = redis::held(held);
        group.bench_function(BenchmarkId::new("next deadline", held), |b| b.iter(|| rig.next_deadline()));
        group.bench_function(BenchmarkId::new("one renewal", held), |b| b.iter(|| rig.renew_next()));
    }
}

criterion_group!(benches, timers);
criterion_main!(benches);

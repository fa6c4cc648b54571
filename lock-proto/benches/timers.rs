//! Cost of a renewal, by the number of held locks.
//!
//! `cargo bench -p lock-proto --bench timers`.
// M7

#![allow(missing_docs, reason = "the macros of criterion make public functions")]

use std::time::Instant;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use lock_gauge::redis;

fn timers(c: &mut Criterion) {
    let mut group = c.benchmark_group("locks held");
    for held in [1_000, 10_000, 100_000] {
        let mut rig = redis::held(held);
        group.bench_function(BenchmarkId::new("next deadline", held), |b| b.iter(|| rig.next_deadline()));
        group.bench_function(BenchmarkId::new("one renewal", held), |b| {
            // Locks within one coalescing interval are renewed together. More held locks mean more
            // of them.
            b.iter_custom(|iterations| {
                let (start, mut renewed) = (Instant::now(), 0);
                while renewed < iterations {
                    renewed += rig.renew_next() as u64;
                }
                start.elapsed().mul_f64(iterations as f64 / renewed as f64)
            });
        });
    }
}

criterion_group!(benches, timers);
criterion_main!(benches);

//! Cost of the state machines alone, without socket, runtime or clock.
//!
//! `cargo bench -p lock-proto --bench machine`. The budget of a complete acquire and release cycle
//! on one node, bytes to bytes, is 2 µs.

#![allow(missing_docs, reason = "the macros of criterion make public functions")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lock_gauge::rig::Rig as _;
use lock_gauge::{etcd, quorum, redis};

fn cycles(c: &mut Criterion) {
    for (name, fencing) in [("redis, acquire + release", false), ("redis, acquire + release, fenced", true)] {
        let mut rig = redis::Rig::new(fencing);
        c.bench_function(name, |b| b.iter(|| rig.cycle()));
    }
    let mut rig = quorum::Rig::ready();
    c.bench_function("quorum of 5, acquire + release", |b| b.iter(|| rig.cycle()));
    let mut rig = etcd::Rig::ready();
    c.bench_function("etcd, acquire + release", |b| b.iter(|| rig.cycle()));
}

fn renewals(c: &mut Criterion) {
    let mut group = c.benchmark_group("redis, renewals");
    group.throughput(Throughput::Elements(10_000));
    let mut renewals = redis::renewals();
    group.bench_function("10 000 due together", |b| b.iter(&mut renewals));
}

criterion_group!(benches, cycles, renewals);
criterion_main!(benches);

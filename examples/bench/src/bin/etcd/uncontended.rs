//! Lock and unlock without contention.

use std::time::Duration;

use lock_bench::{Measured, measure, median};
use lock_proto::etcd::message::{
    COMPARE_CREATE, COMPARE_MOD, Compare, CompareWith, DeleteRangeRequest, DeleteRangeResponse, Op, PutRequest,
    PutResponse, RequestOp, TxnRequest, TxnResponse,
};
use lock_testkit::Etcd;

use lock_bench::cost::{Cost, Sample, sample};
use lock_bench::raw_etcd::{DELETE, PUT, RawEtcd, TXN};

const CYCLES: u64 = 1_000;

/// Compares put and delete, the same with guards, and this library. They alternate, so that a noisy
/// machine disturbs all of them.
pub async fn contest(etcd: &Etcd, tasks: usize, rounds: usize, span: Duration) {
    println!(
        "uncontended, {tasks} tasks with a name each, over one connection: cycles a second, µs of processor time for each here and on the server"
    );
    println!(
        "{:>24} {:>24} {:>24} {:>8} {:>9}",
        "put + delete", "the same, guarded", "lock + unlock", "/ bare", "/ guarded"
    );
    let (mut to_bare, mut to_guarded) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let bare = sample(etcd, None, bare(etcd, tasks, span)).await;
        let guarded = sample(etcd, None, guarded(etcd, tasks, span)).await;
        let ours = sample(etcd, None, ours(etcd, tasks, span)).await;
        to_bare.push(ours.rate / bare.rate);
        to_guarded.push(ours.rate / guarded.rate);
        let text = |of: &Sample| format!("{:.0} {:>6.0} {:>6.0}", of.rate, of.cpu.0, of.cpu.1);
        println!(
            "{:>24} {:>24} {:>24} {:>8.2} {:>9.2}",
            text(&bare),
            text(&guarded),
            text(&ours),
            ours.rate / bare.rate,
            ours.rate / guarded.rate
        );
    }
    let (bare, guarded) = (median(to_bare), median(to_guarded));
    println!("{:>74} {bare:>8.2} {guarded:>9.2}   budget: 0.90 of put + delete\n", "median");
}

pub async fn ours(etcd: &Etcd, tasks: usize, span: Duration) -> Measured {
    let client = lock_bench::connect(&etcd.url()).expect("a URL of the testkit");
    let measured = measure(tasks, span, |n, meter| {
        let lock = client.lock(format!("ours {n}"));
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

/// The minimal lock: put and delete a key.
async fn bare(etcd: &Etcd, tasks: usize, span: Duration) -> Measured {
    let peer = RawEtcd::connect(etcd).await;
    let lease = peer.grant().await;
    measure(tasks, span, |n, meter| {
        let (peer, key) = (peer.clone(), format!("bare {n}/{lease:x}"));
        async move {
            while meter.is_running() {
                let put = PutRequest { key: key.clone().into(), lease, ..PutRequest::default() };
                let _: PutResponse = peer.call(PUT, put).await;
                let delete = DeleteRangeRequest { key: key.clone().into(), ..DeleteRangeRequest::default() };
                let _: DeleteRangeResponse = peer.call(DELETE, delete).await;
                meter.count();
            }
        }
    })
    .await
}

/// Put and delete as guarded transactions, which a lock needs. Their cost on the server is not this
/// library's.
async fn guarded(etcd: &Etcd, tasks: usize, span: Duration) -> Measured {
    let peer = RawEtcd::connect(etcd).await;
    let lease = peer.grant().await;
    measure(tasks, span, |n, meter| {
        let (peer, key) = (peer.clone(), format!("guarded {n}/{lease:x}"));
        let compare =
            |target, with| Compare { target, key: key.clone().into(), with: Some(with), ..Compare::default() };
        let put = PutRequest { key: key.clone().into(), lease, ..PutRequest::default() };
        let put = TxnRequest {
            compare: vec![compare(COMPARE_CREATE, CompareWith::CreateRevision(0))],
            success: vec![RequestOp { request: Some(Op::Put(put)) }],
            failure: Vec::new(),
        };
        let delete = DeleteRangeRequest { key: key.clone().into(), ..DeleteRangeRequest::default() };
        let mut delete = TxnRequest {
            compare: vec![compare(COMPARE_MOD, CompareWith::ModRevision(0))],
            success: vec![RequestOp { request: Some(Op::Delete(delete)) }],
            failure: Vec::new(),
        };
        async move {
            while meter.is_running() {
                let answer: TxnResponse = peer.call(TXN, put.clone()).await;
                let revision = answer.header.expect("a header").revision;
                delete.compare[0].with = Some(CompareWith::ModRevision(revision));
                let answer: TxnResponse = peer.call(TXN, delete.clone()).await;
                assert!(answer.succeeded, "the key is ours");
                meter.count();
            }
        }
    })
    .await
}

/// Prints the cost of uncontended cycles, counted by the server.
pub async fn cost(etcd: &Etcd) {
    let client = lock_bench::connect(&etcd.url()).expect("a URL of the testkit");
    let lock = client.lock("counted");
    let _ = lock.acquire().await.expect("granted").release().await;
    let before = Cost::read(etcd);
    for _ in 0..CYCLES {
        let _ = lock.acquire().await.expect("granted").release().await;
    }
    let cost = Cost::read(etcd) - before;
    println!("uncontended, {CYCLES} cycles: {:?}, watch messages {:?}\n", cost.calls, cost.watch);
    assert!(cost.sum() == 2 * CYCLES && cost.watch == (0, 0), "the budget is 2 calls a cycle and nothing else");
    client.shutdown(Duration::from_secs(5)).await;
}

//! Cost of RESP: a connection encodes a command and reads its reply, with its queue and deadlines,
//! compared with the bare codec of redis-protocol.
//!
//! `cargo bench -p lock-proto --bench resp`. The last line is the ratio.

use core::fmt::Write as _;
use core::time::Duration;
use std::time::Instant;

use bytes::BytesMut;
use criterion::{Criterion, Throughput};
use lock_gauge::resp::{BATCH, Rig};
use lock_proto::redis::CLIENT_PART;
use redis_protocol::resp2::decode::decode_bytes_mut;
use redis_protocol::resp2::encode::extend_encode_borrowed;
use redis_protocol::resp2::types::{BorrowedFrame, BytesFrame};

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("resp, 100 commands and answers");
    group.throughput(Throughput::Elements(BATCH as u64));
    let (mut rig, mut bare) = (Rig::ready(), Bare::new());
    group.bench_function("Pipe", |b| b.iter(|| rig.batch()));
    group.bench_function("redis-protocol", |b| b.iter(|| bare.batch()));
    group.finish();
    criterion.final_summary();
    if std::env::args().any(|arg| arg == "--bench") {
        ratio(&mut rig, &mut bare);
    }
}

/// Alternates, so that a noisy machine disturbs both alike. Reports the median ratio.
fn ratio(rig: &mut Rig, bare: &mut Bare) {
    let mut ratios: Vec<f64> = (0..201)
        .map(|_| {
            let ours = time(|| rig.batch());
            ours.as_secs_f64() / time(|| bare.batch()).as_secs_f64()
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("Pipe / redis-protocol: {:.2} of the time", ratios[ratios.len() / 2]);
}

fn time(mut work: impl FnMut()) -> Duration {
    let start = Instant::now();
    (0..20).for_each(|_| work());
    start.elapsed()
}

/// The same commands and replies, encoded and decoded by redis-protocol alone.
struct Bare {
    out: BytesMut,
    incoming: BytesMut,
    token: String,
    serial: u64,
}

impl Bare {
    /// With preallocated buffers.
    fn new() -> Self {
        let mut bare =
            Self { out: BytesMut::new(), incoming: BytesMut::new(), token: format!("{:032x}:", 1), serial: 0 };
        bare.batch();
        bare
    }

    /// One batch of commands and their replies.
    fn batch(&mut self) {
        self.out.clear();
        for _ in 0..BATCH {
            self.serial += 1;
            self.token.truncate(CLIENT_PART);
            write!(self.token, "{}", self.serial).expect("a string takes all");
            let args = ["SET", "invoice:42", &self.token, "NX", "PX", "10000"];
            let args = args.map(|arg| BorrowedFrame::BulkString(arg.as_bytes()));
            extend_encode_borrowed(&mut self.out, &BorrowedFrame::Array(&args), false).expect("it fits");
        }
        for _ in 0..BATCH {
            self.incoming.extend_from_slice(b"+OK\r\n");
        }
        for _ in 0..BATCH {
            let Ok(Some((BytesFrame::SimpleString(text), ..))) = decode_bytes_mut(&mut self.incoming) else {
                panic!("a whole answer")
            };
            assert_eq!(text, "OK");
        }
    }
}

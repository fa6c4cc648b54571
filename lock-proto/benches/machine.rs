//! What the pure machine costs: no socket, no runtime, no clock.
//!
//! `cargo bench -p lock-proto --bench machine`. The budget of a whole acquire and release cycle, bytes to bytes, is 2 µs.

#![allow(missing_docs, reason = "the macros of criterion make public functions")]

use core::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use lock_proto::redis::{Acquire, Client, Config, Endpoint, Event, Output};
use lock_proto::{ClientId, ConnId, Instant};

/// A client with one open connection, and the clock that drives it.
struct Bench {
    client: Client,
    conn: ConnId,
    now: Instant,
}

impl Bench {
    fn new(fencing: bool) -> Self {
        let endpoint = Endpoint::parse("redis://127.0.0.1:6379").expect("a good URL");
        let mut now = Instant::from_millis(1_000);
        let config = Config::new([endpoint]).fencing(fencing);
        let mut client = Client::new(now, config, ClientId::from_bits(1), 2).expect("good settings");
        let lock = client.acquire(now, &Acquire::new("warm-up")).expect("a good wish");
        let Some(Output::Connect { conn, .. }) = client.poll_output() else { panic!("a connection first") };
        client.handle_connected(now, conn);
        client.abandon(now, lock);
        let mut bench = Self { client, conn, now };
        bench.write();
        bench.answer(if fencing { b"*2\r\n:1\r\n:5\r\n" } else { b"+OK\r\n" });
        bench.answer(b":-2\r\n");
        now = now + Duration::from_millis(1);
        bench.now = now;
        bench.cycle(fencing);
        bench
    }

    /// Takes all bytes, as a socket would.
    fn write(&mut self) -> usize {
        let mut all = 0;
        loop {
            let n = self.client.outgoing(self.conn).len();
            if n == 0 {
                return all;
            }
            self.client.consume(self.conn, n);
            all += n;
        }
    }

    fn answer(&mut self, bytes: &[u8]) {
        self.client.handle_received(self.now, self.conn, bytes);
        while self.client.poll_output().is_some() {}
    }

    /// One lock, taken and given back.
    fn cycle(&mut self, fencing: bool) {
        self.now = self.now + Duration::from_micros(50);
        let lock = self.client.acquire(self.now, &Acquire::new("invoice:42")).expect("a good wish");
        self.write();
        let granted: &[u8] = if fencing { b"*2\r\n:1\r\n:1700000000000000\r\n" } else { b"+OK\r\n" };
        self.client.handle_received(self.now, self.conn, granted);
        let Some(Output::Event { event: Event::Granted(_), .. }) = self.client.poll_output() else { panic!("granted") };
        self.client.claim(self.now, lock).expect("an offer");
        self.client.release(self.now, lock).expect("held");
        self.write();
        self.client.handle_received(self.now, self.conn, b":-2\r\n");
        let Some(Output::Event { event: Event::Released(_), .. }) = self.client.poll_output() else {
            panic!("released")
        };
    }
}

fn cycles(c: &mut Criterion) {
    for (name, fencing) in [("acquire + release", false), ("acquire + release, fenced", true)] {
        let mut bench = Bench::new(fencing);
        c.bench_function(name, |b| b.iter(|| bench.cycle(fencing)));
    }
}

fn renewals(c: &mut Criterion) {
    c.bench_function("1 000 renewals of 1 000 locks", |b| {
        b.iter_batched_ref(
            || {
                let mut bench = Bench::new(false);
                for n in 0..1_000 {
                    let lock =
                        bench.client.acquire(bench.now, &Acquire::new(format!("lock:{n}"))).expect("a good wish");
                    bench.write();
                    bench.answer(b"+OK\r\n");
                    bench.client.claim(bench.now, lock).expect("an offer");
                }
                bench
            },
            |bench| {
                bench.now = bench.now + Duration::from_millis(3_400);
                bench.client.handle_timeout(bench.now);
                bench.write();
                bench.answer(&b":1\r\n".repeat(1_000));
            },
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, cycles, renewals);
criterion_main!(benches);

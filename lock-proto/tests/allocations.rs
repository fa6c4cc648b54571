//! Counts allocations: an idle hold only allocates for its renewals.
// M7

#![allow(clippy::unwrap_used, reason = "tests")]

use core::time::Duration;
use lock_proto::{Acquire, ByteClient, ClientId, ConnId, Instant, LockClient, Machine};

use lock_proto::redis::{Client, Config, Endpoint, Output};

const LOCKS: usize = 100;

/// Takes all bytes as a socket would and returns the number of renewals among them.
fn write(client: &mut Client, conn: ConnId) -> usize {
    let mut renewals = 0;
    loop {
        let bytes = client.outgoing(conn);
        let n = bytes.len();
        if n == 0 {
            return renewals;
        }
        // Before the first renewal the client asks for INFO. Any reply will do.
        let command = |name: &[u8]| bytes.windows(name.len()).filter(|window| *window == name).count();
        renewals += command(b"\r\nEVAL") + command(b"\r\nINFO");
        client.consume(conn, n);
    }
}

/// Runs the client until `count` renewals are answered.
fn renew(client: &mut Client, conn: ConnId, now: &mut Instant, mut count: usize) {
    while count > 0 {
        *now = client.next_deadline().unwrap();
        client.handle_timeout(*now);
        for _ in 0..write(client, conn) {
            client.handle_received(*now, conn, b":1\r\n");
            count = count.saturating_sub(1);
        }
        while client.poll_output().is_some() {}
    }
}

#[test]
fn thousand_renewals_allocate_at_most_ten_times() {
    // M7
    let mut now = Instant::from_millis(1);
    let config = Config::new([Endpoint::parse("redis://127.0.0.1:1").unwrap()]).fencing(false);
    let mut client = Client::new(now, config, ClientId::from_bits(1), 2).unwrap();
    let mut conn = None;
    for n in 0..LOCKS {
        now = now + Duration::from_millis(7);
        let lock = client.acquire(now, &Acquire::new(format!("lock:{n}"))).unwrap();
        if let Some(Output::Connect { conn: opened, .. }) = client.poll_output() {
            client.handle_connected(now, opened);
            conn = Some(opened);
        }
        let conn = conn.unwrap();
        write(&mut client, conn);
        // The first lock is taken by a script.
        client.handle_received(now, conn, if n == 0 { b"*2\r\n:1\r\n:0\r\n" } else { b"+OK\r\n" });
        client.claim(now, lock).unwrap();
        while client.poll_output().is_some() {}
    }
    let conn = conn.unwrap();
    // Let buffers reach their final size, and scripts be sent with their source once.
    renew(&mut client, conn, &mut now, 2 * LOCKS);
    let counted = allocation_counter::measure(|| renew(&mut client, conn, &mut now, 1_000));
    assert!(counted.count_total <= 10, "{} allocations for 1 000 renewals", counted.count_total);
    assert!(client.holds_any());
}

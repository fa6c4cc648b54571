//! A real redis-server for this test.

use core::time::Duration;
use std::io::{Read, Write};
use std::net::TcpStream;

use lock_testkit::{Redis, wait_until};

use crate::reply::{Reply, parse};

pub(crate) struct RealServer {
    /// Stops the server on drop.
    _redis: Redis,
    pub(crate) port: u16,
}

impl RealServer {
    pub(crate) fn start() -> Self {
        // The primary's stream has only writes, and keys can be set to expire on access only.
        let redis = Redis::builder().arg("repl-ping-replica-period", "3600").arg("enable-debug-command", "yes").start();
        await_first_cron(redis.port());
        Self { port: redis.port(), _redis: redis }
    }
}

/// Waits until the server's first cron has run. It pings all replicas, whatever the period, so one
/// that connects earlier, on a busy machine, finds a PING in its stream. The same cron measures the
/// resident memory first.
fn await_first_cron(port: u16) {
    let mut control = RealConnection::open(port);
    let has_run = wait_until(Duration::from_secs(30), || {
        let Reply::Bulk(info) = control.round_trip(&["INFO", "memory"]) else { panic!("INFO answers text") };
        !String::from_utf8_lossy(&info).contains("used_memory_rss:0\r\n")
    });
    assert!(has_run, "redis-server runs no cron");
}

pub(crate) struct RealConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl RealConnection {
    pub(crate) fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        stream.set_nodelay(true).expect("nodelay");
        Self { stream, buffer: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("write to redis-server");
    }

    pub(crate) fn read(&mut self) -> Result<Reply, String> {
        loop {
            if let Some((reply, used)) = parse(&self.buffer) {
                self.buffer.drain(..used);
                return Ok(reply);
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err("redis-server closed the connection".into()),
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("no reply of redis-server: {e}")),
            }
        }
    }

    /// Skips the data copy after `FULLRESYNC`: `$length`, then that many bytes without a line end.
    /// Empty lines may precede it as keep-alives.
    pub(crate) fn skip_copy(&mut self) {
        loop {
            let blank = self.buffer.iter().take_while(|byte| **byte == b'\n').count();
            self.buffer.drain(..blank);
            let end = self.buffer.windows(2).position(|two| two == b"\r\n");
            let length = end.and_then(|end| {
                let digits = self.buffer[..end].strip_prefix(b"$").expect("a length");
                Some(end + 2 + core::str::from_utf8(digits).ok()?.parse::<usize>().ok()?)
            });
            if let Some(length) = length.filter(|length| self.buffer.len() >= *length) {
                self.buffer.drain(..length);
                return;
            }
            let mut chunk = [0; 4096];
            let n = self.stream.read(&mut chunk).expect("a copy of the data");
            assert!(n > 0, "redis-server closed the connection");
            self.buffer.extend_from_slice(&chunk[..n]);
        }
    }

    pub(crate) fn round_trip(&mut self, args: &[&str]) -> Reply {
        let args: Vec<Vec<u8>> = args.iter().map(|arg| arg.as_bytes().to_vec()).collect();
        self.send(&encode(&args));
        self.read().expect("a reply")
    }
}

pub(crate) fn encode(args: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

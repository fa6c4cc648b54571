//! Commands and replies through the state machine of a connection.

use core::time::Duration;

use lock_proto::redis::{
    Endpoint, Identity, Key, KeyLayout, Limits, Pipe, PipeConfig, PipeOutput, Protocol, Reply, Request, Retired,
};
use lock_proto::{Backoff, CallId, ClientId, ConnId, Instant, NodeId, Role};

/// Number of commands in flight.
pub const BATCH: usize = 100;
const NOW: Instant = Instant::from_millis(1_000);

/// An open connection.
pub struct Rig {
    pipe: Pipe,
    conn: ConnId,
    serial: u64,
    key: Key,
    answers: Vec<u8>,
}

impl Rig {
    /// Opens the connection.
    pub fn ready() -> Self {
        let node = NodeId::new(0);
        let config = PipeConfig {
            endpoint: Endpoint::parse("redis://127.0.0.1:6379").expect("a good URL"),
            node,
            role: Role::Commands,
            server_info: false,
            request_credentials: false,
            idle_checks: None,
            connect_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(1),
            reconnect: Backoff::fixed(Duration::from_secs(1)),
            limits: Limits::default(),
        };
        assert_eq!(config.endpoint.protocol, Protocol::Resp2);
        let mut pipe = Pipe::new(config, Identity::new(ClientId::from_bits(1), KeyLayout::default(), b""), 1);
        pipe.open(NOW);
        let Some(PipeOutput::Connect(conn)) = pipe.poll_output() else { panic!("a connection first") };
        pipe.handle_connected(NOW, conn);
        let Some(PipeOutput::Up(_)) = pipe.poll_output() else { panic!("no login is needed") };
        let mut rig =
            Self { pipe, conn, serial: 0, key: Key::new(b"", b"invoice:42"), answers: b"+OK\r\n".repeat(BATCH) };
        rig.batch();
        rig
    }

    /// Sends a batch of commands and receives their replies.
    pub fn batch(&mut self) {
        for _ in 0..BATCH {
            self.serial += 1;
            let call = CallId::new(NodeId::new(0), self.serial);
            let request = Request::Take {
                key: self.key.clone(),
                number: self.serial,
                retired: Retired::default(),
                ttl_ms: 10_000,
                fence_block: 0,
                clean: true,
                waiting_ms: 0,
            };
            self.pipe.send(NOW, call, request);
        }
        loop {
            let n = self.pipe.outgoing(self.conn).len();
            if n == 0 {
                break;
            }
            self.pipe.consume(self.conn, n);
        }
        self.pipe.handle_received(NOW, self.conn, &self.answers);
        for _ in 0..BATCH {
            let Some(PipeOutput::Reply { reply: Reply::Granted { .. }, .. }) = self.pipe.poll_output() else {
                panic!("not granted")
            };
        }
    }
}

/// Batches of commands and replies.
pub fn commands() -> Box<dyn FnMut()> {
    let mut rig = Rig::ready();
    Box::new(move || (0..1_000 / BATCH).for_each(|_| rig.batch()))
}

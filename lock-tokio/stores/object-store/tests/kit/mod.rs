//! moto, an S3 in Python.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use std::{env, thread};

use lock_testkit::{Process, TIMEOUT, free_port};

/// One request at a time, since moto does not compare and write in one step.
const SERVER: &str = "
import sys
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple('127.0.0.1', int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
";

/// The server. Stopped on drop.
pub(crate) struct Moto {
    _process: Process,
    pub(crate) port: u16,
}

impl Moto {
    pub(crate) fn start() -> Self {
        let (mut process, port) = (Process::default(), free_port());
        process.run("python3".as_ref(), "python3", |command| {
            command.args(["-c", SERVER, &port.to_string()]);
            if let Some(folder) = env::var_os("MOTO") {
                command.env("PYTHONPATH", folder);
            }
        });
        let end = Instant::now() + TIMEOUT;
        while put_bucket(port).is_none() {
            assert!(process.ended().is_none(), "moto does not start; run `make test-stores`");
            assert!(Instant::now() < end, "moto does not answer within {TIMEOUT:?}");
            thread::sleep(Duration::from_millis(20));
        }
        Self { _process: process, port }
    }

    /// The URL of a prefix in a bucket. There is one bucket, `bucket`.
    pub(crate) fn url(&self, bucket: &str) -> String {
        let settings = "region=us-east-1&allow_http=true&access_key_id=id&secret_access_key=secret";
        format!("s3://{bucket}/locks?{settings}&endpoint=http://127.0.0.1:{}", self.port)
    }
}

fn put_bucket(port: u16) -> Option<()> {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).ok()?;
    connection.write_all(b"PUT /bucket HTTP/1.0\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n").ok()?;
    let mut reply = String::new();
    connection.read_to_string(&mut reply).ok()?;
    reply.starts_with("HTTP/1.0 200").then_some(())
}

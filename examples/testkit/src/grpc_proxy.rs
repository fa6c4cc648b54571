//! A private gRPC proxy of etcd.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use crate::process::{Process, free_port};
use crate::{Etcd, TIMEOUT, wait_until};

/// Attempts with other ports: another process may take a port between finding and using it.
const MAX_PORT_ATTEMPTS: u32 = 10;

/// A running `etcd grpc-proxy` on a free port of 127.0.0.1. It puts all keys in the namespace
/// `team/`. Stopped on drop.
#[derive(Debug)]
pub struct GrpcProxy {
    process: Process,
    port: u16,
}

impl GrpcProxy {
    /// Starts a proxy in front of `etcd`.
    ///
    /// # Panics
    ///
    /// If `etcd` is not installed or does not start.
    #[must_use]
    pub fn start(etcd: &Etcd) -> Self {
        for _ in 0..MAX_PORT_ATTEMPTS {
            let mut proxy = Self { process: Process::default(), port: free_port() };
            let address = proxy.address();
            proxy.process.start("ETCD", "etcd", "etcd-server", |command| {
                command.args(["grpc-proxy", "start", "--namespace=team/"]);
                command.arg(format!("--endpoints={}", etcd.address())).arg(format!("--listen-addr={address}"));
            });
            let mut ended = false;
            let is_decided = wait_until(TIMEOUT, || {
                ended = proxy.process.ended().is_some();
                ended || TcpStream::connect(address).is_ok()
            });
            if is_decided && !ended {
                return proxy;
            }
        }
        panic!("the gRPC proxy does not start");
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The URL for locks.
    #[must_use]
    pub fn url(&self) -> String {
        format!("etcd://{}", self.address())
    }
}

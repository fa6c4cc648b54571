//! This library and bare calls on one etcd server, each over TLS and plain.
//!
//! etcd serves plain connections with gRPC's own HTTP/2 and TLS with the one of Go, which costs it
//! more. The bare calls show how much.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lock_bench::raw_etcd::{DELETE, PUT, RawEtcd};
use lock_proto::etcd::message::{DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse};
use lock_testkit::{Authority, Etcd, TIMEOUT};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::cycles::{Cycle, Series, print, print_head};

const ROUNDS: usize = 15;

pub async fn contest(span: Duration) {
    let authority = Authority::new();
    let etcd = Etcd::builder().tls(authority.server()).start();
    let ours = [etcd.url(), etcd.lock_url()].map(|url| lock_bench::connect(&url).expect("a URL of the testkit"));
    let bare = [RawEtcd::connect(&etcd).await, RawEtcd::connect_tls(tls_address(&etcd), trust(&authority)).await];
    let lease = bare[0].grant().await;
    for tasks in [1, 16] {
        let [mut own, mut other] = [const { [Series::NEW; 2] }; 2];
        for _ in 0..ROUNDS {
            for (series, client) in own.iter_mut().zip(&ours) {
                series.measure(etcd.pid(), span, (0..tasks).map(|n| client.lock(format!("ours:{n}")))).await;
            }
            for (series, peer) in other.iter_mut().zip(&bare) {
                series.measure(etcd.pid(), span, (0..tasks).map(|n| Bare::new(peer, lease, n))).await;
            }
        }
        print_head("etcd", tasks, ROUNDS, span);
        print("this library", &own);
        print("put + delete", &other);
        println!("budget: 1.3\n");
    }
    for client in ours {
        client.shutdown(TIMEOUT).await;
    }
}

fn tls_address(etcd: &Etcd) -> SocketAddr {
    let url = etcd.tls_url("");
    let address = url.trim_start_matches("etcds://").trim_end_matches('?');
    address.parse().expect("an address of the testkit")
}

fn trust(authority: &Authority) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.ca()).expect("PEM")).expect("a certificate");
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols.push(b"h2".to_vec());
    config
}

/// Puts and deletes a key by bare calls.
struct Bare {
    peer: RawEtcd,
    key: Arc<str>,
    lease: i64,
}

impl Bare {
    fn new(peer: &RawEtcd, lease: i64, task: usize) -> Self {
        Self { peer: peer.clone(), key: format!("bare {task}/{lease:x}").into(), lease }
    }
}

impl Cycle for Bare {
    async fn cycle(&mut self) {
        let key = || self.key.as_bytes().to_vec().into();
        let put = PutRequest { key: key(), lease: self.lease, ..PutRequest::default() };
        let _: PutResponse = self.peer.call(PUT, put).await;
        let delete = DeleteRangeRequest { key: key(), ..DeleteRangeRequest::default() };
        let _: DeleteRangeResponse = self.peer.call(DELETE, delete).await;
    }
}

//! Full and resumed handshakes in memory, against a rustls server: mutual TLS, RSA keys of 2048
//! bits.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use lock_bench::median;
use lock_driver::tls::{Connector, TlsSession};
use lock_proto::Tls;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, PKCS_RSA_SHA256};
use rsa::RsaPrivateKey;
use rsa::pkcs8::{EncodePrivateKey as _, LineEnding};
use rsa::rand_core::OsRng;
use rustix::time::{ClockId, clock_gettime};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{HandshakeKind, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion};

const ROUNDS: usize = 9;
const HANDSHAKES: usize = 100;
const NAME: &str = "db.example";
const BITS: usize = 2048;

pub fn contest() {
    let files = Files::issue();
    println!("handshakes, {ROUNDS} rounds of {HANDSHAKES}: µs of processor time, client and server together");
    println!("{:>10} {:>10} {:>10} {:>6}", "", "full", "resumed", "ratio");
    for (version, name) in [(&TLS13, "TLS 1.3"), (&TLS12, "TLS 1.2")] {
        let server = files.server(version);
        let mut ratios = Vec::new();
        for _ in 0..ROUNDS {
            // A new connector has no session to resume.
            let connectors: Vec<_> = (0..HANDSHAKES).map(|_| files.connector()).collect();
            let full = measure(&server, HandshakeKind::Full, connectors.iter());
            let resumed = measure(&server, HandshakeKind::Resumed, connectors.iter());
            ratios.push(resumed / full);
            println!("{name:>10} {full:>10.0} {resumed:>10.0} {:>6.2}", resumed / full);
        }
        println!("median with {name}: a resumed handshake costs {:.2} of a full one   budget: 0.5\n", median(ratios));
    }
}

/// The mean processor time of a handshake with each of these, in µs.
fn measure<'a>(
    server: &Arc<ServerConfig>,
    kind: HandshakeKind,
    connectors: impl ExactSizeIterator<Item = &'a Connector>,
) -> f64 {
    let (count, before) = (connectors.len(), cpu_time());
    for connector in connectors {
        assert_eq!(handshake(connector, server), kind);
    }
    (cpu_time() - before) / count as f64
}

/// Processor time of this thread in µs.
fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// From nothing to a verified session, with the tickets for the next one.
fn handshake(connector: &Connector, server: &Arc<ServerConfig>) -> HandshakeKind {
    let mut server = ServerConnection::new(Arc::clone(server)).expect("a server");
    let mut client = connector.session().expect("a session");
    let mut bytes = Vec::new();
    while !client.outgoing().is_empty() {
        receive(&mut server, &mut client);
        while server.wants_write() {
            server.write_tls(&mut bytes).expect("to memory");
        }
        assert_eq!(client.handle_received(&bytes).expect("a good handshake"), bytes.len());
        bytes.clear();
    }
    assert!(client.is_verified() && !server.is_handshaking());
    server.handshake_kind().expect("the handshake is over")
}

/// Gives the server what the client has to send.
fn receive(server: &mut ServerConnection, client: &mut TlsSession) {
    let mut left = client.outgoing();
    while !left.is_empty() {
        server.read_tls(&mut left).expect("from memory");
        server.process_new_packets().expect("a good client");
    }
    client.consume(usize::MAX);
}

/// Certificates and keys of an authority, a server and a client.
struct Files(tempfile::TempDir);

impl Files {
    fn issue() -> Self {
        let files = Self(tempfile::tempdir().expect("a temporary directory"));
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        let issuer = CertifiedIssuer::self_signed(params, key()).expect("a certificate");
        files.write("ca.pem", &issuer.pem());
        for owner in ["server", "client"] {
            let key = key();
            let params = CertificateParams::new([NAME.to_owned()]).expect("the name of a host");
            let certificate = params.signed_by(&key, &issuer).expect("a certificate");
            files.write(&format!("{owner}.cert.pem"), &certificate.pem());
            files.write(&format!("{owner}.key.pem"), &key.serialize_pem());
        }
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a file in a temporary directory");
    }

    fn connector(&self) -> Connector {
        let text = |name: &str| self.path(name).to_str().expect("UTF-8").into();
        let mut tls = Tls::default();
        tls.ca = Some(text("ca.pem"));
        tls.identity = Some((text("client.cert.pem"), text("client.key.pem")));
        Connector::load(&tls, NAME, false).expect("good files")
    }

    /// A server that demands a certificate of its clients.
    fn server(&self, version: &'static SupportedProtocolVersion) -> Arc<ServerConfig> {
        let certificates = |name: &str| -> Vec<CertificateDer<'static>> {
            let found = CertificateDer::pem_file_iter(self.path(name)).expect("a file");
            found.collect::<Result<_, _>>().expect("PEM")
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates("ca.pem"));
        let verifier = WebPkiClientVerifier::builder(roots.into()).build().expect("a verifier");
        let key = PrivateKeyDer::from_pem_file(self.path("server.key.pem")).expect("PEM");
        let mut config = ServerConfig::builder_with_protocol_versions(&[version])
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates("server.cert.pem"), key)
            .expect("a certificate and its key");
        // The state of a session is in its ticket, as with Redis and etcd.
        config.ticketer = rustls::crypto::ring::Ticketer::new().expect("random bytes");
        config.into()
    }
}

/// ring makes no RSA keys, but signs with them.
fn key() -> KeyPair {
    let key = RsaPrivateKey::new(&mut OsRng, BITS).expect("a key");
    let pem = key.to_pkcs8_pem(LineEnding::LF).expect("PEM");
    KeyPair::from_pkcs8_pem_and_sign_algo(&pem, &PKCS_RSA_SHA256).expect("a key")
}

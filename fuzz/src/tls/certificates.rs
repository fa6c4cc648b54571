//! Certificates for the server and the client, made once.
//!
//! Ed25519 with fixed serial numbers: so the messages of a handshake always have the same lengths,
//! and an input changes the same byte in each run.

use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::{fs, io};

use lock_driver::tls::Connector;
use lock_proto::Tls;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, PKCS_ED25519, SerialNumber,
    date_time_ymd,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};

/// The name of the server that clients expect.
const NAME: &str = "db.example";

/// The certificate that the server shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Good,
    WrongName,
    UnknownIssuer,
    Expired,
}

/// The certificate that the client shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    None,
    Good,
    UnknownIssuer,
}

/// The protocol that the server offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    Nothing,
    Http2,
    Http1,
}

/// Settings of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    /// The server speaks TLS 1.2, TLS 1.3.
    pub(super) versions: (bool, bool),
    pub(super) shown: Shown,
    pub(super) offer: Offer,
    pub(super) http2: bool,
    pub(super) demands_client: bool,
    pub(super) identity: Identity,
}

/// A certificate and its key, in PEM.
struct Pair {
    cert: String,
    key: String,
}

struct Certificates {
    ca: String,
    servers: [Pair; 4],
    clients: [Pair; 2],
}

static ALL: LazyLock<Certificates> = LazyLock::new(Certificates::new);

impl Certificates {
    fn new() -> Self {
        let (authority, stranger) = (authority("authority"), authority("stranger"));
        let server = |serial, name, issuer, last_year| pair(serial, name, issuer, last_year);
        Self {
            ca: authority.pem(),
            servers: [
                server(1, NAME, &authority, 2999),
                server(2, "other.example", &authority, 2999),
                server(3, NAME, &stranger, 2999),
                server(4, NAME, &authority, 2000),
            ],
            clients: [pair(5, "app.example", &authority, 2999), pair(6, "app.example", &stranger, 2999)],
        }
    }
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    CertifiedIssuer::self_signed(params, key).expect("a certificate")
}

fn pair(serial: u64, name: &str, issuer: &CertifiedIssuer<'static, KeyPair>, last_year: i32) -> Pair {
    let mut params = CertificateParams::new([name.to_owned()]).expect("the name of a host");
    params.serial_number = Some(SerialNumber::from(serial));
    (params.not_before, params.not_after) = (date_time_ymd(1990, 1, 1), date_time_ymd(last_year, 1, 1));
    let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    let cert = params.signed_by(&key, issuer).expect("a certificate");
    Pair { cert: cert.pem(), key: key.serialize_pem() }
}

/// The connectors that a [`Setup`] can have: with HTTP/2 or not, with each identity.
static CONNECTORS: LazyLock<[Mutex<(Connector, u64)>; 6]> = LazyLock::new(|| {
    // The files are read once. Later contents are given to `refresh`.
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        fs::write(&path, content).expect("a file in a temporary folder");
        text(&path)
    };
    let ca = file("ca.pem", &ALL.ca);
    let load = |identity: Option<usize>, http2| {
        let mut tls = Tls::default();
        tls.ca = Some(ca.clone());
        tls.identity = identity.map(|i| (file("cert.pem", &ALL.clients[i].cert), file("key.pem", &ALL.clients[i].key)));
        Mutex::new((Connector::load(&tls, NAME, http2).expect("good files"), 0))
    };
    [
        load(None, false),
        load(Some(0), false),
        load(Some(1), false),
        load(None, true),
        load(Some(0), true),
        load(Some(1), true),
    ]
});

fn text(path: &Path) -> Box<str> {
    path.to_str().expect("a path in UTF-8").into()
}

impl Setup {
    /// Reads two bytes of the input.
    pub(super) fn new(client: u8, server: u8) -> Self {
        Self {
            versions: [(true, true), (false, true), (true, false)][usize::from(server) % 3],
            shown: [Shown::Good, Shown::Good, Shown::WrongName, Shown::UnknownIssuer, Shown::Expired]
                [usize::from(server / 3) % 5],
            offer: [Offer::Http2, Offer::Nothing, Offer::Http1][usize::from(server / 15) % 3],
            demands_client: !(server / 45).is_multiple_of(2),
            http2: !client.is_multiple_of(2),
            identity: [Identity::None, Identity::Good, Identity::UnknownIssuer][usize::from(client / 2) % 3],
        }
    }

    /// A connector without earlier sessions.
    pub(super) fn connector(self) -> MutexGuard<'static, (Connector, u64)> {
        let place = usize::from(self.http2) * 3 + self.identity as usize;
        // A failed run has left no mess that matters: the next one begins anew.
        let mut place = CONNECTORS[place].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (connector, runs) = &mut *place;
        *runs += 1;
        let mut contents = vec![Ok(format!("{}# run {runs}\n", ALL.ca).into_bytes())];
        if let Some(i) = (self.identity as usize).checked_sub(1) {
            let Pair { cert, key } = &ALL.clients[i];
            contents.extend([cert, key].map(|pem| io::Result::Ok(pem.clone().into_bytes())));
        }
        connector.refresh(contents);
        place
    }

    /// The server's settings, without earlier sessions.
    pub(super) fn server(self) -> Arc<ServerConfig> {
        let versions: &[_] = match self.versions {
            (true, true) => &[&TLS12, &TLS13],
            (true, false) => &[&TLS12],
            (false, _) => &[&TLS13],
        };
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let config = config.with_protocol_versions(versions).expect("ring has both versions");
        let config = if self.demands_client {
            let mut roots = RootCertStore::empty();
            roots.add(certificate(&ALL.ca)).expect("an authority");
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
            config.with_client_cert_verifier(verifier.expect("an authority"))
        } else {
            config.with_no_client_auth()
        };
        let Pair { cert, key } = &ALL.servers[self.shown as usize];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
        let mut config = config.with_single_cert(vec![certificate(cert)], key).expect("a pair");
        config.session_storage = ServerSessionMemoryCache::new(8);
        config.alpn_protocols = match self.offer {
            Offer::Nothing => Vec::new(),
            Offer::Http2 => vec![b"h2".to_vec()],
            Offer::Http1 => vec![b"http/1.1".to_vec()],
        };
        Arc::new(config)
    }
}

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
}

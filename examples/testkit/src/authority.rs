//! A private certificate authority.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};
use std::{fmt, fs};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use crate::folder;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A certificate authority. Its files live in a temporary folder, as long as it and its servers.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: Arc<TempDir>,
}

/// The files of a certificate and its key.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate, in PEM.
    pub cert: PathBuf,
    /// The private key, in PEM.
    pub key: PathBuf,
}

/// What makes a server speak TLS.
#[derive(Clone, Debug)]
pub struct ServerTls {
    pub(crate) pair: Pair,
    pub(crate) ca: PathBuf,
    pub(crate) needs_client: bool,
    /// Keeps the files.
    _dir: Arc<TempDir>,
}

/// The files of a key that signs tokens.
#[derive(Clone, Debug)]
pub(crate) struct SigningKey {
    dir: Arc<TempDir>,
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validity {
    /// Now.
    #[default]
    Current,
    /// Until yesterday.
    Expired,
    /// From tomorrow on.
    NotYet,
}

impl Authority {
    /// Creates an authority.
    ///
    /// # Panics
    ///
    /// If the temporary folder cannot be written.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A name of its own, or its certificates would look like bad ones of another authority.
        static AUTHORITIES: AtomicU32 = AtomicU32::new(0);
        let name = format!("authority {}", AUTHORITIES.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let dir = folder::temporary();
        fs::write(dir.path().join("ca.pem"), issuer.pem()).expect("a file in a temporary directory");
        Self { issuer, dir: Arc::new(dir) }
    }

    /// The file with the authority's certificate, in PEM.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Issues a certificate for these host names and addresses. Replaces an earlier one of the same
    /// file name.
    ///
    /// # Panics
    ///
    /// If the folder cannot be written, or a name cannot be a host's.
    pub fn issue(&self, file: &str, names: &[&str], validity: Validity) -> Pair {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("names of hosts");
        params.distinguished_name.push(DnType::CommonName, file);
        let now = SystemTime::now();
        let (from, to) = match validity {
            Validity::Current => (now - DAY, now + DAY),
            Validity::Expired => (now - 3 * DAY, now - DAY),
            Validity::NotYet => (now + DAY, now + 3 * DAY),
        };
        (params.not_before, params.not_after) = (from.into(), to.into());
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let path = |kind: &str| self.dir.path().join(format!("{file}.{kind}.pem"));
        let pair = Pair { cert: path("cert"), key: path("key") };
        fs::write(&pair.cert, certificate.pem()).expect("a file in a temporary directory");
        fs::write(&pair.key, key.serialize_pem()).expect("a file in a temporary directory");
        pair
    }

    /// The settings of a server at 127.0.0.1 that accepts every client.
    #[must_use]
    pub fn server(&self) -> ServerTls {
        self.server_with(self.issue("server", &["127.0.0.1", "localhost"], Validity::Current))
    }

    /// The settings of a server with this certificate.
    #[must_use]
    pub fn server_with(&self, pair: Pair) -> ServerTls {
        ServerTls { pair, ca: self.ca(), needs_client: false, _dir: Arc::clone(&self.dir) }
    }

    /// The query of a URL that trusts this authority: `ca=…`.
    #[must_use]
    pub fn query(&self) -> String {
        format!("ca={}", self.ca().display())
    }
}

impl SigningKey {
    pub(crate) fn new() -> Self {
        let dir = folder::temporary();
        let (key, files) = (KeyPair::generate().expect("a key"), Self { dir: Arc::new(dir) });
        fs::write(files.public(), key.public_key_pem()).expect("a file in a temporary directory");
        fs::write(files.private(), key.serialize_pem()).expect("a file in a temporary directory");
        files
    }

    /// The file with the public key, in PEM.
    pub(crate) fn public(&self) -> PathBuf {
        self.dir.path().join("public.pem")
    }

    /// The file with the private key, in PEM.
    pub(crate) fn private(&self) -> PathBuf {
        self.dir.path().join("private.pem")
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Pair {
    /// The query of a URL that shows this certificate: `cert=…&key=…`.
    #[must_use]
    pub fn query(&self) -> String {
        format!("cert={}&key={}", self.cert.display(), self.key.display())
    }
}

impl ServerTls {
    /// Accepts only clients with a certificate of the authority.
    #[must_use]
    pub const fn needs_client(mut self) -> Self {
        self.needs_client = true;
        self
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("dir", &self.dir.path()).finish_non_exhaustive()
    }
}

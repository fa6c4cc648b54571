//! The settings of TLS, loaded: certificates, keys, and the sessions to resume.

use alloc::format;
use alloc::string::ToString as _;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::hash::{BuildHasher as _, Hash, Hasher};
use std::hash::RandomState;
use std::io;
use std::sync::OnceLock;

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WantsClientCert};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, WantsVerifier};

use super::super::connect::ConnectError;
use super::error::TlsError;
use super::insecure::AcceptAny;
use super::session::TlsSession;
use crate::file::read_file;
use lock_proto::{Tls, TlsFault};

/// Makes the TLS sessions of one server.
///
/// All sessions share one configuration, so that later ones resume earlier ones. It is rebuilt only
/// when the content of a file has changed.
// N6
pub struct Connector {
    pub(super) tls: Tls,
    server_name: ServerName<'static>,
    pub(super) settings: TlsSettings,
    config: Arc<ClientConfig>,
    /// Hash of what the files contained.
    loaded: u64,
    hasher: RandomState,
    /// The hash of the last content that cannot be used, which is logged once.
    rejected: Option<u64>,
}

/// What the user of a client has set in code, and what its connectors share.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct TlsSettings {
    /// Used in place of one that is made from files.
    pub(in super::super) config: Option<Arc<ClientConfig>>,
    pub(in super::super) allow_insecure: bool,
    /// HTTP/2 is negotiated.
    pub(in super::super) http2: bool,
    /// Uses the platform's trust store. Made at most once, because it reads the whole store.
    pub(in super::super) platform: Arc<OnceLock<Arc<dyn ServerCertVerifier>>>,
}

impl TlsSettings {
    fn platform(&self, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, ConnectError> {
        if let Some(verifier) = self.platform.get() {
            return Ok(Arc::clone(verifier));
        }
        let verifier = platform_verifier(provider)?;
        Ok(Arc::clone(self.platform.get_or_init(|| verifier)))
    }
}

impl Connector {
    /// Reads the files, and checks them. `host` is the name that the server's certificate must
    /// have, if `tls` has none. `http2` negotiates HTTP/2, for etcd.
    ///
    /// # Errors
    ///
    /// A file cannot be read or used, or there is nothing to trust.
    pub fn load(tls: &Tls, host: &str, http2: bool) -> Result<Self, ConnectError> {
        Self::new(tls, host, &TlsSettings { http2, ..TlsSettings::default() })
    }

    pub(in super::super) fn new(tls: &Tls, host: &str, settings: &TlsSettings) -> Result<Self, ConnectError> {
        let server_name = server_name(tls, host)?;
        let hasher = RandomState::new();
        let files = Files::read(tls, |path| read_file(path));
        let config = build(tls, &files, settings)?.into();
        let loaded = hasher.hash_one(&files);
        Ok(Self { tls: tls.clone(), server_name, settings: settings.clone(), config, loaded, hasher, rejected: None })
    }

    /// The same for another server. Reads no files, so that it may run on the driver's task.
    pub(in super::super) fn for_host(&self, host: &str) -> Result<Self, ConnectError> {
        let mut config = ClientConfig::clone(&self.config);
        if self.settings.config.is_none() {
            // A server cannot resume the sessions of another one, which may have the same name.
            config.resumption = Resumption::default();
        }
        Ok(Self {
            tls: self.tls.clone(),
            server_name: server_name(&self.tls, host)?,
            settings: self.settings.clone(),
            config: config.into(),
            loaded: self.loaded,
            hasher: self.hasher.clone(),
            rejected: self.rejected,
        })
    }

    /// What the user configured.
    pub(in super::super) const fn tls(&self) -> &Tls {
        &self.tls
    }

    /// The files to read again before each connection.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        Files::read(&self.tls, |_| Ok(Vec::new())).into_paths()
    }

    /// Takes the contents of [`files`](Self::files), in that order. If they cannot be used, the
    /// last good ones stay in use. A part of a bundle can be used: replace files by renaming.
    pub fn refresh(&mut self, contents: Vec<io::Result<Vec<u8>>>) {
        let mut contents = contents.into_iter();
        let missing = || Err(io::ErrorKind::NotFound.into());
        let files = Files::read(&self.tls, |_| contents.next().unwrap_or_else(missing));
        let hash = self.hasher.hash_one(&files);
        if hash == self.loaded || Some(hash) == self.rejected {
            return;
        }
        match build(&self.tls, &files, &self.settings) {
            Ok(config) => {
                tracing::info!(server = ?self.server_name, "certificates have changed");
                (self.config, self.loaded, self.rejected) = (config.into(), hash, None);
            }
            Err(error) => {
                tracing::error!(server = ?self.server_name, %error, "changed certificates cannot be used");
                self.rejected = Some(hash);
            }
        }
    }

    /// Begins a session.
    ///
    /// # Errors
    ///
    /// rustls does not accept the configuration.
    pub fn session(&self) -> Result<TlsSession, TlsError> {
        let tls = ClientConnection::new(Arc::clone(&self.config), self.server_name.clone())?;
        let has_identity = self.tls.identity.is_some() || self.settings.config.is_some();
        Ok(TlsSession::new(tls, self.settings.http2, has_identity))
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("tls", &self.tls)
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

/// The files of the settings, with their contents.
struct Files<'a> {
    ca: Option<File<'a>>,
    identity: Option<(File<'a>, File<'a>)>,
}

struct File<'a> {
    path: &'a str,
    content: io::Result<Vec<u8>>,
}

impl<'a> Files<'a> {
    fn read(tls: &'a Tls, mut read: impl FnMut(&str) -> io::Result<Vec<u8>>) -> Self {
        let mut file = |path: &'a str| File { path, content: read(path) };
        let ca = tls.ca.as_deref().map(&mut file);
        Self { ca, identity: tls.identity.as_ref().map(|(cert, key)| (file(cert), file(key))) }
    }

    fn into_paths(self) -> impl Iterator<Item = &'a str> {
        let identity = self.identity.into_iter().flat_map(|(cert, key)| [cert, key]);
        self.ca.into_iter().chain(identity).map(|file| file.path)
    }
}

impl Hash for Files<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let identity = self.identity.as_ref().map(|(cert, key)| [cert, key]);
        for file in self.ca.iter().chain(identity.into_iter().flatten()) {
            file.content.as_deref().ok().hash(state);
        }
    }
}

impl File<'_> {
    fn pem(&self) -> Result<&[u8], ConnectError> {
        self.content.as_deref().map_err(|error| self.wrong(error))
    }

    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.pem()?).collect();
        match found {
            Ok(found) if found.is_empty() => Err(self.wrong(&"no certificate in PEM")),
            Ok(found) => Ok(found),
            Err(error) => Err(self.wrong(&error)),
        }
    }

    fn wrong(&self, what: &dyn fmt::Display) -> ConnectError {
        ConnectError::Tls(format!("{}: {what}", self.path).into())
    }
}

/// The name that the server's certificate must have: `host`, unless the settings have one.
fn server_name(tls: &Tls, host: &str) -> Result<ServerName<'static>, ConnectError> {
    let name = tls.server_name.as_deref().unwrap_or(host);
    ServerName::try_from(name.to_string())
        .map_err(|_| ConnectError::Tls(format!("`{name}` is no name that a certificate can have").into()))
}

fn build(tls: &Tls, files: &Files<'_>, settings: &TlsSettings) -> Result<ClientConfig, ConnectError> {
    let mut config = match &settings.config {
        Some(_) if files.ca.is_some() || files.identity.is_some() || tls.insecure => {
            let text = "`ca`, `cert`, `key` and `#insecure` do not go together with `tls_config`";
            return Err(ConnectError::Tls(text.into()));
        }
        Some(config) => ClientConfig::clone(config),
        None => of_files(tls, files, settings)?,
    };
    if settings.http2 && !config.alpn_protocols.iter().any(|name| name == b"h2") {
        config.alpn_protocols.push(b"h2".to_vec());
    }
    Ok(config)
}

fn of_files(tls: &Tls, files: &Files<'_>, settings: &TlsSettings) -> Result<ClientConfig, ConnectError> {
    let builder = match &files.ca {
        _ if tls.insecure && settings.allow_insecure => new_builder(|builder, provider| {
            Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAny(provider))))
        })?,
        _ if tls.insecure => {
            return Err(ConnectError::Tls("`#insecure` must also be allowed in code, by `allow_insecure`".into()));
        }
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in file.certificates()? {
                roots.add(certificate).map_err(|error| file.wrong(&error))?;
            }
            new_builder(|builder, _| Ok(builder.with_root_certificates(roots)))?
        }
        None => new_builder(|builder, provider| {
            Ok(builder.dangerous().with_custom_certificate_verifier(settings.platform(provider)?))
        })?,
    };
    let Some((cert, key)) = &files.identity else { return Ok(builder.with_no_client_auth()) };
    let chain = cert.certificates()?;
    let private = PrivateKeyDer::from_pem_slice(key.pem()?).map_err(|_| key.wrong(&"no private key in PEM"))?;
    builder.with_client_auth_cert(chain, private).map_err(|error| key.wrong(&error))
}

type TlsConfigBuilder = ConfigBuilder<ClientConfig, WantsVerifier>;
type Trusting = ConfigBuilder<ClientConfig, WantsClientCert>;

fn new_builder(
    trust: impl FnOnce(TlsConfigBuilder, Arc<CryptoProvider>) -> Result<Trusting, ConnectError>,
) -> Result<Trusting, ConnectError> {
    let provider = Arc::new(provider().ok_or(ConnectError::MissingFeature { feature: "tls" })?);
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    trust(builder.map_err(|error| ConnectError::Tls(error.to_string().into()))?, provider)
}

/// The cryptography of this build. Never the default of the process, which another crate may set.
// N2
#[allow(unreachable_code, reason = "ring comes first if both are built in")]
fn provider() -> Option<CryptoProvider> {
    #[cfg(feature = "tls-ring")]
    return Some(rustls::crypto::ring::default_provider());
    #[cfg(feature = "tls-aws-lc-rs")]
    return Some(rustls::crypto::aws_lc_rs::default_provider());
    None
}

#[cfg(feature = "tls-platform-roots")]
fn platform_verifier(provider: Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, ConnectError> {
    let verifier = rustls_platform_verifier::Verifier::new(provider);
    Ok(Arc::new(verifier.map_err(|error| ConnectError::Tls(error.to_string().into()))?))
}

#[cfg(not(feature = "tls-platform-roots"))]
fn platform_verifier(_: Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, ConnectError> {
    Err(ConnectError::Tls(
        "no authority to trust: name a file with `ca=`, or turn on the feature `tls-platform-roots`".into(),
    ))
}

/// The end of the stream during a handshake.
pub(super) fn closed() -> TlsError {
    TlsError::new(TlsFault::Closed, "end of the stream")
}

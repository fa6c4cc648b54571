//! The settings of TLS, loaded: certificates, keys, and the sessions to resume.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::ToString as _;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::hash::BuildHasher as _;
use std::hash::RandomState;
use std::io;

use rustls::client::WantsClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, ConfigBuilder, RootCertStore};

use super::super::connect::ConnectError;
use super::error::TlsError;
use super::session::Session;
use crate::tls::{Tls, TlsFault};

/// Makes the TLS sessions of one server.
///
/// All sessions share one configuration, so that later ones resume earlier ones. It is rebuilt only
/// when the content of a file has changed.
// N6
pub struct Connector {
    tls: Tls,
    server_name: ServerName<'static>,
    http2: bool,
    config: Arc<ClientConfig>,
    /// Hash of what the files contained.
    loaded: u64,
    hasher: RandomState,
    /// The hash of the last content that cannot be used, which is logged once.
    rejected: Option<u64>,
}

impl Connector {
    /// Reads the files, and checks them. `host` is the name that the server's certificate must
    /// have, if `tls` has none. `http2` negotiates HTTP/2, for etcd.
    ///
    /// # Errors
    ///
    /// A file cannot be read or used, or there is nothing to trust.
    pub fn load(tls: &Tls, host: &str, http2: bool) -> Result<Self, ConnectError> {
        let contents = files(tls).map(|path| (path, std::fs::read(path))).collect::<Vec<_>>();
        let name = tls.server_name.as_deref().unwrap_or(host);
        let server_name = ServerName::try_from(name.to_string())
            .map_err(|_| ConnectError::Tls(format!("`{name}` is no name that a certificate can have").into()))?;
        let hasher = RandomState::new();
        let loaded = hash(&hasher, &contents);
        let config = build(tls, &contents, http2)?;
        Ok(Self { tls: tls.clone(), server_name, http2, config: config.into(), loaded, hasher, rejected: None })
    }

    /// The files to read again before each connection.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        files(&self.tls)
    }

    /// Takes the contents of [`files`](Self::files), in that order. If they cannot be used, the
    /// last good ones stay in use.
    pub fn refresh(&mut self, contents: Vec<io::Result<Vec<u8>>>) {
        let contents: Vec<_> = files(&self.tls).zip(contents).collect();
        let hash = hash(&self.hasher, &contents);
        if hash == self.loaded || Some(hash) == self.rejected {
            return;
        }
        match build(&self.tls, &contents, self.http2) {
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
    pub fn session(&self) -> Result<Session, TlsError> {
        let tls = ClientConnection::new(Arc::clone(&self.config), self.server_name.clone())?;
        Ok(Session::new(tls, self.http2, self.tls.identity.is_some()))
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

type Contents<'a> = [(&'a str, io::Result<Vec<u8>>)];

fn files(tls: &Tls) -> impl Iterator<Item = &str> {
    let identity = tls.identity.as_ref().map(|(cert, key)| [&**cert, key]);
    tls.ca.as_deref().into_iter().chain(identity.into_iter().flatten())
}

fn hash(hasher: &RandomState, contents: &Contents<'_>) -> u64 {
    let contents: Vec<_> = contents.iter().map(|(_, content)| content.as_ref().ok()).collect();
    hasher.hash_one(contents)
}

fn build(tls: &Tls, contents: &Contents<'_>, http2: bool) -> Result<ClientConfig, ConnectError> {
    let wrong = |path: &str, what: &dyn fmt::Display| ConnectError::Tls(format!("{path}: {what}").into());
    let mut contents = contents.iter().map(|(path, content)| match content {
        Ok(content) => Ok((*path, &content[..])),
        Err(error) => Err(wrong(path, error)),
    });
    let mut next = || contents.next().transpose();
    let ca = if tls.ca.is_some() { next()? } else { None };
    let builder = match ca {
        Some((path, pem)) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem).map_err(|error| wrong(path, &error))? {
                roots.add(certificate).map_err(|error| wrong(path, &error))?;
            }
            new_builder()?.with_root_certificates(roots)
        }
        None => trust_platform()?,
    };
    let mut config = match (next()?, next()?) {
        (Some((cert_path, cert)), Some((key_path, key))) => {
            let chain = certificates(cert).map_err(|error| wrong(cert_path, &error))?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| wrong(key_path, &"no private key in PEM"))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| wrong(key_path, &error))?
        }
        _ => builder.with_no_client_auth(),
    };
    if http2 {
        config.alpn_protocols.push(b"h2".to_vec());
    }
    Ok(config)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Box<str>> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err("no certificate in PEM".into()),
        Ok(found) => Ok(found),
        Err(error) => Err(error.to_string().into()),
    }
}

fn new_builder() -> Result<ConfigBuilder<ClientConfig, rustls::WantsVerifier>, ConnectError> {
    let provider = provider().ok_or(ConnectError::MissingFeature { feature: "tls" })?;
    ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|error| ConnectError::Tls(error.to_string().into()))
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
fn trust_platform() -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, ConnectError> {
    use rustls_platform_verifier::BuilderVerifierExt as _;
    new_builder()?.with_platform_verifier().map_err(|error| ConnectError::Tls(error.to_string().into()))
}

#[cfg(not(feature = "tls-platform-roots"))]
fn trust_platform() -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, ConnectError> {
    Err(ConnectError::Tls(
        "no authority to trust: name a file with `ca=`, or turn on the feature `tls-platform-roots`".into(),
    ))
}

/// The end of the stream during a handshake.
pub(super) fn closed() -> TlsError {
    TlsError::new(TlsFault::Closed, "end of the stream")
}

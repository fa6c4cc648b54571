//! TLS, as the machines see it: the settings that a URL carries, and why a handshake failed.
//!
//! The machines read no file and encrypt nothing. A host that connects to a [`Target::Tls`] does
//! both, and reports the connection only when the server is verified. The driver does so with
//! feature `tls`.
//!
//! [`Target::Tls`]: crate::Target::Tls

use alloc::boxed::Box;

/// The TLS settings of a server: which certificates to trust and to show. Files are PEM and are
/// named, not read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Tls {
    /// File with the CA certificates to trust. Default: the platform's trust store, if the host
    /// supports that, as the driver does with feature `tls-platform-roots`.
    pub ca: Option<Box<str>>,
    /// Files with the client's certificate chain and its private key.
    pub identity: Option<(Box<str>, Box<str>)>,
    /// The name that the server's certificate must have. Default: the host of the URL.
    pub server_name: Option<Box<str>>,
    /// Accept any certificate of the server: `#insecure` in the URL. Anybody on the network can then
    /// read and change what is sent. A host refuses it unless its user also allowed it in the code.
    pub insecure: bool,
}

impl Tls {
    /// Trusts the CA certificates in this file.
    #[must_use]
    pub fn with_ca(mut self, file: &str) -> Self {
        self.ca = Some(file.into());
        self
    }
}

/// Why TLS failed.
// N5
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFault {
    /// The server's certificate has expired.
    #[error("the server's certificate has expired; renew it on the server, or check this machine's clock")]
    Expired,
    /// The server's certificate is not valid yet.
    #[error("the server's certificate is not valid yet; check the clocks of both machines")]
    NotYetValid,
    /// The server's certificate is for other names. The log lists them.
    #[error("the server's certificate is for another name; use that name in the URL, or `server_name=`")]
    WrongName,
    /// No trusted CA has issued the server's certificate.
    #[error("the issuer of the server's certificate is not trusted; name the authority's file with `ca=`")]
    UnknownIssuer,
    /// The server's certificate cannot be used for another reason, such as a revocation.
    #[error("the server's certificate is not acceptable")]
    BadCertificate,
    /// The server demands a client certificate, and there is none.
    #[error("the server demands a client certificate; name its files with `cert=` and `key=`")]
    CertificateRequired,
    /// The server does not accept the client's certificate.
    #[error("the server refused the client's certificate; its issuer must be one that the server trusts")]
    CertificateRefused,
    /// The peer does not speak TLS.
    #[error("the server does not speak TLS on this port; use its TLS port, or a URL without TLS")]
    NotTls,
    /// The certificates of a server that was found later cannot be loaded. The log says why.
    #[error("the certificates cannot be loaded")]
    BadSettings,
    /// The server does not offer HTTP/2 over TLS, which etcd does.
    #[error("the server does not offer HTTP/2 over TLS; is this etcd's client port?")]
    NoHttp2,
    /// The connection ended without a closing message during the handshake.
    #[error("the server closed the connection during the TLS handshake; does it speak TLS on this port?")]
    Closed,
    /// The connection was not established in time, TLS handshake included.
    #[error("no TLS connection in time; does the server speak TLS on this port?")]
    TimedOut,
    /// Any other violation or incompatibility, in the handshake or later.
    #[error("the TLS handshake failed")]
    Handshake,
}

impl TlsFault {
    /// Returns true if a retry will not help until somebody changes a certificate or a setting.
    #[must_use]
    pub const fn is_refusal(self) -> bool {
        match self {
            Self::Expired
            | Self::NotYetValid
            | Self::WrongName
            | Self::UnknownIssuer
            | Self::BadCertificate
            | Self::CertificateRequired
            | Self::CertificateRefused
            | Self::NotTls
            | Self::BadSettings
            | Self::NoHttp2 => true,
            Self::Closed | Self::TimedOut | Self::Handshake => false,
        }
    }
}

//! Failures of TLS, each with its kind and the words of rustls.

use alloc::boxed::Box;
use alloc::string::ToString as _;
use core::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

use lock_proto::TlsFault;

/// Why TLS failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError {
    fault: TlsFault,
    detail: Box<str>,
}

impl TlsError {
    pub(super) fn new(fault: TlsFault, detail: &str) -> Self {
        Self { fault, detail: detail.into() }
    }

    /// A server that has been verified does speak TLS: its bytes are damaged.
    pub(super) fn after_handshake(mut self, verified: bool) -> Self {
        if self.fault == TlsFault::NotTls && verified {
            self.fault = TlsFault::Handshake;
        }
        self
    }

    /// A client without a certificate cannot have shown a bad one: some servers send that alert.
    pub(super) fn with_identity(mut self, has_identity: bool) -> Self {
        if self.fault == TlsFault::CertificateRefused && !has_identity {
            self.fault = TlsFault::CertificateRequired;
        }
        self
    }

    /// What kind of failure it is.
    #[must_use]
    pub const fn fault(&self) -> TlsFault {
        self.fault
    }

    /// The kind of failure that this error of a stream stands for, if it is one of TLS.
    pub(in super::super) fn in_stream(error: &io::Error) -> Option<TlsFault> {
        error.get_ref()?.downcast_ref::<Self>().map(Self::fault)
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.fault, self.detail)
    }
}

impl core::error::Error for TlsError {}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

impl From<Error> for TlsError {
    fn from(error: Error) -> Self {
        Self::new(fault_of(&error), &error.to_string())
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "foreign enums of many kinds, which keep growing")]
fn fault_of(error: &Error) -> TlsFault {
    use CertificateError as C;
    match error {
        Error::InvalidCertificate(C::Expired | C::ExpiredContext { .. }) => TlsFault::Expired,
        Error::InvalidCertificate(C::NotValidYet | C::NotValidYetContext { .. }) => TlsFault::NotYetValid,
        Error::InvalidCertificate(C::NotValidForName | C::NotValidForNameContext { .. }) => TlsFault::WrongName,
        Error::InvalidCertificate(C::UnknownIssuer) => TlsFault::UnknownIssuer,
        Error::InvalidCertificate(_) => TlsFault::BadCertificate,
        Error::AlertReceived(AlertDescription::CertificateRequired) => TlsFault::CertificateRequired,
        Error::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied,
        ) => TlsFault::CertificateRefused,
        // These are of the first bytes of a record: text, or another protocol.
        Error::InvalidMessage(InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion) => {
            TlsFault::NotTls
        }
        Error::NoApplicationProtocol | Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            TlsFault::NoHttp2
        }
        _ => TlsFault::Handshake,
    }
}

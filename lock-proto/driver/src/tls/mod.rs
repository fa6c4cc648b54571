//! TLS for every store and every runtime, by rustls.
//!
//! The driver does this by itself for servers whose URL asks for TLS. [`TlsSession`] and [`Connector`]
//! are public for hosts without the driver: they do no I/O.

// N1
mod connector;
mod error;
mod handshake;
mod insecure;
mod session;
mod stream;
#[cfg(all(test, feature = "tls-ring"))]
mod tests;

pub use connector::Connector;
pub(super) use connector::TlsSettings;
pub use error::TlsError;
pub use session::{Plaintext, TlsSession};

pub(super) use handshake::TlsHandshake;
pub(super) use stream::TlsStream;

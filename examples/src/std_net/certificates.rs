//! The certificates for the servers that speak TLS.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use lock_driver::ConnectError;
use lock_driver::read_file;
use lock_driver::tls::{Connector, TlsSession};
use lock_proto::redis::Config;
use lock_proto::{Fault, Target, TlsFault};

/// One connector for each server, so that later connections resume sessions of earlier ones.
pub(super) struct Certificates {
    connectors: HashMap<Target, Mutex<Connector>>,
}

impl Certificates {
    /// Reads the files that the URLs name.
    pub(super) fn load(config: &Config) -> Result<Self, ConnectError> {
        let mut connectors = HashMap::new();
        for node in config.nodes() {
            if let Target::Tls { host, tls, .. } = &node.target {
                connectors.insert(node.target.clone(), Mutex::new(Connector::load(tls, host, false)?));
            }
        }
        Ok(Self { connectors })
    }

    /// Begins a session with a server that speaks TLS, after reading the files again.
    // N6
    pub(super) fn session(&self, target: &Target) -> Result<Option<TlsSession>, Fault> {
        let Target::Tls { .. } = target else { return Ok(None) };
        let connector = self.connectors.get(target).ok_or(TlsFault::BadSettings)?;
        let mut connector = connector.lock().unwrap_or_else(PoisonError::into_inner);
        let contents = connector.files().map(read_file).collect();
        connector.refresh(contents);
        connector.session().map(Some).map_err(|error| error.fault().into())
    }
}

//! Sessions against a rustls server in memory.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use std::io::{Read as _, Write as _};

use lock_testkit::{Authority, Validity};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, ServerConfig, ServerConnection};

use super::insecure::AcceptAny;
use super::session::Plaintext;
use super::{Connector, TlsError, TlsSession, TlsSettings};
use lock_proto::{Tls, TlsFault};

struct TlsRig {
    authority: Authority,
    server: Arc<ServerConfig>,
    tls: Tls,
}

impl TlsRig {
    fn new() -> Self {
        let authority = Authority::new();
        let pair = authority.issue("server", &["db.example"], Validity::Current);
        let chain = CertificateDer::pem_file_iter(&pair.cert).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_file(&pair.key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let server = server.with_no_client_auth().with_single_cert(chain, key).unwrap();
        let tls = Tls::default().with_ca(&path(&authority));
        Self { authority, server: Arc::new(server), tls }
    }

    fn connector(&self) -> Connector {
        Connector::load(&self.tls, "db.example", false).unwrap()
    }

    fn server(&self) -> ServerConnection {
        ServerConnection::new(Arc::clone(&self.server)).unwrap()
    }
}

fn path(authority: &Authority) -> Box<str> {
    authority.ca().to_str().unwrap().into()
}

/// What the server sends in reply to the client.
fn reply(server: &mut ServerConnection, client: &mut TlsSession) -> Vec<u8> {
    let mut from = client.outgoing();
    while !from.is_empty() {
        server.read_tls(&mut from).unwrap();
        let _ = server.process_new_packets();
    }
    client.consume(usize::MAX);
    let mut bytes = Vec::new();
    while server.wants_write() {
        server.write_tls(&mut bytes).unwrap();
    }
    bytes
}

fn handshake(server: &mut ServerConnection, client: &mut TlsSession) -> Result<(), TlsError> {
    while !client.is_verified() || !client.outgoing().is_empty() {
        let bytes = reply(server, client);
        assert_eq!(client.handle_received(&bytes)?, bytes.len());
    }
    Ok(())
}

fn text(session: &mut TlsSession) -> String {
    let (mut found, mut buffer) = (Vec::new(), [0; 7]);
    while let Plaintext::Bytes(count) = session.read(&mut buffer) {
        found.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8(found).unwrap()
}

#[test]
fn plaintext_crosses_only_after_verification() {
    let rig = TlsRig::new();
    let (mut server, mut client) = (rig.server(), rig.connector().session().unwrap());
    assert_eq!(client.write(b"AUTH secret"), 0, "not verified");
    handshake(&mut server, &mut client).unwrap();
    assert_eq!(client.write(b"PING"), 4);
    server.writer().write_all(b"PONG").unwrap();
    let bytes = reply(&mut server, &mut client);
    let mut request = [0; 8];
    assert_eq!(server.reader().read(&mut request).unwrap(), 4);
    // Byte by byte.
    for byte in bytes {
        assert_eq!(client.handle_received(&[byte]).unwrap(), 1);
    }
    assert_eq!(text(&mut client), "PONG");
    server.send_close_notify();
    let bytes = reply(&mut server, &mut client);
    client.handle_received(&bytes).unwrap();
    assert_eq!(client.read(&mut [0]), Plaintext::Closed);
}

/// Another crate may set the default of the process, or none does.
#[test]
fn provider_is_not_the_default_of_the_process() {
    // N2
    assert!(CryptoProvider::get_default().is_none());
    let rig = TlsRig::new();
    handshake(&mut rig.server(), &mut rig.connector().session().unwrap()).unwrap();
    assert!(CryptoProvider::get_default().is_none());
}

#[test]
fn sessions_are_resumed_until_a_file_changes() {
    // N6
    let rig = TlsRig::new();
    let mut connector = rig.connector();
    let kind = |connector: &Connector| {
        let (mut server, mut client) = (rig.server(), connector.session().unwrap());
        handshake(&mut server, &mut client).unwrap();
        // TLS 1.3 sends its tickets after the handshake.
        let bytes = reply(&mut server, &mut client);
        client.handle_received(&bytes).unwrap();
        server.handshake_kind().unwrap()
    };
    let read = || vec![std::fs::read(rig.authority.ca())];
    assert_eq!(kind(&connector), HandshakeKind::Full);
    connector.refresh(read());
    assert_eq!(kind(&connector), HandshakeKind::Resumed);
    // A bad file changes nothing.
    connector.refresh(vec![Ok(b"no certificate".to_vec())]);
    connector.refresh(vec![Err(std::io::ErrorKind::NotFound.into())]);
    assert_eq!(kind(&connector), HandshakeKind::Resumed);
    let mut longer = read().pop().unwrap().unwrap();
    longer.extend_from_slice(b"# a comment\n");
    connector.refresh(vec![Ok(longer)]);
    assert_eq!(kind(&connector), HandshakeKind::Full);
}

/// Reading the platform's trust store takes long, and may fail.
#[test]
fn changed_client_certificate_does_not_read_platform_again() {
    // N6
    let rig = TlsRig::new();
    let pair = rig.authority.issue("client", &["client.example"], Validity::Current);
    let mut connector = rig.connector();
    // As if the platform had been read, and trusted the server.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    assert!(connector.settings.platform.set(Arc::new(AcceptAny(provider))).is_ok());
    connector.tls.ca = None;
    connector.tls.identity = Some(["cert", "key"].map(Into::into).into());
    connector.refresh(vec![std::fs::read(&pair.cert), std::fs::read(&pair.key)]);
    assert!(handshake(&mut rig.server(), &mut connector.session().unwrap()).is_ok());
    let other = connector.for_host("other.example").unwrap();
    assert!(handshake(&mut rig.server(), &mut other.session().unwrap()).is_ok(), "trusted under any name");
}

/// The server's bytes are cut, flipped and replayed at every place. No panic, no verified session,
/// and nothing delivered that was not sent.
#[test]
fn damaged_handshakes_never_verify() {
    // N3, N7
    let rig = TlsRig::new();
    let connector = rig.connector();
    let flight = reply(&mut rig.server(), &mut connector.session().unwrap());
    for missing in 1..=flight.len() {
        let (mut server, mut client) = (rig.server(), connector.session().unwrap());
        let mut bytes = reply(&mut server, &mut client);
        bytes.truncate(bytes.len().saturating_sub(missing));
        client.handle_received(&bytes).unwrap();
        assert!(!client.is_verified() && client.write(b"AUTH") == 0, "{missing} bytes are missing");
    }
    // TLS does not protect the heads of some records, and ignores what is in them.
    let mut ignored = 0;
    for place in 0..flight.len() {
        let (mut server, mut client) = (rig.server(), connector.session().unwrap());
        let mut bytes = reply(&mut server, &mut client);
        let Some(byte) = bytes.get_mut(place) else { continue };
        *byte ^= 0x20;
        let _ = client.handle_received(&bytes);
        assert_eq!(text(&mut client), "", "flipped at {place}");
        ignored += usize::from(client.is_verified());
    }
    assert!(ignored < 16, "{ignored} of {} flips were ignored", flight.len());
    let (mut server, mut client) = (rig.server(), connector.session().unwrap());
    let bytes = reply(&mut server, &mut client);
    let replayed = [&bytes[..], &bytes[..]].concat();
    assert!(client.handle_received(&replayed).is_err() || !client.is_verified() || text(&mut client).is_empty());
}

/// The server has a good certificate, but does not speak HTTP/2.
#[test]
fn server_without_http2_delivers_nothing() {
    // N3
    let rig = TlsRig::new();
    let connector = Connector::load(&rig.tls, "db.example", true).unwrap();
    let (mut server, mut client) = (rig.server(), connector.session().unwrap());
    server.writer().write_all(b"PONG").unwrap();
    let bytes = reply(&mut server, &mut client);
    assert_eq!(client.handle_received(&bytes).unwrap_err().fault(), TlsFault::NoHttp2);
    assert_eq!(text(&mut client), "");
}

/// What follows the server's last message fails. The handshake is over then, and without anything
/// new the session was verified after all.
#[test]
fn failed_session_is_not_verified_later() {
    // N3
    let rig = TlsRig::new();
    let (mut server, mut client) = (rig.server(), rig.connector().session().unwrap());
    let mut bytes = reply(&mut server, &mut client);
    bytes.extend_from_slice(b"garbage");
    let error = client.handle_received(&bytes).unwrap_err();
    assert_eq!(client.handle_received(&[]), Err(error));
    assert!(!client.is_verified() && client.write(b"AUTH") == 0);
}

/// A message of which no end comes, in long records and in records of one byte. Neither side of
/// the session has anything to do then, so a caller that retries would never stop.
#[test]
fn endless_message_is_an_error() {
    // N7
    let rig = TlsRig::new();
    let record = |content: &[u8]| {
        let [high, low] = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[22, 3, 3, high, low], content].concat()
    };
    // The head of a ServerHello of 64 KiB less one byte.
    let head = [2, 0, 0xff, 0xff];
    let long = [&record(&head)[..], &record(&[0; 1 << 14]).repeat(4)].concat();
    let short = [&record(&head)[..], &record(&[0]).repeat(1 << 14)].concat();
    for bytes in [long, short] {
        let error = rig.connector().session().unwrap().handle_received(&bytes).unwrap_err();
        assert_eq!(error.fault(), TlsFault::Handshake, "{error}");
    }
}

/// A configuration of the user's own takes the place of the files.
#[test]
fn user_configuration_replaces_files() {
    // N2
    let rig = TlsRig::new();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(rig.authority.ca()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    let settings = TlsSettings { config: Some(config), ..TlsSettings::default() };
    let connector = Connector::new(&Tls::default(), "db.example", &settings).unwrap();
    assert!(handshake(&mut rig.server(), &mut connector.session().unwrap()).is_ok());
    // The name is verified as always.
    let wrong = Connector::new(&Tls::default(), "other.example", &settings).unwrap();
    let error = handshake(&mut rig.server(), &mut wrong.session().unwrap()).unwrap_err();
    assert_eq!(error.fault(), TlsFault::WrongName);
    let error = Connector::new(&rig.tls, "db.example", &settings).unwrap_err().to_string();
    assert!(error.contains("`tls_config`"), "{error}");
}

#[test]
fn insecure_accepts_any_certificate_only_if_code_allows_it() {
    // N4
    let rig = TlsRig::new();
    let mut tls = rig.tls.clone();
    tls.insecure = true;
    let error = Connector::load(&tls, "any.example", false).unwrap_err().to_string();
    assert!(error.contains("`allow_insecure`"), "{error}");
    let settings = TlsSettings { allow_insecure: true, ..TlsSettings::default() };
    let connector = Connector::new(&tls, "any.example", &settings).unwrap();
    assert!(handshake(&mut rig.server(), &mut connector.session().unwrap()).is_ok());
    // The permission alone changes nothing.
    let strict = Connector::new(&rig.tls, "any.example", &settings).unwrap();
    let error = handshake(&mut rig.server(), &mut strict.session().unwrap()).unwrap_err();
    assert_eq!(error.fault(), TlsFault::WrongName);
}

/// A peer that never takes everything.
#[test]
fn outgoing_stays_small_if_a_byte_is_always_left() {
    // N7
    let rig = TlsRig::new();
    let (mut server, mut client) = (rig.server(), rig.connector().session().unwrap());
    handshake(&mut server, &mut client).unwrap();
    let (mut sent, mut read) = (Vec::new(), Vec::new());
    for round in 0..1_000_u32 {
        let request = [round.to_be_bytes(); 256];
        assert_eq!(client.write(request.as_flattened()), 1024);
        let mut from = client.outgoing().split_last().unwrap().1;
        let count = from.len();
        while !from.is_empty() {
            server.read_tls(&mut from).unwrap();
        }
        server.process_new_packets().unwrap();
        client.consume(count);
        assert!(client.outgoing.capacity() < 16 * 1024, "round {round}");
        sent.extend_from_slice(request.as_flattened());
        let _ = server.reader().read_to_end(&mut read);
    }
    assert!(sent.starts_with(&read) && sent.len() - read.len() == 1024, "all but the last record");
}

#[test]
fn garbage_is_no_tls() {
    // N5
    let rig = TlsRig::new();
    for garbage in [&b"-ERR unknown command\r\n"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0xff; 1 << 16]] {
        let error = rig.connector().session().unwrap().handle_received(garbage).unwrap_err();
        assert_eq!(error.fault(), TlsFault::NotTls, "{error}");
    }
}

/// The server does speak TLS: another attempt may succeed.
#[test]
fn garbage_in_a_session_is_no_refusal() {
    // N5
    let rig = TlsRig::new();
    let mut client = rig.connector().session().unwrap();
    handshake(&mut rig.server(), &mut client).unwrap();
    let error = client.handle_received(b"-ERR unknown command\r\n").unwrap_err();
    assert!(error.fault() == TlsFault::Handshake && !error.fault().is_refusal(), "{error}");
    // A damaged message of the handshake.
    let mut client = rig.connector().session().unwrap();
    let error = client.handle_received(&[22, 3, 3, 0, 5, 2, 0, 0, 1, 0]).unwrap_err();
    assert_eq!(error.fault(), TlsFault::Handshake, "{error}");
}

//! A TLS session against a rustls server in memory, with a network between them that the input
//! controls.

mod certificates;

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use lock_driver::tls::{Connector, Plaintext, TlsError, TlsSession};
use lock_proto::TlsFault;
use rustls::{ServerConfig, ServerConnection};

use certificates::{Identity, Offer, Setup, Shown};

/// What both sides write, over and over. Any [`MARK`] bytes of it in a row are recognised.
const TEXT: &[u8] = b"AUTH some-secret;";
const MARK: usize = 8;
/// How much plaintext a session may keep until it is read, in bytes: rustls' 16 KiB, and what one
/// read of the stream adds.
const MOST_UNREAD: usize = 64 * 1024;
/// How much a session has to say by itself, in bytes: a handshake with its certificates, alerts.
const OWN_WORDS: usize = 8 * 1024;
/// What each record adds to its plaintext, in bytes, at most.
const PER_RECORD: usize = 32;
const RECORD: usize = 16 * 1024;
/// How many updates of keys without data rustls accepts.
const KEY_UPDATES: u32 = 32;

/// Drives a [`Session`] and a server by `data`: two bytes of settings, then operations, each a
/// letter and its arguments.
///
/// Checks that nothing panics, and that both sides receive a prefix of what the other has written,
/// all of it if the session was closed in order. A server that is not acceptable is never verified.
/// Until the server is verified, nothing is delivered and nothing is taken to be sent. No
/// plaintext leaves in the clear. A session that has failed stays so. Buffers are bounded. If the
/// network changed nothing, the session works, or fails for the right reason.
pub fn tls(data: &[u8]) {
    let mut input = Input { rest: data };
    let setup = Setup::new(input.byte(), input.byte());
    let connector = setup.connector();
    let server = setup.server();
    let mut history = History::default();
    let mut pair = Pair::new(setup, &connector.0, &server);
    while let Some(op) = input.next() {
        match op {
            b'w' => pair.client.write(usize::from(input.byte())),
            b'W' => pair.client.write(usize::from(input.byte()) * 256),
            b's' => pair.server.write(usize::from(input.byte())),
            b'S' => pair.server.write(usize::from(input.byte()) * 256),
            b'f' => pair.flush_client(usize::from(input.byte())),
            b'F' => pair.flush_client(usize::MAX),
            b'c' => pair.send_to_client(usize::from(input.byte()), &mut history),
            b'C' => pair.send_to_client(usize::MAX, &mut history),
            b'v' => pair.send_to_server(usize::from(input.byte())),
            b'V' => pair.send_to_server(usize::MAX),
            b'p' => _ = pair.client.read(usize::from(input.byte())),
            b'P' => pair.client.drain(),
            b'a' => pair.pump(&mut history),
            b'k' => pair.close_client(),
            b'K' => pair.close_server(),
            b'u' => pair.update_keys(),
            b'x' => {
                let (at, mask) = (input.place(), input.byte());
                pair.tamper(|bytes| {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= mask;
                    }
                });
            }
            b'i' => {
                let (at, len) = (input.place(), input.byte());
                let garbage = input.take(usize::from(len)).to_vec();
                pair.tamper(|bytes| insert(bytes, at, &garbage));
            }
            b'y' => {
                let (at, from, len) = (input.place(), input.place(), input.place());
                let old = history.part(from, len);
                pair.tamper(|bytes| insert(bytes, at, &old));
            }
            b'd' => {
                let (at, len) = (input.place(), input.place());
                pair.tamper(|bytes| {
                    let at = at.min(bytes.len());
                    bytes.drain(at..bytes.len().min(at.saturating_add(len)));
                });
            }
            b'e' => pair.end_stream(),
            b'X' => {
                let (at, mask) = (input.place(), input.byte());
                pair.tamper_to_server(at, mask);
            }
            b'n' => {
                pair.finish(&mut history);
                pair = Pair::new(setup, &connector.0, &server);
            }
            _ => {}
        }
        pair.check();
    }
    pair.finish(&mut history);
}

fn insert(bytes: &mut Vec<u8>, at: usize, what: &[u8]) {
    let at = at.min(bytes.len());
    bytes.splice(at..at, what.iter().copied());
}

struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// A place in a flight.
    fn place(&mut self) -> usize {
        usize::from(u16::from_le_bytes([self.byte(), self.byte()]))
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }
}

/// What servers have sent to clients, on earlier connections too.
#[derive(Default)]
struct History(Vec<u8>);

impl History {
    fn part(&self, from: usize, len: usize) -> Vec<u8> {
        self.0.iter().skip(from).take(len).copied().collect()
    }

    fn add(&mut self, bytes: &[u8]) {
        let room = usize::from(u16::MAX).saturating_sub(self.0.len());
        self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// The next `len` bytes that a side writes after `written` of them.
fn text(written: usize, len: usize) -> Vec<u8> {
    TEXT.iter().copied().cycle().skip(written % TEXT.len()).take(len).collect()
}

/// Returns true if `got` is the beginning of what a side has written.
fn is_prefix(got: &[u8], written: usize) -> bool {
    got.len() <= written && got.iter().zip(TEXT.iter().cycle()).all(|(got, sent)| got == sent)
}

fn shows_plaintext(bytes: &[u8]) -> bool {
    let twice = TEXT.repeat(2);
    bytes.windows(MARK).any(|part| twice[..TEXT.len() + MARK - 1].windows(MARK).any(|mark| part == mark))
}

struct Client {
    session: TlsSession,
    /// Bytes that the session has taken to send.
    written: usize,
    received: Vec<u8>,
    closed: bool,
    /// The session has reported the end.
    at_end: bool,
    failed: Option<TlsError>,
    was_verified: bool,
    /// The most that may wait to be sent.
    allowance: usize,
    /// Bytes read since the session last had none.
    drained: usize,
}

impl Client {
    fn write(&mut self, len: usize) {
        let taken = self.session.write(&text(self.written, len));
        assert!(taken <= len);
        assert!(taken == 0 || self.session.is_verified(), "written before the server is verified");
        self.written += taken;
        self.allowance += taken + (taken / RECORD + 1) * PER_RECORD;
    }

    /// Reads at most `len` bytes. Returns whether there may be more.
    fn read(&mut self, len: usize) -> bool {
        let mut buffer = vec![0; len];
        match self.session.read(&mut buffer) {
            Plaintext::Bytes(count) => {
                assert!((1..=len).contains(&count));
                assert!(self.session.is_verified(), "delivered before the server is verified");
                assert!(!self.at_end, "delivered after the end");
                self.received.extend_from_slice(&buffer[..count]);
                self.drained += count;
                assert!(self.drained <= MOST_UNREAD, "{} bytes were kept", self.drained);
                true
            }
            Plaintext::Closed => {
                self.at_end |= len > 0;
                false
            }
            _ => {
                self.drained = 0;
                false
            }
        }
    }

    fn drain(&mut self) {
        while self.read(4096) {}
    }

    fn fail(&mut self, error: TlsError) {
        if self.failed.is_none() {
            self.failed = Some(error);
        }
    }
}

struct Server {
    tls: ServerConnection,
    written: usize,
    received: Vec<u8>,
    closed: bool,
    /// Closed during the handshake: what was written by then is not sent.
    closed_early: bool,
    failed: bool,
}

impl Server {
    fn write(&mut self, len: usize) {
        if !self.closed && !self.failed {
            self.written += self.tls.writer().write(&text(self.written, len)).unwrap_or(0);
        }
    }

    fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.failed {
            let count = self.tls.read_tls(&mut bytes).unwrap_or(0);
            self.failed |= self.tls.process_new_packets().is_err();
            let mut plain = Vec::new();
            // The error is that there is no more for now.
            let _ = self.tls.reader().read_to_end(&mut plain);
            self.received.extend_from_slice(&plain);
            if count == 0 {
                break;
            }
        }
    }
}

/// The two sides, and what is on the way between them.
struct Pair {
    setup: Setup,
    client: Client,
    server: Server,
    to_client: Vec<u8>,
    to_server: Vec<u8>,
    /// The network has changed nothing, and nobody has closed the session before it was open.
    honest: bool,
    key_updates: u32,
}

impl Pair {
    fn new(setup: Setup, connector: &Connector, server: &Arc<ServerConfig>) -> Self {
        let client = Client {
            session: connector.session().expect("the settings are good"),
            written: 0,
            received: Vec::new(),
            closed: false,
            at_end: false,
            failed: None,
            was_verified: false,
            allowance: OWN_WORDS,
            drained: 0,
        };
        let tls = ServerConnection::new(Arc::clone(server)).expect("the settings are good");
        let server =
            Server { tls, written: 0, received: Vec::new(), closed: false, closed_early: false, failed: false };
        Self { setup, client, server, to_client: Vec::new(), to_server: Vec::new(), honest: true, key_updates: 0 }
    }

    fn flush_client(&mut self, most: usize) {
        let bytes = self.client.session.outgoing();
        let bytes = &bytes[..bytes.len().min(most)];
        assert!(!shows_plaintext(bytes), "plaintext leaves in the clear");
        self.to_server.extend_from_slice(bytes);
        let count = bytes.len();
        self.client.session.consume(count);
        if self.client.session.outgoing().is_empty() {
            self.client.allowance = OWN_WORDS;
        }
    }

    fn flush_server(&mut self) {
        while self.server.tls.wants_write() {
            self.server.tls.write_tls(&mut self.to_client).expect("memory takes everything");
        }
    }

    fn send_to_server(&mut self, most: usize) {
        let count = self.to_server.len().min(most);
        let bytes: Vec<u8> = self.to_server.drain(..count).collect();
        if !self.server.closed || self.honest {
            self.server.receive(&bytes);
        }
    }

    fn send_to_client(&mut self, most: usize, history: &mut History) {
        self.flush_server();
        // rustls has a debug assertion that no error follows a close. Only in builds with debug
        // assertions it matters, as this one.
        if self.client.closed && !self.honest {
            return self.to_client.clear();
        }
        let count = self.to_client.len().min(most);
        let failed = self.client.failed.is_some();
        let (verified, got) = (self.client.session.is_verified(), self.client.received.len());
        match self.client.session.handle_received(&self.to_client[..count]) {
            Ok(taken) => {
                assert!(taken <= count);
                assert!(!failed, "a failed session takes more");
                history.add(&self.to_client[..taken]);
                self.to_client.drain(..taken);
            }
            Err(error) => {
                history.add(&self.to_client[..count]);
                self.to_client.drain(..count);
                self.client.fail(error);
            }
        }
        if failed {
            assert_eq!(verified, self.client.session.is_verified(), "a failed session is verified");
            assert_eq!(got, self.client.received.len());
        }
    }

    /// Changes what is on the way to the client.
    fn tamper(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        self.flush_server();
        let before = self.to_client.clone();
        change(&mut self.to_client);
        self.honest &= before == self.to_client;
    }

    fn tamper_to_server(&mut self, at: usize, mask: u8) {
        if let Some(byte) = self.to_server.get_mut(at) {
            *byte ^= mask;
            self.honest &= mask == 0;
        }
    }

    /// Nothing more arrives at either side.
    fn end_stream(&mut self) {
        self.honest = false;
        self.to_client.clear();
        self.to_server.clear();
    }

    fn close_client(&mut self) {
        self.honest &= self.client.session.is_verified();
        self.client.session.close();
        self.client.closed = true;
    }

    fn close_server(&mut self) {
        self.server.closed_early |= self.server.tls.is_handshaking();
        self.honest &= !self.server.closed_early;
        self.server.tls.send_close_notify();
        self.server.closed = true;
    }

    /// Moves everything in both directions until nothing is left.
    fn pump(&mut self, history: &mut History) {
        loop {
            let before = (self.to_client.len(), self.to_server.len(), self.client.received.len());
            self.flush_client(usize::MAX);
            self.send_to_server(usize::MAX);
            self.send_to_client(usize::MAX, history);
            self.client.drain();
            self.flush_server();
            let idle = self.client.session.outgoing().is_empty();
            if idle && before == (self.to_client.len(), self.to_server.len(), self.client.received.len()) {
                break;
            }
            self.check();
        }
    }

    fn check(&mut self) {
        let Self { setup, client, server, .. } = self;
        assert!(is_prefix(&client.received, server.written), "the client received what the server did not write");
        assert!(is_prefix(&server.received, client.written), "the server received what the client did not write");
        let verified = client.session.is_verified();
        assert!(verified || !client.was_verified, "verified no more");
        client.was_verified = verified;
        assert!(!verified || setup.is_acceptable(), "{setup:?} is verified");
        let waiting = client.session.outgoing().len();
        assert!(waiting <= client.allowance, "{waiting} bytes wait to be sent, {} are allowed", client.allowance);
        assert!(!shows_plaintext(client.session.outgoing()), "plaintext would leave in the clear");
        // An attacker can end a session that is not verified yet, as it can end any connection.
        if client.at_end && verified {
            assert!(server.closed, "the end of a session that the server has not closed");
            let all = client.received.len() == server.written;
            assert!(all || server.closed_early, "the end comes before everything was delivered");
        }
    }

    /// The session refuses more than [`KEY_UPDATES`] without data in between.
    fn update_keys(&mut self) {
        self.key_updates += 1;
        self.honest &= self.key_updates <= KEY_UPDATES;
        // Refused before the handshake is over, and by TLS 1.2.
        let _ = self.server.tls.refresh_traffic_keys();
    }

    /// The network ceases to interfere.
    fn finish(&mut self, history: &mut History) {
        self.pump(history);
        self.check();
        let verified = self.client.session.is_verified();
        if !self.honest {
            return;
        }
        let found = self.client.failed.as_ref().map(TlsError::fault);
        assert_eq!(found, self.setup.fault(), "{:?}", self.setup);
        if found.is_none() {
            assert!(verified, "{:?} is not verified", self.setup);
            assert_eq!(self.client.received.len(), self.server.written, "not all has arrived at the client");
            assert_eq!(self.client.at_end, self.server.closed);
            if !self.client.closed {
                assert_eq!(self.server.received.len(), self.client.written, "not all has arrived at the server");
            }
        }
    }
}

impl Setup {
    /// Returns whether a client may accept the server.
    fn is_acceptable(self) -> bool {
        self.shown == Shown::Good && (!self.http2 || self.offer == Offer::Http2)
    }

    /// Why a session fails on a network that changes nothing.
    fn fault(self) -> Option<TlsFault> {
        let refused = match self.identity {
            Identity::None => Some(TlsFault::CertificateRequired),
            Identity::Good => None,
            Identity::UnknownIssuer => Some(TlsFault::CertificateRefused),
        };
        let refused = refused.filter(|_| self.demands_client);
        // TLS 1.3 refuses a client's certificate when the client has already agreed to the rest.
        let late = self.versions.1;
        match (self.shown, self.http2, self.offer) {
            // The server refuses before it shows a certificate.
            (_, true, Offer::Http1) => Some(TlsFault::NoHttp2),
            (Shown::WrongName, _, _) => Some(TlsFault::WrongName),
            (Shown::UnknownIssuer, _, _) => Some(TlsFault::UnknownIssuer),
            (Shown::Expired, _, _) => Some(TlsFault::Expired),
            (Shown::Good, true, Offer::Nothing) if late => Some(TlsFault::NoHttp2),
            (Shown::Good, true, Offer::Nothing) => refused.or(Some(TlsFault::NoHttp2)),
            (Shown::Good, true, Offer::Http2) | (Shown::Good, false, _) => refused,
        }
    }
}

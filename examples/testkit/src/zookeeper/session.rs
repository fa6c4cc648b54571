//! A minimal blocking ZooKeeper client for tests. It shares no code with the one that is tested.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Session timeout, far above the duration of any test.
const SESSION_TIMEOUT_MS: i32 = 60_000;
/// The `xid` of a login.
const AUTH_XID: i32 = -4;
const PING_XID: i32 = -2;
const EVENT_XID: i32 = -1;
const NO_NODE: i32 = -101;

/// An error of a request.
#[derive(Debug)]
pub enum ZkError {
    /// The server refused it, with this code.
    Code(i32),
    /// The connection broke.
    Io(io::Error),
    /// The session has expired.
    Expired,
}

impl From<io::Error> for ZkError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl ZkError {
    /// Returns true if the node, or its parent, does not exist.
    #[must_use]
    pub const fn is_no_node(&self) -> bool {
        matches!(self, Self::Code(NO_NODE))
    }
}

/// What kind of node to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Stays until it is deleted.
    Persistent = 0,
    /// Ends with the session.
    Ephemeral = 1,
    /// As [`Persistent`](Self::Persistent), with a number appended.
    PersistentSequential = 2,
    /// As [`Ephemeral`](Self::Ephemeral), with a number appended.
    EphemeralSequential = 3,
}

/// Metadata of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are ZooKeeper's")]
pub struct Stat {
    pub czxid: i64,
    pub mzxid: i64,
    pub version: i32,
    pub cversion: i32,
    pub ephemeral_owner: i64,
    pub num_children: i32,
}

/// A session on one connection.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    xid: i32,
    id: i64,
    password: Vec<u8>,
}

impl Session {
    /// Begins a session. `timeout` limits the wait for each reply.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub fn open(address: SocketAddr, timeout: Duration) -> Result<Self, ZkError> {
        Self::connect(address, 0, &[0; 16], timeout)
    }

    /// Takes over the session of another client, whose connection the server closes.
    ///
    /// # Errors
    ///
    /// [`ZkError::Expired`] if the session is over.
    pub fn take_over(address: SocketAddr, id: i64, timeout: Duration) -> Result<Self, ZkError> {
        Self::connect(address, id, &password_of(id), timeout)
    }

    fn connect(address: SocketAddr, id: i64, password: &[u8], timeout: Duration) -> Result<Self, ZkError> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        let mut session = Self { stream, xid: 0, id, password: Vec::new() };
        let mut request = Writer::default();
        request.int(0).long(0).int(SESSION_TIMEOUT_MS).long(id).bytes(password);
        session.send(&request)?;
        let reply = session.receive()?;
        let mut reply = Reader(&reply);
        let (_, timeout, id) = (reply.int()?, reply.int()?, reply.long()?);
        if timeout <= 0 {
            return Err(ZkError::Expired);
        }
        session.id = id;
        session.password = reply.bytes()?.to_vec();
        Ok(session)
    }

    /// The id of the session.
    #[must_use]
    pub const fn id(&self) -> i64 {
        self.id
    }

    /// The password of the session, which the server computed.
    #[must_use]
    pub fn password(&self) -> &[u8] {
        &self.password
    }

    /// Logs in as `user:password`, by the scheme `digest`.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn log_in(&mut self, user: &str, password: &str) -> Result<(), ZkError> {
        let mut request = Writer::default();
        request.int(AUTH_XID).int(100).int(0).text("digest").bytes(format!("{user}:{password}").as_bytes());
        self.send(&request)?;
        self.reply_to(AUTH_XID).map(drop)
    }

    /// Creates a node that everybody may use. Returns its path.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn create(&mut self, path: &str, data: &[u8], mode: Mode) -> Result<String, ZkError> {
        self.create_for(path, data, mode, ("world", "anyone"))
    }

    /// Creates a node that only the logged-in user may use.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn create_private(&mut self, path: &str, data: &[u8], mode: Mode) -> Result<String, ZkError> {
        self.create_for(path, data, mode, ("auth", ""))
    }

    fn create_for(&mut self, path: &str, data: &[u8], mode: Mode, whom: (&str, &str)) -> Result<String, ZkError> {
        const ALL_PERMISSIONS: i32 = 31;
        let reply = self.call(1, |request| {
            request.text(path).bytes(data).int(1).int(ALL_PERMISSIONS).text(whom.0).text(whom.1).int(mode as i32);
        })?;
        Ok(Reader(&reply).text()?)
    }

    /// Deletes a node.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn delete(&mut self, path: &str) -> Result<(), ZkError> {
        self.call(2, |request| {
            request.text(path).int(-1);
        })
        .map(drop)
    }

    /// The metadata of a node, if it exists.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn stat(&mut self, path: &str) -> Result<Option<Stat>, ZkError> {
        match self.call(3, |request| {
            request.text(path).bool(false);
        }) {
            Ok(reply) => Ok(Some(Reader(&reply).stat()?)),
            Err(error) if error.is_no_node() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The data of a node.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn get(&mut self, path: &str) -> Result<Vec<u8>, ZkError> {
        let reply = self.call(4, |request| {
            request.text(path).bool(false);
        })?;
        Ok(Reader(&reply).bytes()?.to_vec())
    }

    /// Replaces the data of a node.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn set(&mut self, path: &str, data: &[u8]) -> Result<(), ZkError> {
        self.call(5, |request| {
            request.text(path).bytes(data).int(-1);
        })
        .map(drop)
    }

    /// The names of the children of a node, sorted.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn children(&mut self, path: &str) -> Result<Vec<String>, ZkError> {
        let reply = self.call(8, |request| {
            request.text(path).bool(false);
        })?;
        let mut reply = Reader(&reply);
        let count = reply.int()?;
        let mut names = (0..count).map(|_| reply.text()).collect::<io::Result<Vec<String>>>()?;
        names.sort_unstable();
        Ok(names)
    }

    /// Waits until this server has all that the leader has committed.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn sync(&mut self) -> Result<(), ZkError> {
        self.call(9, |request| {
            request.text("/");
        })
        .map(drop)
    }

    /// Ends the session, and with it its ephemeral nodes.
    ///
    /// # Errors
    ///
    /// Those of the server.
    pub fn close(mut self) -> Result<(), ZkError> {
        self.call(-11, |_| ()).map(drop)
    }

    fn call(&mut self, operation: i32, body: impl FnOnce(&mut Writer)) -> Result<Vec<u8>, ZkError> {
        self.xid += 1;
        let mut request = Writer::default();
        request.int(self.xid).int(operation);
        body(&mut request);
        self.send(&request)?;
        self.reply_to(self.xid)
    }

    fn send(&mut self, request: &Writer) -> io::Result<()> {
        let length = i32::try_from(request.0.len()).expect("a short request");
        self.stream.write_all(&[&length.to_be_bytes(), &request.0[..]].concat())
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut frame = vec![0; usize::try_from(i32::from_be_bytes(length)).map_err(io::Error::other)?];
        self.stream.read_exact(&mut frame)?;
        Ok(frame)
    }

    fn reply_to(&mut self, wanted: i32) -> Result<Vec<u8>, ZkError> {
        loop {
            let frame = self.receive()?;
            let mut reply = Reader(&frame);
            let (xid, _zxid, code) = (reply.int()?, reply.long()?, reply.int()?);
            match xid {
                EVENT_XID | PING_XID => {}
                xid if xid == wanted && code == 0 => return Ok(reply.0.to_vec()),
                xid if xid == wanted => return Err(ZkError::Code(code)),
                xid => return Err(io::Error::other(format!("a reply to {xid} instead of {wanted}")).into()),
            }
        }
    }
}

/// The password that a server computes for a session: the first bytes of `java.util.Random`, with
/// the seed from `ZooKeeperServer.generatePasswd`.
fn password_of(session: i64) -> Vec<u8> {
    const SECRET: u64 = 0xB341_5C00;
    const MULTIPLIER: u64 = 0x5_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let mut state = (session.cast_unsigned() ^ SECRET ^ MULTIPLIER) & MASK;
    let mut password = Vec::new();
    for _ in 0..4 {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(0xB) & MASK;
        // `nextBytes` takes the lowest byte of each `nextInt` first.
        password.extend(((state >> 16) as u32).to_le_bytes());
    }
    password
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn bool(&mut self, value: bool) -> &mut Self {
        self.0.push(value.into());
        self
    }

    fn int(&mut self, value: i32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn long(&mut self, value: i64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.int(i32::try_from(value.len()).expect("short"));
        self.0.extend(value);
        self
    }

    fn text(&mut self, value: &str) -> &mut Self {
        self.bytes(value.as_bytes())
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.0 = rest;
        Ok(taken)
    }

    fn int(&mut self) -> io::Result<i32> {
        Ok(i32::from_be_bytes(self.take(4)?.try_into().map_err(io::Error::other)?))
    }

    fn long(&mut self) -> io::Result<i64> {
        Ok(i64::from_be_bytes(self.take(8)?.try_into().map_err(io::Error::other)?))
    }

    fn bytes(&mut self) -> io::Result<&'a [u8]> {
        // Absent data has the length -1.
        let length = usize::try_from(self.int()?).unwrap_or(0);
        self.take(length)
    }

    fn text(&mut self) -> io::Result<String> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(io::Error::other)
    }

    fn stat(&mut self) -> io::Result<Stat> {
        let (czxid, mzxid) = (self.long()?, self.long()?);
        let _times = (self.long()?, self.long()?);
        let (version, cversion, _acl_version) = (self.int()?, self.int()?, self.int()?);
        let (ephemeral_owner, _data_length, num_children) = (self.long()?, self.int()?, self.int()?);
        Ok(Stat { czxid, mzxid, version, cversion, ephemeral_owner, num_children })
    }
}

#[cfg(test)]
mod tests {
    use super::password_of;

    #[test]
    fn session_password_is_that_of_server() {
        let expected = 0xe064_2d07_ed64_0ae2_beb2_96cd_7e17_8b0e_u128.to_be_bytes();
        assert_eq!(password_of(0x0010_0007_9f3e_0000), expected);
    }
}

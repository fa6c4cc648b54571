//! One question by HTTP/1.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Posts `body`, and gives the answer, headers and all.
pub(crate) fn post(to: SocketAddr, path: &str, body: &str, timeout: Duration) -> io::Result<String> {
    ask(to, "POST", path, body, timeout)
}

/// Gets what is at `path`, headers and all.
///
/// # Errors
///
/// Those of the socket, and an answer that is no UTF-8.
pub fn get(from: SocketAddr, path: &str, timeout: Duration) -> io::Result<String> {
    ask(from, "GET", path, "", timeout)
}

/// HTTP/1.0: the answer comes in one piece, and not in chunks.
fn ask(to: SocketAddr, method: &str, path: &str, body: &str, timeout: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: {to}\r\nContent-Length: {length}\r\n\r\n{body}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

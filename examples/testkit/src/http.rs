//! Single HTTP requests.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Posts `body`, and returns the response with its headers.
pub(crate) fn post(to: SocketAddr, path: &str, body: &str, timeout: Duration) -> io::Result<String> {
    request(to, "POST", path, body, timeout)
}

/// Gets `path`, and returns the response with its headers.
///
/// # Errors
///
/// Those of the socket, and a response that is not UTF-8.
pub fn get(from: SocketAddr, path: &str, timeout: Duration) -> io::Result<String> {
    request(from, "GET", path, "", timeout)
}

/// Uses HTTP/1.0, so that the response is not chunked.
fn request(to: SocketAddr, method: &str, path: &str, body: &str, timeout: Duration) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: {to}\r\nContent-Length: {length}\r\n\r\n{body}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

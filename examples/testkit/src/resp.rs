//! A minimal Redis client for tests.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read as _, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A reply of the server (RESP2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Null.
    Nil,
    /// An integer.
    Int(i64),
    /// A simple or bulk string.
    Text(Vec<u8>),
    /// An error; the text starts with its code.
    Error(String),
    /// An array.
    Array(Vec<Self>),
}

/// Formatted like the output of `redis-cli` to a pipe, with the prefix `(error) ` for errors and
/// `(nil)` for null.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("(nil)"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Text(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Self::Error(text) => write!(f, "(error) {text}"),
            Self::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if i == 0 { "" } else { "\n" })?;
                }
                Ok(())
            }
        }
    }
}

/// A plain connection.
#[derive(Debug)]
pub struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    /// Connects. `timeout` limits the wait for each reply.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub fn open(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    ///
    /// Those of the socket. `InvalidData` if the server does not speak RESP2, `TimedOut` or
    /// `WouldBlock` if it does not reply in time.
    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Value> {
        self.send(args)?;
        self.receive()
    }

    /// Sends a command without waiting for the reply.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            let arg = arg.as_ref();
            write!(bytes, "${}\r\n", arg.len())?;
            bytes.extend_from_slice(arg);
            bytes.extend_from_slice(b"\r\n");
        }
        self.reader.get_mut().write_all(&bytes)
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    ///
    /// Like [`command`](Self::command).
    pub fn receive(&mut self) -> io::Result<Value> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| bad("an empty line"))?;
        let number = || rest.parse::<i64>().map_err(|_| bad(&line));
        Ok(match kind {
            "+" => Value::Text(rest.as_bytes().to_vec()),
            "-" => Value::Error(rest.to_owned()),
            ":" => Value::Int(number()?),
            "$" => match usize::try_from(number()?) {
                Err(_) => Value::Nil,
                Ok(len) => {
                    let mut bytes = vec![0; len + 2];
                    self.reader.read_exact(&mut bytes)?;
                    bytes.truncate(len);
                    Value::Text(bytes)
                }
            },
            "*" => match usize::try_from(number()?) {
                Err(_) => Value::Nil,
                Ok(len) => Value::Array((0..len).map(|_| self.receive()).collect::<io::Result<_>>()?),
            },
            _ => return Err(bad(&line)),
        })
    }

    pub(crate) fn disable_timeout(&self) -> io::Result<()> {
        self.reader.get_ref().set_read_timeout(None)
    }

    /// A second handle to the socket, to close the connection from another thread.
    pub(crate) fn socket(&self) -> io::Result<TcpStream> {
        self.reader.get_ref().try_clone()
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches("\r\n").to_owned())
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no RESP2: {what:?}"))
}

//! Commands received by a server, by `MONITOR`.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::redis::Redis;
use crate::resp::{Connection, Value};
use crate::{TIMEOUT, wait_until};

/// A command as the server received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitoredCommand {
    /// The sender: `address:port`, `unix:path`, or `lua` for a command inside a script.
    pub client: String,
    /// The command and its arguments. Invalid UTF-8 is replaced.
    pub args: Vec<String>,
}

impl MonitoredCommand {
    /// The command's name in upper case.
    #[must_use]
    pub fn verb(&self) -> String {
        self.args.first().map(|verb| verb.to_ascii_uppercase()).unwrap_or_default()
    }

    /// Returns true if the command belongs to the login of a connection.
    #[must_use]
    pub fn is_handshake(&self) -> bool {
        matches!(self.verb().as_str(), "HELLO" | "AUTH" | "SELECT" | "CLIENT" | "INFO" | "PING")
    }

    /// Returns true if a script sent the command.
    #[must_use]
    pub fn is_lua(&self) -> bool {
        self.client == "lua"
    }

    /// Parses a line of `MONITOR`: `1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`.
    fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once('[')?;
        let (source, rest) = rest.split_once("] ")?;
        let (_database, client) = source.split_once(' ')?;
        Some(Self { client: client.to_owned(), args: unquote(rest) })
    }
}

/// Splits `"a" "b\"c\x00"` into words. Bytes over 127 are escaped as `\x..` too.
fn unquote(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match (&mut word, byte) {
            (None, b'"') => word = Some(Vec::new()),
            (None, _) => {}
            (Some(_), b'"') => words.extend(word.take().map(|w| String::from_utf8_lossy(&w).into_owned())),
            (Some(word), b'\\') => match bytes.next() {
                Some(b'n') => word.push(b'\n'),
                Some(b'r') => word.push(b'\r'),
                Some(b't') => word.push(b'\t'),
                Some(b'a') => word.push(7),
                Some(b'b') => word.push(8),
                Some(b'x') => {
                    let digits: String = bytes.by_ref().take(2).map(char::from).collect();
                    word.extend(u8::from_str_radix(&digits, 16));
                }
                Some(other) => word.push(other),
                None => {}
            },
            (Some(word), byte) => word.push(byte),
        }
    }
    words
}

/// Collects all commands that a server receives.
#[derive(Debug)]
pub struct Monitor {
    lines: Arc<Mutex<Vec<String>>>,
    marks: Mutex<(Connection, u64)>,
    socket: TcpStream,
    reader: Option<JoinHandle<()>>,
}

impl Monitor {
    pub(crate) fn attach(redis: &Redis) -> Self {
        let mut connection = redis.connect();
        assert_eq!(connection.command(&["MONITOR"]).expect("MONITOR"), Value::Text(b"OK".to_vec()));
        connection.disable_timeout().expect("a socket option");
        let socket = connection.socket().expect("a second handle of a socket");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let reader = thread::spawn(move || {
            while let Ok(Value::Text(line)) = connection.receive() {
                let line = String::from_utf8_lossy(&line).into_owned();
                sink.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        Self { lines, marks: Mutex::new((redis.connect(), 0)), socket, reader: Some(reader) }
    }

    /// All commands since the last call. Includes every command that was answered before this call.
    pub fn take(&self) -> Vec<MonitoredCommand> {
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks.1 += 1;
        let mark = format!("lock-testkit mark {} {}", std::process::id(), marks.1);
        marks.0.command(&["ECHO", &mark]).expect("the monitored server answers");
        let is_mark = |line: &String| line.contains(&mark);
        let mut taken = Vec::new();
        let seen = wait_until(TIMEOUT, || {
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(at) = lines.iter().position(is_mark) else { return false };
            taken = lines.drain(..=at).collect();
            true
        });
        assert!(seen, "MONITOR showed nothing of {mark:?}");
        taken.pop();
        taken.iter().filter_map(|line| MonitoredCommand::parse(line)).filter(|seen| seen.verb() != "ECHO").collect()
    }

    /// The commands of clients since the last call, without logins and commands of scripts.
    pub fn take_client_commands(&self) -> Vec<MonitoredCommand> {
        self.take().into_iter().filter(|seen| !seen.is_lua() && !seen.is_handshake()).collect()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitor_line_is_parsed() {
        let seen = MonitoredCommand::parse(r#"1339518083.107412 [3 127.0.0.1:60866] "set" "a b" "q\"\\\x00\n]" "#);
        let args = ["set", "a b", "q\"\\\0\n]"].map(str::to_owned).to_vec();
        assert_eq!(seen, Some(MonitoredCommand { client: "127.0.0.1:60866".into(), args }));
        let seen = MonitoredCommand::parse(r#"1.2 [0 lua] "get" "k""#).expect("a line");
        assert!(seen.is_lua() && seen.verb() == "GET");
        assert_eq!(MonitoredCommand::parse("OK"), None);
    }
}

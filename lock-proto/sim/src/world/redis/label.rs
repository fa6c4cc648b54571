//! Commands as text.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::direction::Direction;
use crate::network::Payload;
use crate::redis::input::{self, InputLimits, ParsedInput};
use lock_proto::redis::script;

impl Payload for Vec<u8> {
    fn size(&self) -> usize {
        self.len()
    }

    fn label(&self, direction: Direction) -> String {
        match direction {
            Direction::ToNode => requests(self),
            Direction::ToClient => replies(self),
        }
    }
}

/// Formats a command for the log. Scripts appear by name.
pub(super) fn command(args: &[Vec<u8>]) -> String {
    let mut text = String::new();
    for (i, arg) in args.iter().enumerate() {
        if i > 0 {
            text.push(' ');
        }
        let known =
            script::ALL.iter().find(|s| s.source.as_bytes() == arg.as_slice() || s.sha1.as_bytes() == arg.as_slice());
        match known {
            Some(script) => text.push_str(&format!("<{}>", script.name)),
            None => text.push_str(&format!("{}", arg.escape_ascii())),
        }
    }
    text
}

/// Summarizes the requests that a client sends. Data that does not begin a request becomes dots.
fn requests(bytes: &[u8]) -> String {
    let limits = InputLimits { max_bulk: bytes.len(), authenticated: true };
    let (mut rest, mut text) = (bytes, String::new());
    while !rest.is_empty() && text.len() < 80 {
        if !text.is_empty() {
            text.push_str(", ");
        }
        let mut args = Vec::new();
        match input::parse(rest, limits, &mut args) {
            ParsedInput::Request { len } => {
                text.push_str(&request(&args));
                rest = &rest[len.max(1)..];
            }
            ParsedInput::Inline { .. } | ParsedInput::Incomplete | ParsedInput::Broken(_) => {
                text.push('…');
                break;
            }
        }
    }
    text
}

/// Formats a request: the name of the script and its key, or the command and its first argument.
fn request(args: &[&[u8]]) -> String {
    let shown = |arg: Option<&&[u8]>| arg.map(|arg| format!(" {}", arg.escape_ascii())).unwrap_or_default();
    let script = args
        .get(1)
        .and_then(|arg| script::ALL.iter().find(|s| s.source.as_bytes() == *arg || s.sha1.as_bytes() == *arg));
    match (args.first(), script) {
        (_, Some(script)) => format!("{}{}", script.name, shown(args.get(3))),
        (Some(verb), None) => format!("{}{}", verb.escape_ascii(), shown(args.get(1))),
        (None, _) => String::new(),
    }
}

fn replies(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).replace("\r\n", " ");
    String::from(if text.trim().is_empty() { "…" } else { text.trim_end() })
}

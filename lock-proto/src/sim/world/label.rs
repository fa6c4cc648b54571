//! Commands as text.

use alloc::format;
use alloc::string::String;

use crate::redis::script;

/// A command for the log: scripts by their name, the rest as text.
pub(super) fn command(args: &[alloc::vec::Vec<u8>]) -> String {
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

//! Names of locks in messages.

use core::fmt;

/// How many bytes of a name a message shows.
const MAX_SHOWN: usize = 64;

/// A name in quotes, with bytes that are not printable escaped. A long one is cut, and followed by
/// its length.
pub(super) struct Name<'a>(pub(super) &'a [u8]);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.split_at_checked(MAX_SHOWN) {
            Some((shown, [_, ..])) => write!(f, "\"{}…\" ({} bytes)", shown.escape_ascii(), self.0.len()),
            Some((_, [])) | None => write!(f, "\"{}\"", self.0.escape_ascii()),
        }
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    #[test]
    fn long_names_are_cut() {
        assert_eq!(Name(b"a\xff\"b").to_string(), r#""a\xff\"b""#);
        assert_eq!(Name(&[b'x'; 64]).to_string(), alloc::format!("\"{}\"", "x".repeat(64)));
        assert_eq!(Name(&[b'x'; 65]).to_string(), alloc::format!("\"{}…\" (65 bytes)", "x".repeat(64)));
    }
}

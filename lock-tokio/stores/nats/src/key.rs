//! Keys of a bucket.

use core::fmt::Write;

use sha2::{Digest, Sha256};

/// The longest key, in bytes. Subjects have no fixed limit, but the server's line has: 4096 bytes.
const MAX: usize = 512;

/// Returns the bucket's key: bytes other than letters, digits, `-`, `_` and `/` become `=` and two
/// digits. If that is too long, its beginning and its hash, after a `==`, which the encoding never
/// contains.
///
/// A dot would separate tokens of a subject, and may be neither first nor last.
pub(crate) fn key(bytes: &[u8]) -> String {
    let mut key = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'/' => key.push(char::from(*byte)),
            _ => _ = write!(key, "={byte:02X}"),
        }
    }
    if key.len() > MAX {
        key.truncate(MAX / 2);
        key.push_str("==");
        for byte in &Sha256::digest(bytes)[..16] {
            let _ = write!(key, "{byte:02x}");
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_name_has_a_key_of_its_own() {
        let names: [&[u8]; 11] =
            [b"job", b"lock:job", b"lock=3Ajob", b"a/b", b"a.b", b".", b"..", b">", b"*", b"\0\xff", b"a b"];
        let long: Vec<Vec<u8>> = (0..3).map(|n| [vec![b'x'; 1023], vec![n]].concat()).collect();
        let keys: HashSet<_> = names.iter().copied().chain(long.iter().map(Vec::as_slice)).map(key).collect();
        assert_eq!(keys.len(), names.len() + long.len());
        for key in keys {
            let valid = |b: u8| b.is_ascii_alphanumeric() || b"-_/=".contains(&b);
            assert!(!key.is_empty() && key.len() <= MAX && key.bytes().all(valid), "{key}");
        }
    }
}

//! Names of Leases.

use core::fmt::Write;

use sha2::{Digest, Sha256};

/// The longest name of an object.
const MAX: usize = 253;

/// The length of a hash in hexadecimal.
const HASH: usize = 32;

/// Returns the name of the Lease of a key: the key itself if it is a DNS subdomain, else its letters and
/// digits and its hash. A key that looks like the latter is hashed too.
pub(crate) fn name(key: &[u8]) -> String {
    if let Ok(text) = core::str::from_utf8(key)
        && is_subdomain(text)
        && !is_hashed(text)
    {
        return text.to_owned();
    }
    let mut name = String::new();
    for byte in key.iter().take(64).map(u8::to_ascii_lowercase) {
        if byte.is_ascii_alphanumeric() {
            name.push(byte.into());
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    if name.is_empty() {
        name.push('x');
    }
    if !name.ends_with('-') {
        name.push('-');
    }
    for byte in &Sha256::digest(key)[..HASH / 2] {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

fn is_subdomain(text: &str) -> bool {
    let is_label = |label: &str| {
        let valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !label.is_empty() && label.bytes().all(valid) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= MAX && text.split('.').all(is_label)
}

/// Returns true if the text may be what [`name`] makes of another key.
fn is_hashed(text: &str) -> bool {
    let hash = text.rsplit('-').next().unwrap_or_default();
    text.contains('-') && hash.len() == HASH && hash.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn subdomains_are_kept() {
        for text in ["job", "my-app.leader", "0", &"a".repeat(MAX)] {
            assert_eq!(name(text.as_bytes()), text);
        }
    }

    #[test]
    fn each_key_has_a_valid_name_of_its_own() {
        let hashed = name(b"lock:job");
        assert!(hashed.starts_with("lock-job-"), "{hashed}");
        let keys: [&[u8]; 12] = [
            b"lock:job",
            hashed.as_bytes(),
            b"Job",
            b"job",
            b"job-",
            b"-job",
            b"a..b",
            b"a/b",
            b"\0",
            b"\xff",
            "ü".as_bytes(),
            b"---",
        ];
        let long: Vec<Vec<u8>> = (0..3).map(|n| [vec![b'x'; 1023], vec![n]].concat()).collect();
        let names: HashSet<_> = keys.iter().copied().chain(long.iter().map(Vec::as_slice)).map(name).collect();
        assert_eq!(names.len(), keys.len() + long.len());
        for name in names {
            assert!(is_subdomain(&name), "{name}");
        }
    }
}

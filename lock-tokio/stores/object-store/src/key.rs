//! Names of objects.

use core::fmt::Write;

use object_store::path::{Path, PathPart};
use sha2::{Digest, Sha256};

/// The longest name of an object below the prefix, in bytes: S3 allows 1024 with the prefix, and file
/// systems 255 for each part.
const MAX: usize = 255;

/// Returns the path of a key: its bytes percent-encoded, as one part. A key whose encoding is too
/// long is named by its beginning and its hash, after a `~`, which the encoding never contains.
pub(crate) fn path(prefix: &Path, key: &[u8]) -> Path {
    let part = PathPart::from(key);
    if part.as_ref().len() <= MAX {
        return prefix.clone().join(part);
    }
    let mut name: String = part.as_ref().chars().take(128).collect();
    name.push('~');
    for byte in &Sha256::digest(key)[..16] {
        let _ = write!(name, "{byte:02x}");
    }
    own(prefix, &name)
}

/// Returns the path of an object that is no lock: its name starts with `~`.
pub(crate) fn own(prefix: &Path, name: &str) -> Path {
    // Only control characters and slashes are invalid.
    PathPart::parse(name).map_or_else(|_| prefix.clone(), |part| prefix.clone().join(part))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_key_has_a_path_of_its_own() {
        let keys: [&[u8]; 12] = [
            b"job",
            b"lock:job",
            b"a/b",
            b"a",
            b"a%2Fb",
            b".",
            b"..",
            b"%2E",
            b"\0",
            b"\xff",
            b"~probe",
            "schlo\u{df}".as_bytes(),
        ];
        let long: Vec<Vec<u8>> = (0..3).map(|n| [vec![b'x'; 1023], vec![n]].concat()).collect();
        let prefix = Path::from("locks/a");
        let paths: HashSet<_> =
            keys.iter().copied().chain(long.iter().map(Vec::as_slice)).map(|key| path(&prefix, key)).collect();
        assert_eq!(paths.len(), keys.len() + long.len());
        assert!(!paths.contains(&own(&prefix, "~probe")));
        for path in paths {
            let name = path.as_ref().strip_prefix("locks/a/").expect("below the prefix");
            assert!(!name.is_empty() && name.len() <= MAX && !name.contains('/'), "{name}");
        }
    }
}

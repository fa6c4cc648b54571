//! Names of keys in the file system.

use alloc::format;
use alloc::string::String;
use std::path::PathBuf;

/// The longest part of a path, in bytes. File systems allow 255, some layers above them less.
const LONGEST: usize = 140;

/// The path of a key's folder, relative.
///
/// Bytes other than lower-case letters, digits, `-`, `_` and `.` in the middle are percent-encoded:
/// upper-case letters too, since some file systems do not tell them apart. A name too long for one
/// folder continues in a folder below; those above it end with `+`, which no other folder does.
// RF2
pub(super) fn path_of(key: &[u8]) -> PathBuf {
    let last = key.len().saturating_sub(1);
    let mut name = String::new();
    for (at, byte) in key.iter().enumerate() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(*byte)),
            b'.' if at > 0 && at < last => name.push('.'),
            byte => name.push_str(&format!("%{byte:02x}")),
        }
    }
    if name.is_empty() {
        // A percent sign without digits is no other key.
        name.push('%');
    }
    let (mut path, mut left) = (PathBuf::new(), &*name);
    while left.len() > LONGEST {
        let (part, rest) = left.split_at(LONGEST);
        path.push(format!("{part}+"));
        left = rest;
    }
    path.push(left);
    path
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Component;

    use super::*;

    #[test]
    fn no_two_keys_share_a_folder_and_none_leaves_the_folder() {
        // RF2
        let long = [b'x'; 1024];
        let zeros = [0; 1024];
        let mut keys: Vec<&[u8]> =
            ["", ".", "..", "../..", "/", "/etc/passwd", "a/b", "a.b", "a%2fb", "Job", "job", "%", "+"]
                .iter()
                .map(|key| key.as_bytes())
                .collect();
        keys.extend([&long[..], &long[..140], &long[..141], &long[..280], &long[..281], &zeros, b"a\0b", b"\xff"]);
        let mut paths = BTreeSet::new();
        for key in &keys {
            let path = path_of(key);
            assert!(path.components().all(|part| matches!(part, Component::Normal(_))), "{path:?}");
            assert!(path.iter().all(|part| part.len() <= 255), "{path:?}");
            assert!(path.as_os_str().len() < 3200, "{path:?}");
            // Also where upper and lower case are the same.
            assert!(paths.insert(path.to_string_lossy().to_lowercase()), "{path:?}");
        }
        assert_eq!(path_of(b"invoice:42"), PathBuf::from("invoice%3a42"));
        // A folder with records is no part of another key's path.
        for (path, other) in paths.iter().flat_map(|path| paths.iter().map(move |other| (path, other))) {
            assert!(path == other || !other.starts_with(&format!("{path}/")), "{path} {other}");
        }
    }
}

//! Edits a snapshot of a stopped server.

use std::fs;
use std::path::{Path, PathBuf};

/// Length of a node's `acl`, `czxid`, `mzxid`, `ctime`, `mtime` and `version`, which precede
/// `cversion`.
const BEFORE_CVERSION: usize = 5 * 8 + 4;
/// The end of the file: a checksum, and the path `/`.
const SEAL: usize = 8 + 4 + 1;

/// Sets the number that the next sequential child of `node` gets, in the newest snapshot below
/// `data`. All later transactions are forgotten.
///
/// # Panics
///
/// If there is no such snapshot or node.
pub(super) fn set_sequence(data: &Path, node: &str, next: i32) {
    let folder = data.join("version-2");
    let files = |prefix: &str| -> Vec<(u64, PathBuf)> {
        let entries = fs::read_dir(&folder).expect("the server's data").flatten();
        let zxid = |path: &Path| u64::from_str_radix(path.file_name()?.to_str()?.strip_prefix(prefix)?, 16).ok();
        entries.filter_map(|entry| Some((zxid(&entry.path())?, entry.path()))).collect()
    };
    let (_, newest) = files("snapshot.").into_iter().max().expect("a snapshot");
    let mut bytes = fs::read(&newest).expect("a snapshot");
    let mut path = i32::try_from(node.len()).expect("short").to_be_bytes().to_vec();
    path.extend(node.as_bytes());
    let at = bytes.windows(path.len()).position(|window| window == path);
    let data_at = at.expect("the node is in the snapshot") + path.len();
    let length = i32::from_be_bytes(bytes[data_at..data_at + 4].try_into().expect("4 bytes"));
    let cversion = data_at + 4 + usize::try_from(length).unwrap_or(0) + BEFORE_CVERSION;
    bytes[cversion..cversion + 4].copy_from_slice(&next.to_be_bytes());
    let body = bytes.len() - SEAL;
    let checksum = u64::from(adler32(&bytes[..body]));
    bytes[body..body + 8].copy_from_slice(&checksum.to_be_bytes());
    fs::write(&newest, bytes).expect("the server's data");
    for (_, log) in files("log.") {
        fs::remove_file(log).expect("the server's data");
    }
}

fn adler32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    (b << 16) | a
}

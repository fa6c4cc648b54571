//! Files that a host reads: passwords and certificates.

use std::fs::{File, metadata};
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;
use std::vec::Vec;

/// The largest file that is read, in bytes.
const MAX_LEN: usize = 1 << 20;

/// Reads a file with a password or certificates, to override `Host::read_file`, or for a host
/// without the driver. Blocks the thread.
///
/// # Errors
///
/// The file cannot be read, it is larger than 1 MiB, or it is not a regular file: opening a pipe
/// that nobody writes to would block, and could not be cancelled.
pub fn read_file(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let path = path.as_ref();
    if !metadata(path)?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut content = Vec::new();
    File::open(path)?.take(MAX_LEN as u64 + 1).read_to_end(&mut content)?;
    if content.len() > MAX_LEN {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "larger than 1 MiB"));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use alloc::string::ToString as _;
    use std::fs;
    use std::process::Command;

    use super::*;

    #[test]
    fn large_files_are_refused() {
        let folder = lock_testkit::temporary();
        let file = folder.path().join("file");
        for (len, expected) in [(0, None), (MAX_LEN, None), (MAX_LEN + 1, Some("larger than 1 MiB"))] {
            fs::write(&file, alloc::vec![b'x'; len]).unwrap();
            let read = read_file(&file).map(|content| content.len()).map_err(|error| error.to_string());
            assert_eq!(read.as_ref().err().map(|text| &**text), expected, "{len}");
            assert!(expected.is_some() || read == Ok(len), "{len}");
        }
        assert_eq!(read_file("/there/is/none").unwrap_err().kind(), ErrorKind::NotFound);
    }

    /// Devices never end, and opening a pipe without a writer blocks.
    #[cfg(unix)]
    #[test]
    fn folders_pipes_and_devices_are_refused() {
        let folder = lock_testkit::temporary();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [folder.path(), &*pipe, Path::new("/dev/zero")] {
            assert_eq!(read_file(path).unwrap_err().to_string(), "not a regular file", "{}", path.display());
        }
        let link = folder.path().join("link");
        fs::write(folder.path().join("file"), "secret").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        assert_eq!(read_file(&link).unwrap(), b"secret");
    }
}

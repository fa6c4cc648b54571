//! Whether a folder is safe to keep locks in.

use alloc::format;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::error::named;

/// # Errors
///
/// Everybody may write to it, or its file system may not be local.
// RF5
pub(super) fn check(folder: &Path) -> io::Result<()> {
    let metadata = fs::metadata(folder).map_err(|error| named("cannot look at the folder", folder, &error))?;
    if writable_by_everybody(&metadata) {
        let shown = folder.display();
        return Err(io::Error::new(
            ErrorKind::PermissionDenied,
            format!("everybody may write to {shown}, and forge a record: chmod o-w {shown}"),
        ));
    }
    check_file_system(folder)
}

#[cfg(unix)]
fn writable_by_everybody(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;

    metadata.mode() & 0o002 != 0
}

#[cfg(not(unix))]
const fn writable_by_everybody(_: &fs::Metadata) -> bool {
    false
}

/// Local file systems, by their magic numbers. Not 9p, virtiofs, FUSE and the like: behind them may
/// be another machine, whose processes do not see the locks of this one.
#[cfg(any(target_os = "linux", target_os = "android"))]
const LOCAL: [(u64, &str); 9] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlayfs"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
];

#[cfg(any(target_os = "linux", target_os = "android"))]
fn check_file_system(folder: &Path) -> io::Result<()> {
    let stat = rustix::fs::statfs(folder).map_err(|error| named("cannot look at the folder", folder, &error.into()))?;
    refuse_unknown(folder, stat.f_type as u64)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn refuse_unknown(folder: &Path, magic: u64) -> io::Result<()> {
    // Some architectures have a signed type of 32 bits.
    let magic = magic & 0xffff_ffff;
    if LOCAL.iter().any(|(local, _)| *local == magic) {
        return Ok(());
    }
    let names = LOCAL.map(|(_, name)| name).join(", ");
    Err(io::Error::new(
        ErrorKind::Unsupported,
        format!(
            "{}: the file system (0x{magic:x}) may be shared with other machines, which would not see these locks; \
             choose a folder on one of {names}",
            folder.display()
        ),
    ))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
const fn check_file_system(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_are_not_known_to_be_local_are_refused() {
        // RF5
        for (name, magic) in [("nfs", 0x6969), ("9p", 0x0102_1997), ("fuse", 0x6573_5546), ("cifs", 0xff53_4d42)] {
            let error = refuse_unknown(Path::new("/srv"), magic).expect_err(name).to_string();
            assert!(error.contains("/srv") && error.contains("ext4"), "{error}");
        }
        assert!(refuse_unknown(Path::new("/srv"), 0xffff_ffff_9123_683e).is_ok(), "sign extension");
        // The kernel's own, where anybody may look.
        let error = check_file_system(Path::new("/proc")).expect_err("it is not for files").to_string();
        assert!(error.contains("0x9fa0"), "{error}");
    }
}

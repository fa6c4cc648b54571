//! Folders that are refused, and names.

use alloc::string::ToString as _;
use std::fs;

use super::super::{FileRegister, error};
use super::record;
use crate::register::{Register as _, RegisterError};
use std::io::{Error, ErrorKind};
use std::path::Path;

#[test]
fn names_of_any_bytes_are_separate_keys() {
    // RF2
    let root = lock_testkit::in_memory();
    let register = FileRegister::open(root.path().join("new/locks")).unwrap();
    let long = [b'x'; 1024];
    let zeros = [0; 1024];
    let keys: [&[u8]; 8] = [b"a", b"A", b"a/b", b"..", b"a\0b", b"\xff\n", &long, &zeros];
    smol::block_on(async {
        for (index, key) in keys.iter().enumerate() {
            assert_eq!(register.read(key).await, Ok(None), "{index}");
            register.write(key, &record(index as u128, None), None).await.unwrap();
        }
        for (index, key) in keys.iter().enumerate() {
            let entry = register.read(key).await.unwrap().unwrap();
            assert_eq!(entry.record, record(index as u128, None));
            assert!(entry.age.unwrap() < lock_testkit::TIMEOUT);
            let next = record(index as u128, Some(&entry));
            assert_eq!(register.write(key, &next, None).await, Err(RegisterError::Conflict));
            let revision = register.write(key, &next, Some(&entry)).await.unwrap();
            assert_eq!(register.write(key, &next, Some(&entry)).await, Err(RegisterError::Conflict));
            assert_eq!(register.read(key).await.unwrap().unwrap().revision, revision);
        }
    });
    assert_eq!(fs::read_dir(root.path().join("new/locks/clients")).unwrap().count(), keys.len());
    drop(register);
    assert_eq!(fs::read_dir(root.path().join("new/locks/clients")).unwrap().count(), 0, "nothing is left");
}

#[test]
fn what_is_no_record_is_never_overwritten() {
    // RF1
    let root = lock_testkit::in_memory();
    let register = FileRegister::open(root.path()).unwrap();
    fs::create_dir_all(root.path().join("locks/job")).unwrap();
    let file = root.path().join("locks/job/7");
    fs::write(&file, "lock-record 2\n").unwrap();
    smol::block_on(async {
        let error = register.read(b"job").await.unwrap_err();
        assert!(matches!(&error, RegisterError::Refused(text) if text.contains("locks/job/7")), "{error:?}");
        assert_eq!(register.write(b"job", &record(1, None), None).await, Err(RegisterError::Conflict));
    });
    assert_eq!(fs::read(&file).unwrap(), b"lock-record 2\n");
}

#[cfg(unix)]
#[test]
fn new_folder_is_private_and_one_that_all_may_write_is_refused() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    // RF5
    let root = lock_testkit::in_memory();
    let folder = root.path().join("a/b");
    drop(FileRegister::open(&folder).unwrap());
    for folder in ["a", "a/b"] {
        let mode = fs::metadata(root.path().join(folder)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{folder}");
    }
    symlink(&folder, root.path().join("link")).unwrap();
    drop(FileRegister::open(root.path().join("link")).unwrap());
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777)).unwrap();
    let error = FileRegister::open(root.path().join("link")).unwrap_err().to_string();
    assert!(error.contains("chmod o-w") && error.contains("a/b"), "{error}");
    fs::write(root.path().join("file"), "").unwrap();
    let error = FileRegister::open(root.path().join("file/locks")).unwrap_err().to_string();
    assert!(error.contains("cannot create the folder"), "{error}");
    let error = FileRegister::open("/proc/locks").unwrap_err().to_string();
    assert!(error.contains("/proc/locks"), "{error}");
}

#[test]
fn folder_that_was_deleted_is_made_anew() {
    // RF6
    let root = lock_testkit::in_memory();
    let register = FileRegister::open(root.path().join("locks")).unwrap();
    smol::block_on(async {
        register.write(b"job", &record(1, None), None).await.unwrap();
        fs::remove_dir_all(root.path().join("locks")).unwrap();
        assert_eq!(register.read(b"job").await, Ok(None));
        let error = register.write(b"job", &record(1, None), None).await.unwrap_err();
        assert!(matches!(error, RegisterError::NotSent(_)), "{error:?}");
        register.write(b"job", &record(1, None), None).await.unwrap();
    });
}

#[test]
fn full_disk_is_no_unknown_outcome() {
    // RF6
    let path = Path::new("locks/job");
    for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
        let error = Error::from(kind);
        assert!(matches!(error::not_applied("cannot write", path, &error), RegisterError::NotSent(_)));
        assert!(matches!(error::of_publication(path, &error), RegisterError::NotSent(_)));
    }
    for kind in [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem] {
        let error = Error::from(kind);
        assert!(matches!(error::not_applied("cannot write", path, &error), RegisterError::Refused(_)));
        assert!(matches!(error::of_publication(path, &error), RegisterError::Refused(_)));
    }
    let error = Error::from_raw_os_error(5);
    assert!(matches!(error::of_publication(path, &error), RegisterError::Unknown(_)));
}

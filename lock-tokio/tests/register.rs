//! Locks in a folder, and on stores of one's own.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use core::cell::RefCell;
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::SystemTime;
use std::{fs, io};

use lock_conformance::stores::TestStore;
use lock_testkit::TIMEOUT;
use lock_tokio::register::{
    Config, Entry, FileConfig, FileRegister, Record, Register, RegisterError, Revision, connect_register_with,
};
use lock_tokio::{Client, ConnectError, Loss, Release, connect_register};
use tokio::sync::oneshot;

mod folder {
    use super::*;

    /// The process's locks are in a folder.
    struct Folder(tempfile::TempDir);

    impl TestStore for Folder {
        type Register = FileRegister;

        fn new() -> Self {
            Self(lock_testkit::in_memory())
        }

        fn make(&self) -> impl FnOnce() -> Result<Self::Register, RegisterError> + Send + 'static {
            let path = self.0.path().to_owned();
            || FileRegister::open(path).map_err(RegisterError::refused)
        }

        fn connect(&self, config: Config) -> Result<Client, ConnectError> {
            let mut settings = FileConfig::new(self.0.path());
            settings.config = config;
            lock_tokio::connect_with(settings)
        }

        fn set_clock_back(&self) {
            for key in fs::read_dir(self.0.path().join("locks")).unwrap() {
                for record in fs::read_dir(key.unwrap().path()).unwrap() {
                    let file = fs::File::options().write(true).open(record.unwrap().path()).unwrap();
                    file.set_modified(SystemTime::now() + Duration::from_secs(3600)).unwrap();
                }
            }
        }

        fn block_on<F: Future>(future: F) -> F::Output {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
        }
    }

    lock_conformance::store_suite!(Folder);
}

type Records = BTreeMap<Vec<u8>, (Record, u64)>;

/// A store that must stay on its thread, and that needs its runtime.
struct Local {
    records: Rc<RefCell<Records>>,
    /// Answered by a task, as clients of servers do.
    turns: tokio::sync::mpsc::UnboundedSender<oneshot::Sender<()>>,
}

impl Local {
    fn new() -> Result<Self, io::Error> {
        let (turns, mut queue) = tokio::sync::mpsc::unbounded_channel::<oneshot::Sender<()>>();
        tokio::spawn(async move {
            while let Some(turn) = queue.recv().await {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let _ = turn.send(());
            }
        });
        Ok(Self { records: Rc::default(), turns })
    }

    async fn turn(&self) -> Result<(), RegisterError> {
        let (sender, receiver) = oneshot::channel();
        self.turns.send(sender).map_err(RegisterError::not_sent)?;
        receiver.await.map_err(RegisterError::unknown)
    }
}

impl Register for Local {
    async fn read(&self, key: &[u8]) -> Result<Option<Entry>, RegisterError> {
        self.turn().await?;
        let records = self.records.borrow();
        Ok(records.get(key).map(|(record, number)| Entry::new(record.clone(), Revision::from(*number))))
    }

    async fn write(&self, key: &[u8], record: &Record, expected: Option<&Entry>) -> Result<Revision, RegisterError> {
        self.turn().await?;
        let mut records = self.records.borrow_mut();
        let number = records.get(key).map(|(_, number)| *number);
        if number != expected.and_then(|entry| entry.revision.as_u64()) {
            return Err(RegisterError::Conflict);
        }
        let number = number.unwrap_or(0) + 1;
        records.insert(key.to_vec(), (record.clone(), number));
        Ok(Revision::from(number))
    }
}

#[tokio::test(flavor = "current_thread")]
async fn store_of_ones_own_lives_in_runtime_of_driver() {
    // D6
    let client = connect_register(Local::new).unwrap();
    let guard = client.lock("a").ttl(Duration::from_secs(1)).acquire().await.unwrap();
    // A task that blocks its worker stops no renewal.
    std::thread::sleep(Duration::from_secs(2));
    assert!(guard.is_held());
    assert_eq!(guard.release().await, Release::Released);
    assert_eq!(client.shutdown(TIMEOUT).await.unreleased, 0);
}

#[test]
fn store_that_is_not_made_is_an_error_of_connect() {
    let error = connect_register(|| Err::<Local, _>(io::Error::other("no such table"))).unwrap_err();
    assert_eq!(error.to_string(), "the store: no such table");
    let error = connect_register(|| -> Result<Local, io::Error> { panic!("planted") }).unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
    let error = connect_register_with(Config::new().request_timeout(Duration::ZERO), Local::new).unwrap_err();
    assert!(matches!(error, ConnectError::Config(_)), "{error}");
    let error = lock_tokio::connect("file:///proc/locks").unwrap_err();
    assert!(error.to_string().contains("/proc/locks"), "{error}");
}

#[tokio::test]
async fn folder_is_named_by_url_and_left_clean() {
    let folder = lock_testkit::in_memory();
    let url = format!("file://{}/a%20b", folder.path().display());
    let settings = || lock_tokio::Settings::parse([&url]).unwrap().prefix("app:");
    let (first, second) =
        (lock_tokio::connect_with(settings()).unwrap(), lock_tokio::connect_on_runtime(settings()).unwrap());
    first.ping().await.unwrap();
    let guard = first.lock("job").acquire().await.unwrap();
    let error = second.lock("job").try_acquire().await.unwrap_err();
    assert!(error.is_busy() && error.to_string().contains("a b"), "{error}");
    let observer = guard.observer();
    assert_eq!(first.shutdown(TIMEOUT).await.unreleased, 0);
    assert_eq!(observer.lost().await, Some(Loss::ShutDown));
    let guard = second.lock("job").try_acquire().await.unwrap();
    assert_eq!(guard.release().await, Release::Released);
    assert_eq!(second.shutdown(TIMEOUT).await.unreleased, 0);
    let folder = folder.path().join("a b");
    let names = |path: &str| -> Vec<_> {
        let entries = fs::read_dir(folder.join(path)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(names("locks"), ["app%3ajob"]);
    // At the end of a shutdown nothing of a client is left.
    assert_eq!(names("clients"), Vec::<String>::new());
    let record = fs::read_to_string(folder.join("locks/app%3ajob").join(&names("locks/app%3ajob")[0])).unwrap();
    assert!(record.contains("held no") && record.contains(&std::process::id().to_string()), "{record}");
}

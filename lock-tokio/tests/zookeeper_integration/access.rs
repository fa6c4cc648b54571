//! Logins, permissions, and chroots that do not exist.

use core::time::Duration;

use lock_testkit::Chroot;
use lock_tokio::zookeeper::Config;

use crate::kit::{assert_clean, failure, in_time, release, shut_down, take, with};

const LIMIT: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_user_are_closed_to_others() {
    let chroot = Chroot::new();
    let url = |login: &str| chroot.url().replace("zk://", &format!("zk://{login}@"));
    let worker = with(Config::parse(&url("worker:s3cret")).unwrap());
    let guard = take(&worker, "a").await;
    // Somebody with another password may neither delete the node nor read it.
    for login in ["worker:wrong", "stranger:s3cret"] {
        let other = with(Config::parse(&url(login)).unwrap());
        let refused = failure(in_time("refused", other.lock("a").wait(LIMIT).acquire()).await);
        assert!(refused.is_refused(), "{refused}");
        assert!(!refused.to_string().contains("s3cret") && !refused.to_string().contains("wrong"), "{refused}");
        shut_down(other).await;
    }
    assert!(guard.is_held());
    release(guard).await;
    shut_down(worker).await;
    assert_clean(&chroot).await;
}

/// As the parents of a lock are. Java's clients and kazoo would fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_chroot_is_created() {
    let chroot = Chroot::new();
    let missing = format!("{}/missing/deep", chroot.path());
    let client = with(Config::parse(&chroot.url().replace(chroot.path(), &missing)).unwrap());
    let guard = take(&client, "a").await;
    assert_eq!(chroot.nodes_of("missing/deep/a").len(), 1);
    release(guard).await;
    shut_down(client).await;
    assert_clean(&chroot).await;
}

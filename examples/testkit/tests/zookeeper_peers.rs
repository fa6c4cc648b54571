//! Facts about kazoo and Curator that our own tests of interoperation rely on.

use std::time::Duration;

use lock_testkit::{Chroot, Proxy, TIMEOUT, Witness, ZooKeeper, ZooKeeperPeer, wait_until};

const SESSION: Duration = Duration::from_secs(2);
/// Curator's name of lock nodes.
const CURATOR: &str = "-lock-";
const KAZOO: &str = "__lock__";

/// `held NODE FENCE`.
fn node(answer: &str) -> String {
    let words: Vec<&str> = answer.split(' ').collect();
    assert_eq!((words[0], words.len()), ("held", 3), "{answer}");
    words[1].to_owned()
}

#[test]
fn kazoo_with_name_of_curator_and_curator_exclude_each_other() {
    let chroot = Chroot::new();
    let mut kazoo = ZooKeeperPeer::kazoo(&chroot.hosts(), SESSION, CURATOR);
    let mut curator = ZooKeeperPeer::curator(&chroot.hosts(), SESSION);

    let of_curator = node(&curator.ask("acquire /a -"));
    assert_eq!(chroot.nodes_of("a"), [of_curator.as_str()]);
    // `_c_`, a UUID with dashes, `-lock-` and the number.
    assert!(of_curator.starts_with("_c_") && of_curator.len() == 3 + 36 + 6 + 10, "{of_curator}");
    assert!(of_curator.contains("-lock-0000000000"), "{of_curator}");
    assert_eq!(kazoo.ask("acquire /a 300"), "busy");
    kazoo.send("acquire /a -");
    assert!(wait_until(TIMEOUT, || chroot.nodes_of("a").len() == 2));
    assert!(kazoo.is_silent());
    assert_eq!(curator.ask("release /a"), "released");
    let of_kazoo = node(&kazoo.line());
    // A UUID without dashes, no `_c_`.
    assert!(of_kazoo.len() == 32 + 6 + 10 && of_kazoo.ends_with("-lock-0000000002"), "{of_kazoo}");
    assert_eq!(curator.ask("acquire /a 300"), "busy");
    assert_eq!(kazoo.ask("release /a"), "released");
    assert!(wait_until(TIMEOUT, || chroot.nodes_of("a").is_empty()));
}

#[test]
fn kazoo_with_its_own_name_and_curator_do_not_exclude_each_other() {
    let chroot = Chroot::new();
    let mut kazoo = ZooKeeperPeer::kazoo(&chroot.hosts(), SESSION, KAZOO);
    let mut curator = ZooKeeperPeer::curator(&chroot.hosts(), SESSION);
    node(&curator.ask("acquire /a -"));
    let of_kazoo = node(&kazoo.ask("acquire /a -"));
    assert!(of_kazoo.len() == 32 + 8 + 10 && of_kazoo.contains(KAZOO), "{of_kazoo}");
    assert_eq!(chroot.nodes_of("a").len(), 2, "both hold the lock");
    assert_eq!((curator.ask("release /a"), kazoo.ask("release /a")), ("released".into(), "released".into()));
    // In the other order, too.
    node(&kazoo.ask("acquire /a -"));
    node(&curator.ask("acquire /a 2000"));
}

/// A container looks like a persistent node, but goes when it is empty.
#[test]
fn curator_makes_container_and_kazoo_persistent_parent() {
    let server = ZooKeeper::builder().container_check(Duration::from_millis(200)).start();
    let hosts = server.address().to_string();
    let mut curator = ZooKeeperPeer::curator(&hosts, SESSION);
    let mut kazoo = ZooKeeperPeer::kazoo(&hosts, SESSION, KAZOO);
    for (peer, path) in [(&mut curator, "/c"), (&mut kazoo, "/k")] {
        node(&peer.ask(&format!("acquire {path} -")));
        assert_eq!(server.stat(path).unwrap().ephemeral_owner, 0);
        assert_eq!(peer.ask(&format!("release {path}")), "released");
    }
    assert!(wait_until(TIMEOUT, || server.nodes_below("/") == ["/k"]));
}

#[test]
fn killed_peer_is_succeeded_after_its_session_and_nobody_overlaps() {
    const TURNS: usize = 300;
    let chroot = Chroot::new();
    let witness = Witness::start();
    let proxies = [(); 2].map(|()| Proxy::start(chroot.server().address()));
    let hosts = |proxy: usize| format!("{}{}", proxies[proxy].address(), chroot.path());
    let mut killed = ZooKeeperPeer::curator(&hosts(0), SESSION);
    let mut kazoo = ZooKeeperPeer::kazoo(&hosts(1), SESSION, CURATOR);
    killed.send(&format!("turns /a 1000000 1 {}", witness.address()));
    kazoo.send(&format!("turns /a {TURNS} 1 {}", witness.address()));
    let turns_of = |who: &str| witness.turns().iter().filter(|turn| turn.who == who).count();
    for cut in 1..4 {
        assert!(wait_until(TIMEOUT, || turns_of("curator") >= 20 * cut));
        proxies[cut % 2].cut();
    }
    killed.kill();
    assert_eq!(kazoo.line(), format!("done {TURNS}"));
    assert_eq!(turns_of("kazoo"), TURNS);
}

#[test]
fn curator_elects_by_latch_nodes_whose_data_are_ids() {
    let chroot = Chroot::new();
    let mut first = ZooKeeperPeer::curator(&chroot.hosts(), SESSION);
    let mut second = ZooKeeperPeer::curator(&chroot.hosts(), SESSION);
    assert_eq!((first.ask("latch /e one"), first.line()), ("latched".into(), "elected one".into()));
    assert_eq!(second.ask("latch /e two"), "latched");
    assert!(wait_until(TIMEOUT, || chroot.nodes_of("e").len() == 2));
    assert_eq!(second.ask("leader /e"), "leader one");
    let nodes = chroot.nodes_of("e");
    assert!(nodes.iter().all(|node| node.starts_with("_c_") && node.contains("-latch-")), "{nodes:?}");
    let data = |node: &String| chroot.server().get(&format!("{}/e/{node}", chroot.path()));
    let mut ids: Vec<String> = nodes.iter().map(data).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["one", "two"]);
    first.kill();
    assert_eq!(second.line(), "elected two");
}

#[test]
fn plain_lock_and_write_lock_of_curator_do_not_exclude_each_other() {
    let chroot = Chroot::new();
    let mut curator = ZooKeeperPeer::curator(&chroot.hosts(), SESSION);
    node(&curator.ask("acquire /a -"));
    assert_eq!(curator.ask("write /a 2000"), "held");
    let nodes = chroot.nodes_of("a");
    assert!(nodes.iter().any(|node| node.contains("-__WRIT__0000000001")), "{nodes:?}");
}

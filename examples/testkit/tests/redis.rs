//! The Redis servers behave as documented.

use std::process::Command;

use lock_testkit::{Redis, TIMEOUT, Value, wait_until};

#[test]
fn data_survives_restart_only_with_append_only() {
    let mut forgetful = Redis::start();
    forgetful.cli(&["SET", "k", "v"]);
    forgetful.restart();
    assert_eq!(forgetful.keys(), [""; 0]);

    let mut faithful = Redis::builder().append_only().start();
    let port = faithful.port();
    faithful.cli(&["SET", "k", "v"]);
    faithful.kill();
    faithful.restart();
    assert_eq!((faithful.port(), faithful.keys()), (port, vec!["k".to_owned()]));
    faithful.restart_empty();
    assert_eq!(faithful.keys(), [""; 0]);
}

#[test]
fn paused_server_replies_only_after_resume() {
    let redis = Redis::start();
    redis.cli(&["SET", "k", "v"]);
    redis.pause();
    let mut connection = lock_testkit::Connection::open(redis.address(), std::time::Duration::from_millis(200))
        .expect("the kernel accepts");
    connection.command(&["GET", "k"]).expect_err("a stopped server answered");
    redis.resume();
    assert_eq!(redis.cli(&["GET", "k"]), "v");
}

#[test]
fn builder_configures_users_sockets_and_replicas() {
    let master = Redis::builder().password("pw").acl("worker", "on >secret ~lock:* +@all").unix_socket().start();
    assert_eq!(master.url(), format!("redis://:pw@127.0.0.1:{}", master.port()));
    assert!(master.socket().exists());
    let mut worker = master.connect();
    assert_eq!(worker.command(&["AUTH", "worker", "secret"]).expect("an answer"), Value::Text(b"OK".to_vec()));
    assert!(
        matches!(worker.command(&["SET", "k", "v"]).expect("an answer"), Value::Error(e) if e.starts_with("NOPERM"))
    );

    let replica = Redis::builder().replica_of(&master).start();
    master.cli(&["SET", "k", "v"]);
    assert!(wait_until(TIMEOUT, || replica.cli(&["GET", "k"]) == "v"), "nothing was replicated");
    assert!(replica.cli(&["SET", "k", "w"]).starts_with("(error) READONLY"));
}

#[test]
fn monitor_distinguishes_client_and_script_commands() {
    let redis = Redis::start();
    let monitor = redis.monitor();
    redis.cli(&["EVAL", "return redis.call('INCR', KEYS[1])", "1", "n"]);
    let all = monitor.take();
    let shown: Vec<(bool, String)> = all.iter().map(|seen| (seen.is_lua(), seen.verb())).collect();
    assert_eq!(shown, [(false, "EVAL".to_owned()), (true, "INCR".to_owned())]);
    assert_eq!(monitor.take(), []);
    redis.cli(&["GET", "n"]);
    assert_eq!(monitor.take_client_commands().len(), 1);
}

#[test]
fn drop_stops_process() {
    let redis = Redis::start();
    let pid = redis.pid().to_string();
    let alive = || Command::new("kill").args(["-0", &pid]).status().is_ok_and(|status| status.success());
    assert!(alive());
    drop(redis);
    assert!(!alive(), "the server outlives its owner");
}

//! Commands that the server receives, and the keys that stay.

use lock_testkit::{MonitoredCommand, Redis};

use crate::harness::{FENCE_KEY, Scratch, Tool, assert_clean, run, runtime};

#[test]
fn uncontended_acquire_and_release_are_one_command_each() {
    let redis = Redis::start();
    let runtime = runtime();
    let monitor = redis.monitor();
    let scratch = Scratch::new();
    let (file, go) = (scratch.path("log"), scratch.path("go"));
    let script = format!("echo ready > {file}; until [ -e {go} ]; do sleep 0.01; done");
    let tool = Tool::on(&redis, &["--runtime", runtime, "job", "--", "sh", "-c", &script]);
    scratch.line("log");
    let taking: Vec<MonitoredCommand> = monitor.take_client_commands();
    assert_eq!(taking.len(), 1, "{runtime}: {taking:?}");
    assert!(taking[0].args.contains(&"job".to_owned()), "{runtime}: {taking:?}");
    std::fs::write(go, "").unwrap();
    assert_eq!(tool.end().code, 0);
    let releasing = monitor.take_client_commands();
    assert_eq!(releasing.len(), 1, "{runtime}: {releasing:?}");
    // Nobody waited, so there is no wake-up key.
    assert_eq!(redis.keys(), [FENCE_KEY], "{runtime}");
    assert_clean(&redis);
}

#[test]
fn unix_socket_is_supported() {
    let redis = Redis::builder().unix_socket().start();
    let url = format!("unix://{}", redis.socket().display());
    let runtime = runtime();
    let ended = Tool::start(&["--backend", &url, "--runtime", runtime, "job", "--", "true"]).end();
    assert_eq!(ended.code, 0, "{runtime}: {ended:?}");
}

#[test]
fn databases_are_isolated() {
    let redis = Redis::start();
    let url = format!("{}/3", redis.url());
    let holder = Tool::start(&["--backend", &url, "job"]);
    holder.wait_for_out("held job");
    assert_eq!(run(&redis, &["--wait", "0", "job", "--", "true"]).code, 0);
    assert_eq!(Tool::start(&["--backend", &url, "--wait", "0", "job", "--", "true"]).end().code, 75);
    assert_eq!(holder.terminate().code, 0);
}

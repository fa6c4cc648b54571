//! Exit codes of failed acquisitions.

use core::time::Duration;
use std::fs;
use std::io::Read as _;
use std::process::{Command, Stdio};

use lock_testkit::Redis;

use crate::harness::{FENCE_KEY, LONG, PROGRAM, RUNTIMES, Scratch, Tool, assert_clean, run, runtime};

#[test]
fn busy_and_unreachable_have_distinct_exit_codes() {
    let mut redis = Redis::start();
    let holder = Tool::on(&redis, &["job"]);
    holder.wait_for_out("held job");
    let runtime = runtime();
    for wait in ["0", "300ms"] {
        let ended = run(&redis, &["--runtime", runtime, "--wait", wait, "job", "--", "true"]);
        assert_eq!(ended.code, 75, "{runtime} {wait}: {ended:?}");
    }
    assert_eq!(holder.terminate().code, 0);
    redis.kill();
    for wait in ["0", "300ms"] {
        let ended = run(&redis, &["--runtime", runtime, "--wait", wait, "job", "--", "true"]);
        assert_eq!(ended.code, 69, "{runtime} {wait}: {ended:?}");
        assert!(ended.took < Duration::from_secs(8), "{runtime} {wait}: {ended:?}");
    }
}

/// Opening the file blocks, as on a file system that hangs: another process has a lease on it, and
/// the system waits 45 s for that. A server's name that is not resolved blocks likewise.
#[test]
fn wait_ends_while_reading_a_file_blocks() {
    const LEASE: &str = "import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('ready', flush=True)
sys.stdin.read()";
    let (redis, scratch) = (Redis::start(), Scratch::new());
    let file = scratch.path("password");
    let mut command = Command::new("python3");
    let mut lease = command.args(["-c", LEASE, &file]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    lease.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let url = format!("redis://app@{}?password_file={file}", redis.address());
    let ended = Tool::start(&["--backend", &url, "--wait", "300ms", "job", "--", "true"]).end();
    assert_eq!(ended.code, 69, "{ended:?}");
    assert!(ended.err.contains("has not answered") && ended.took < LONG, "{ended:?}");
    // The end of its input ends it.
    drop(lease.stdin.take());
    lease.wait().unwrap();
}

#[test]
fn unusable_password_files_are_named() {
    let (redis, scratch) = (Redis::start(), Scratch::new());
    let [pipe, empty, large] = ["pipe", "empty", "large"].map(|name| scratch.path(name));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::write(&empty, "").unwrap();
    fs::write(&large, vec![b'x'; 2 << 20]).unwrap();
    for (file, why) in [
        (&*pipe, "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("/tmp", "not a regular file"),
        (&*empty, "no password in it"),
        (&*large, "larger than 1 MiB"),
    ] {
        let url = format!("redis://app@{}?password_file={file}", redis.address());
        let ended =
            Tool::start(&["--backend", &url, "--runtime", runtime(), "--wait", "300ms", "job", "--", "true"]).end();
        assert_eq!(ended.code, 69, "{ended:?}");
        assert!(ended.err.contains(&format!("{file}: {why}")) && ended.took < LONG, "{ended:?}");
    }
}

#[test]
fn unlimited_wait_continues_until_server_starts() {
    let mut redis = Redis::start();
    redis.kill();
    let tools = RUNTIMES.map(|runtime| Tool::on(&redis, &["--runtime", runtime, "job", "--", "true"]));
    for tool in &tools {
        tool.wait_for_err("too few servers answer");
        tool.wait_for_err("refused the connection");
    }
    redis.restart();
    for tool in tools {
        assert_eq!(tool.end().code, 0);
    }
}

#[test]
fn login_and_permission_errors_exit_with_77() {
    let redis = Redis::builder()
        .password("pw")
        .acl("worker", "on >secret ~lock:* +@all")
        .acl("reader", "on >secret ~* +@read")
        .start();
    assert_eq!(run(&redis, &["lock:a", "--", "true"]).code, 0);
    let runtime = runtime();
    let none = format!("redis://127.0.0.1:{}", redis.port());
    for (url, name) in [
        (redis.url_with("worker", "wrong"), "lock:a"),
        (none, "lock:a"),
        (redis.url_with("reader", "secret"), "lock:a"),
        (redis.url_with("worker", "secret"), "elsewhere"),
    ] {
        let ended = Tool::start(&["--backend", &url, "--runtime", runtime, name, "--", "true"]).end();
        assert_eq!(ended.code, 77, "{runtime} {url} {name}: {ended:?}");
        assert!(!ended.err.contains("secret") && !ended.err.contains("wrong@"), "a password is shown: {ended:?}");
        assert_eq!(redis.cli(&["EXISTS", name]), "0", "something was left behind");
    }
}

#[test]
fn key_of_other_type_exits_with_65() {
    let redis = Redis::start();
    redis.cli(&["RPUSH", "data", "1"]);
    let runtime = runtime();
    let ended = run(&redis, &["--runtime", runtime, "data", "--", "true"]);
    assert_eq!(ended.code, 65, "{runtime}: {ended:?}");
    assert_eq!(redis.keys(), ["data"].map(str::to_owned).into_iter().chain(fence(&redis)).collect::<Vec<_>>());
}

fn fence(redis: &Redis) -> Option<String> {
    redis.keys().into_iter().find(|key| key == FENCE_KEY)
}

#[test]
fn usage_error_is_one_line_naming_cause() {
    let redis = Redis::start();
    let (url, long) = (redis.url(), "n".repeat(513));
    for (line, part) in [
        (&["--backend", &url, "--backend", "redis://127.0.0.1:1", "job"][..], "2 nodes"),
        (
            &["--backend", &url, "--backend", "redis://b", "--backend", "redis://c", "--backend", "redis://d", "job"],
            "4 nodes",
        ),
        (&["--backend", &url, "--backend", "etcd://127.0.0.1:1", "job"], "one URL"),
        (&["--backend", "etcd://127.0.0.1:1", "--backend", "etcd://127.0.0.1:2", "job"], "etcd://a,b,c"),
        (&["--backend", "etcd://127.0.0.1:1", "--ttl", "0", "job"], "0ns"),
        (&["--backend", "etcd://127.0.0.1:1", &long], "513"),
        (&["--backend", "ftp://127.0.0.1:1", "job"], "backend"),
        (&["--backend", &url, "--ttl", "0", "job"], "TTL"),
        (&["--backend", &url, "--ttl", "1ms", "job"], "1ms"),
        (&["--backend", &url, "--ttl", "soon", "job"], "soon"),
        (&["--backend", &url, &long], "513"),
        (&["--backend", &url, ""], "1 to 512"),
        (&["--backend", &url], "<NAME>"),
    ] {
        let ended = Tool::start(line).end();
        assert_eq!(ended.code, 64, "{line:?}: {ended:?}");
        assert!(ended.err.contains(part), "{line:?}: {ended:?}");
        assert_eq!(ended.err.lines().count(), 1, "{ended:?}");
    }
    let ended = Tool::start(&["--help"]).end();
    assert_eq!(ended.code, 0, "{ended:?}");
    for part in ["--backend", "prints `held NAME fence=N ttl=MS`", "A second signal", "released after a signal"] {
        assert!(ended.out.contains(part), "{part}: {ended:?}");
    }
}

#[test]
fn help_version_completions_and_manual_go_to_stdout() {
    for (line, part) in [
        (&["--help"][..], "Usage: with-lock [OPTIONS] <NAME> [-- <COMMAND>...]"),
        (&["--version"], concat!("with-lock ", env!("CARGO_PKG_VERSION"), "\n")),
        (&["--completions", "bash"], "--quarantine"),
        (&["--man"], ".TH with-lock 1"),
    ] {
        let output = Command::new(PROGRAM).args(line).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && output.stderr.is_empty() && text.contains(part), "{line:?}: {text}");
    }
}

#[test]
fn backend_is_read_from_environment() {
    let redis = Redis::start();
    let ended = Tool::start_with(&["job", "--", "true"], &[("LOCK_BACKEND", &redis.url())]).end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_clean(&redis);
}

/// A password is never needed on a command line.
#[test]
fn password_is_read_from_environment_or_file() {
    let redis = Redis::builder().password("pw").unix_socket().acl("app", "on >s3cret ~* &* +@all").start();
    let file = redis.socket().with_file_name("password");
    fs::write(&file, "s3cret\n").unwrap();
    let (address, shown) = (redis.address(), file.display());
    let runtime = runtime();
    for (url, password, code) in [
        (format!("redis://{address}?user=app"), "s3cret", 0),
        (format!("redis://{address}"), "pw", 0),
        (format!("redis://app:s3cret@{address}"), "of another", 0),
        (format!("redis://app@{address}?password_file={shown}"), "of another", 0),
        (format!("redis://{address}?user=app"), "wrong!", 77),
    ] {
        let args = ["--runtime", runtime, "--backend", &url, "job", "--", "true"];
        let ended = Tool::start_with(&args, &[("LOCK_PASSWORD", password)]).end();
        assert_eq!(ended.code, code, "{runtime} {url}: {ended:?}");
        assert!(!ended.err.contains("s3cret") && !ended.err.contains("wrong!"), "{ended:?}");
    }
    assert_clean(&redis);
}

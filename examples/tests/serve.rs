//! `serve` with the clients of the servers' authors: redis-cli and etcdctl.
// S15
#![cfg(unix)]

use core::time::Duration;
use std::io::{BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// The program, killed at the end.
struct Serve {
    child: Child,
    output: BufReader<ChildStdout>,
    names: Vec<(String, String)>,
}

impl Serve {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_serve"));
        // Should the test be killed, the program ends by itself.
        command.args(args).args(["--run-for", "60s"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("serve starts");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut names = Vec::new();
        loop {
            let line = read_line(&mut output);
            match line.split_once(' ') {
                Some((name, place)) => names.push((name.to_owned(), place.to_owned())),
                None if line == "ready" => break,
                None => panic!("serve says {line:?}"),
            }
        }
        Self { child, output, names }
    }

    fn place(&self, name: &str) -> &str {
        let found = self.names.iter().find(|(known, _)| known == name);
        found.map(|(_, place)| place.as_str()).unwrap_or_else(|| panic!("no {name}"))
    }

    fn port(&self, name: &str) -> &str {
        self.place(name).rsplit(':').next().expect("a port")
    }

    /// Sends a command to the control port, and returns the reply up to `ok` or an error.
    fn control(&self, command: &str) -> String {
        self.control_bytes(format!("{command}\n").as_bytes())
    }

    fn control_bytes(&self, command: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.place("control")).expect("the control port");
        stream.write_all(command).expect("a command");
        let mut replies = BufReader::new(stream);
        let mut text = String::new();
        loop {
            let line = read_line(&mut replies);
            if line == "ok" {
                return text;
            }
            text.push_str(&line);
            text.push('\n');
            if line.starts_with("error: ") {
                return text;
            }
        }
    }

    fn redis_cli(&self, name: &str, args: &[&str]) -> String {
        run(Command::new(program("REDIS_CLI", "redis-cli")).args(["-p", self.port(name)]).args(args))
    }

    fn etcdctl(&self, name: &str, args: &[&str]) -> String {
        let mut command = Command::new(program("ETCDCTL", "etcdctl"));
        command.env("ETCDCTL_API", "3").args(["--endpoints", self.place(name), "--command-timeout", "20s"]);
        run(command.args(args))
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program(variable: &str, default: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| default.to_owned())
}

fn read_line(from: &mut impl std::io::BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("a line");
    assert!(!line.is_empty(), "the end of the output");
    line.trim_end().to_owned()
}

/// Runs a client, and returns what it prints.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).trim_end().to_owned()
}

#[test]
fn redis_cli_uses_simulated_server_through_faults() {
    // S15
    let serve = Serve::start(&["--redis", "2"]);
    assert_eq!(serve.redis_cli("redis0", &["SET", "lock", "me", "NX", "PX", "60000"]), "OK");
    assert_eq!(serve.redis_cli("redis0", &["SET", "lock", "you", "NX", "PX", "60000"]), "");
    assert_eq!(serve.redis_cli("redis1", &["EXISTS", "lock"]), "0");
    let script =
        "if redis.call(\"get\",KEYS[1]) == ARGV[1] then\n return redis.call(\"del\",KEYS[1])\nelse\n return 0\nend";
    assert_eq!(serve.redis_cli("redis0", &["EVAL", script, "1", "lock", "you"]), "0");
    assert!(serve.redis_cli("redis0", &["EVAL", "return 1", "0"]).contains("runs no Lua"));
    assert_eq!(serve.control("keys redis0"), "lock\n");

    // A stale replica takes over: the lock is there again.
    assert_eq!(serve.control("stop-replication redis0"), "");
    assert_eq!(serve.redis_cli("redis0", &["EVAL", script, "1", "lock", "me"]), "1");
    assert_eq!(serve.redis_cli("redis0", &["EXISTS", "lock"]), "0");
    assert_eq!(serve.control("promote redis0"), "");
    assert_eq!(serve.redis_cli("redis0", &["GET", "lock"]), "me");

    // Its clock passes the TTL.
    assert_eq!(serve.control("clock redis0 +2m"), "");
    assert_eq!(serve.redis_cli("redis0", &["EXISTS", "lock"]), "0");

    assert_eq!(serve.control("delay redis0 300ms out"), "");
    let start = Instant::now();
    assert_eq!(serve.redis_cli("redis0", &["PING"]), "PONG");
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert_eq!(serve.control("delay redis0 0s"), "");

    serve.redis_cli("redis0", &["SET", "kept", "1"]);
    assert_eq!(serve.control("kill redis0"), "");
    assert!(!serve.redis_cli("redis0", &["PING"]).contains("PONG"));
    assert_eq!(serve.control("start redis0"), "");
    assert_eq!(serve.redis_cli("redis0", &["EXISTS", "kept"]), "1");
    assert_eq!(serve.control("start redis0 empty"), "");
    assert_eq!(serve.redis_cli("redis0", &["EXISTS", "kept"]), "0");

    for (what, word) in [
        ("pause redis7", "redis7"),
        ("dance", "expected one of"),
        ("evict redis0 none", "no key"),
        ("delay redis0 584542046090y", "365days"),
        ("delay redis0 18446744073709551615s1000000000ns", "is no time"),
    ] {
        let error = serve.control(what);
        assert!(error.starts_with("error: ") && error.contains(word), "{error}");
    }
    let error = serve.control_bytes(b"\xff\n");
    assert!(error.starts_with("error: "), "{error}");
}

/// The program could end before the reply was sent.
#[test]
fn quit_has_a_reply() {
    for _ in 0..20 {
        let mut serve = Serve::start(&[]);
        assert_eq!(serve.control("quit"), "");
        assert_eq!(serve.child.wait().expect("its end").code(), Some(0));
    }
}

#[test]
fn client_that_closes_its_side_gets_its_replies() {
    let serve = Serve::start(&["--redis", "1"]);
    for delay in ["0s", "100ms"] {
        assert_eq!(serve.control(&format!("delay redis0 {delay} out")), "");
        let mut client = TcpStream::connect(format!("127.0.0.1:{}", serve.port("redis0"))).expect("the server's port");
        client.write_all(b"PING\r\n").expect("a command");
        client.shutdown(Shutdown::Write).expect("the end of the commands");
        let mut replies = String::new();
        client.read_to_string(&mut replies).expect("the replies, and their end");
        assert_eq!(replies, "+PONG\r\n", "{delay}");
    }
}

/// Requests that a fault holds back are answered after it.
#[test]
fn paused_and_cut_servers_answer_later() {
    let serve = Serve::start(&["--redis", "1", "--etcd", "1"]);
    for (begin, end) in [("pause redis0", "continue redis0"), ("cut redis0 in", "heal redis0")] {
        assert_eq!(serve.control(begin), "");
        let mut client = Command::new(program("REDIS_CLI", "redis-cli"));
        let client = client.args(["-p", serve.port("redis0"), "PING"]).stdout(Stdio::piped()).spawn();
        let mut client = client.expect("redis-cli");
        std::thread::sleep(Duration::from_millis(300));
        assert!(client.try_wait().expect("its state").is_none(), "no answer while {begin}");
        assert_eq!(serve.control(end), "");
        let output = client.wait_with_output().expect("its output");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), "PONG", "{end}");
    }
    assert_eq!(serve.control("pause etcd0"), "");
    assert_eq!(serve.control("continue etcd0"), "");
    assert_eq!(serve.etcdctl("etcd0", &["put", "a", "1"]), "OK");
}

#[test]
fn etcdctl_uses_simulated_cluster() {
    // S15
    let serve = Serve::start(&["--redis", "0", "--etcd", "3"]);
    assert_eq!(serve.etcdctl("etcd0", &["put", "a", "1"]), "OK");
    assert_eq!(serve.etcdctl("etcd1", &["put", "a", "2", "--prev-kv"]), "OK\na\n1");
    assert_eq!(serve.etcdctl("etcd2", &["get", "a"]), "a\n2");
    assert_eq!(serve.etcdctl("etcd2", &["get", "a", "--rev", "2"]), "a\n1");
    assert_eq!(serve.etcdctl("etcd0", &["put", "b", "3"]), "OK");
    assert_eq!(serve.etcdctl("etcd0", &["get", "", "--from-key", "--order", "DESCEND", "--keys-only"]), "b\n\na");
    assert_eq!(serve.etcdctl("etcd0", &["get", "", "--from-key", "--limit", "1", "--print-value-only"]), "2");
    assert!(serve.etcdctl("etcd0", &["member", "list", "-w", "fields"]).contains(serve.place("etcd2")));

    // A lease with a key, and its end.
    let granted = serve.etcdctl("etcd0", &["lease", "grant", "100"]);
    let id = granted.split(' ').nth(1).unwrap_or_else(|| panic!("{granted}")).to_owned();
    assert_eq!(serve.etcdctl("etcd0", &["put", "leased", "x", "--lease", &id]), "OK");
    assert!(serve.etcdctl("etcd0", &["lease", "list"]).contains(&id));
    let left = serve.etcdctl("etcd0", &["lease", "timetolive", &id, "--keys"]);
    assert!(left.contains("granted with TTL(100s)") && left.contains("[leased]"), "{left}");
    assert!(serve.etcdctl("etcd0", &["lease", "keep-alive", "--once", &id]).contains("keepalived with TTL(100)"));
    assert!(serve.etcdctl("etcd0", &["lease", "revoke", &id]).contains("revoked"));
    assert_eq!(serve.etcdctl("etcd0", &["get", "leased"]), "");

    // The history of a key, by a watch.
    let mut watch = Command::new(program("ETCDCTL", "etcdctl"));
    let watch = watch.env("ETCDCTL_API", "3").args(["--endpoints", serve.place("etcd1"), "watch", "a", "--rev", "1"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("etcdctl");
    let mut events = BufReader::new(watch.stdout.take().expect("its output"));
    for expected in ["PUT", "a", "1", "PUT", "a", "2"] {
        assert_eq!(read_line(&mut events), expected);
    }
    assert_eq!(serve.etcdctl("etcd0", &["del", "a", "--prev-kv"]), "1\na\n2");
    assert_eq!(read_line(&mut events), "DELETE");
    watch.kill().expect("etcdctl ends");
    watch.wait().expect("etcdctl ended");
    assert!(serve.etcdctl("etcd0", &["compact", "3"]).contains("compacted revision 3"));
    assert!(serve.etcdctl("etcd0", &["get", "a", "--rev", "2"]).contains("has been compacted"));

    // A lock, after the death of the leader.
    assert_eq!(serve.control("kill etcd0"), "");
    let held = serve.etcdctl("etcd1", &["lock", "stock", "echo", "held"]);
    assert!(held.contains("held"), "{held}");
    assert_eq!(serve.control("start etcd0"), "");
    assert_eq!(serve.etcdctl("etcd0", &["get", "b"]), "b\n3");
}

#[test]
fn plan_is_carried_out_and_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = folder.path().join("plan");
    std::fs::write(&plan, "# what happens\n100ms pause redis0\n\n300ms continue redis0\n400ms quit\n").expect("a plan");
    let mut serve = Serve::start(&["--plan", plan.to_str().expect("a path")]);
    assert_eq!(read_line(&mut serve.output), "100ms pause redis0: ok");
    assert_eq!(read_line(&mut serve.output), "300ms continue redis0: ok");
    assert_eq!(read_line(&mut serve.output), "400ms quit: ok");
    assert_eq!(serve.child.wait().expect("its end").code(), Some(0));

    std::fs::write(&plan, "1s pause redis0\nsoon kill redis0\n").expect("a plan");
    let wrong = run(Command::new(env!("CARGO_BIN_EXE_serve")).args(["--plan", plan.to_str().expect("a path")]));
    assert!(wrong.contains("line 2"), "{wrong}");
}

#[test]
fn port_in_use_is_named_with_its_server() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    for (option, name) in [("--redis-port", "redis0"), ("--etcd-port", "etcd0"), ("--control", "--control")] {
        let args = [option, &port, "--etcd", "1", "--run-for", "60s"];
        let output = Command::new(env!("CARGO_BIN_EXE_serve")).args(args).output().expect("serve ends");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.starts_with(&format!("serve: {name}, port {port}: ")), "{told}");
        assert_eq!(output.status.code(), Some(1));
    }
    let args = ["--redis", "2", "--redis-port", "65535", "--run-for", "60s"];
    let output = Command::new(env!("CARGO_BIN_EXE_serve")).args(args).output().expect("serve ends");
    let told = String::from_utf8_lossy(&output.stderr);
    // Or 65535 is in use.
    assert!(told.starts_with("serve: redis1: the ports end at 65535") || told.starts_with("serve: redis0, "), "{told}");
}

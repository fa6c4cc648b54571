//! Runs the programs on real servers.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use lock_testkit::{Etcd, Redis};

enum Server {
    Redis(Redis),
    Etcd(Etcd),
}

impl Server {
    fn url(&self) -> String {
        match self {
            Self::Redis(redis) => redis.url(),
            Self::Etcd(etcd) => format!("http://{}", etcd.address()),
        }
    }

    fn has_key(&self) -> bool {
        match self {
            Self::Redis(redis) => redis.cli(&["EXISTS", "a"]) == "1",
            Self::Etcd(etcd) => !etcd.keys_of("a/").is_empty(),
        }
    }

    fn kill(&mut self) {
        match self {
            Self::Redis(redis) => redis.kill(),
            Self::Etcd(etcd) => etcd.kill(),
        }
    }
}

/// A running program.
struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(program: &str, server: &Server, seconds: u32) -> Self {
        let mut command = Command::new(program);
        command.args([&server.url(), "a", &seconds.to_string()]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a program");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line
    }

    /// The last line, and whether it ended well.
    fn end(mut self) -> (String, bool) {
        let mut last = String::new();
        loop {
            match self.line() {
                line if line.is_empty() => break,
                line => last = line,
            }
        }
        (last, self.child.wait().expect("its status").success())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn test(program: &str, mut server: Server) {
    // It is held past its TTL of 3 s, and another one waits for it.
    let mut first = Program::start(program, &server, 5);
    let held = first.line();
    assert!(held.starts_with("held, fencing token Some("), "{held}");
    let since = Instant::now();
    let mut second = Program::start(program, &server, 60);
    let held = second.line();
    assert!(held.starts_with("held, fencing token Some("), "{held}");
    assert!(since.elapsed() >= Duration::from_millis(4_500), "{:?}", since.elapsed());
    let (last, good) = first.end();
    assert!(last.starts_with("released: Released") && good, "{last}");
    assert!(server.has_key());

    // The server dies: the holder stops in time.
    server.kill();
    let since = Instant::now();
    loop {
        let line = second.line();
        assert!(!line.is_empty() && !line.starts_with("released"), "{line}");
        if line.to_lowercase().starts_with("lost") {
            break;
        }
    }
    assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
    let (last, good) = second.end();
    assert!(last.starts_with("released: Unknown") && !good, "{last}");
}

#[test]
fn invalid_time_is_refused_before_lock_is_acquired() {
    let redis = Server::Redis(Redis::start());
    for program in [
        env!("CARGO_BIN_EXE_std-bytes"),
        env!("CARGO_BIN_EXE_redis-sync"),
        env!("CARGO_BIN_EXE_redis-async"),
        env!("CARGO_BIN_EXE_fred"),
    ] {
        let output = Command::new(program).args([&redis.url(), "a", "soon"]).output().expect("a program");
        assert!(!output.status.success() && output.stdout.is_empty(), "{program}: {output:?}");
        assert!(!redis.has_key(), "{program}");
    }
}

#[test]
fn std_bytes() {
    test(env!("CARGO_BIN_EXE_std-bytes"), Server::Redis(Redis::start()));
}

/// The machine asks for the content of the file.
#[test]
fn std_bytes_reads_password_file() {
    let redis = Redis::builder().acl("app", "on >sesame ~* &* +@all").start();
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let url = format!("redis://app@{}?password_file={}", redis.address(), file.path().display());
    for (password, good) in [("sesame\n", true), ("wrong", false)] {
        std::fs::write(file.path(), password).expect("it is writable");
        let output = Command::new(env!("CARGO_BIN_EXE_std-bytes")).args([&url, "a", "0"]).output().expect("a program");
        assert_eq!(output.status.success(), good, "{output:?}");
    }

    // An empty file is no password: the program waits for one.
    std::fs::write(file.path(), "\n").expect("it is writable");
    let mut command = Command::new(env!("CARGO_BIN_EXE_std-bytes"));
    let mut child = command.args([&url, "a", "0"]).stderr(Stdio::piped()).spawn().expect("a program");
    let (mut errors, mut line) = (BufReader::new(child.stderr.take().expect("it is piped")), String::new());
    errors.read_line(&mut line).expect("text");
    assert!(line.starts_with("waiting: "), "{line}");
    std::fs::write(file.path(), "sesame\n").expect("it is writable");
    assert!(child.wait().expect("its end").success());
}

#[test]
fn redis_sync() {
    test(env!("CARGO_BIN_EXE_redis-sync"), Server::Redis(Redis::start()));
}

#[test]
fn redis_async() {
    test(env!("CARGO_BIN_EXE_redis-async"), Server::Redis(Redis::start()));
}

#[test]
fn fred() {
    test(env!("CARGO_BIN_EXE_fred"), Server::Redis(Redis::start()));
}

#[test]
fn tonic_channel() {
    test(env!("CARGO_BIN_EXE_tonic-channel"), Server::Etcd(Etcd::start()));
}

#[test]
fn etcd_client() {
    test(env!("CARGO_BIN_EXE_etcd-client"), Server::Etcd(Etcd::start()));
}

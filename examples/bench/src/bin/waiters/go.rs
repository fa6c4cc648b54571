//! The mutex of etcd's Go package, in a separate process.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lock_testkit::Etcd;

use crate::results::{NAME, Outcome, Setup, Snapshot, entered};

/// Where Debian's packages install the sources of Go libraries.
const GOPATH: &str = "/usr/share/gocode";

/// The compiled program.
pub struct Peer(PathBuf);

/// Builds it next to the other programs.
pub fn build() -> Peer {
    let program = std::env::current_exe().expect("a program").with_file_name("waiters-go");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("go/waiters.go");
    let time = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
    if time(&program) > time(&source) {
        return Peer(program);
    }
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&program).arg(&source).env("GO111MODULE", "off").env("GOPATH", GOPATH);
    let built = go.status();
    assert!(
        built.as_ref().is_ok_and(|status| status.success()),
        "the Go program is not built ({built:?}). It needs: apt-get install golang-go golang-etcd-server-dev"
    );
    Peer(program)
}

impl Peer {
    pub fn measure(&self, setup: Setup) -> Outcome {
        let etcd = Etcd::start();
        let mut go = Command::new(&self.0);
        go.arg(format!("-endpoint={}", etcd.address())).arg(format!("-name={NAME}"));
        go.arg(format!("-clients={}", setup.clients)).arg(format!("-hold={}ns", setup.hold.as_nanos()));
        go.arg(format!("-span={}ns", setup.span.as_nanos())).stdin(Stdio::piped()).stdout(Stdio::piped());
        // The child exits when its standard input closes.
        let mut child = go.spawn().expect("it was built");
        let mut orders = child.stdin.take().expect("piped");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut line = || lines.next().expect("a line").expect("text");
        line();
        let start = Instant::now();
        writeln!(orders, "begin").expect("it reads");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let enter = runtime.block_on(entered(&etcd, setup.clients, start));
        let process = child.id().to_string();
        let before = Snapshot::now(&etcd, &process);
        writeln!(orders, "measure").expect("it reads");
        let result = line();
        let usage = Snapshot::now(&etcd, &process).since(before);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        let figures: Vec<u64> = result.split_whitespace().map(|text| text.parse().expect("a number")).collect();
        let [grants, held, starved, longest, errors] = figures[..] else { panic!("five figures: {result:?}") };
        Outcome {
            enter,
            span: setup.span,
            grants,
            held: Duration::from_nanos(held),
            starved,
            longest: Duration::from_nanos(longest),
            errors,
            usage,
        }
    }
}

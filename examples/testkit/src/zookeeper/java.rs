//! Java programs: the servers, and peers in tests.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::process::program_of;

/// Where Debian's packages put the jar files.
const JARS: &str = "/usr/share/java";
/// The server and the client. The manifests name what they need; Netty's own ones are incomplete.
const NAMES: [&str; 8] = [
    "zookeeper",
    "slf4j-simple",
    "netty-codec",
    "netty-resolver",
    "netty-transport-native-unix-common",
    "curator-recipes",
    "curator-framework",
    "curator-client",
];

/// The class path of ZooKeeper and Curator.
///
/// # Panics
///
/// If ZooKeeper is not installed.
pub(super) fn class_path() -> OsString {
    if let Some(path) = env::var_os("ZOOKEEPER_CLASSPATH") {
        return path;
    }
    let jars = NAMES.map(|name| Path::new(JARS).join(name).with_extension("jar"));
    assert!(
        jars[0].exists(),
        "ZooKeeper is not installed, and this test needs it: run `make servers`, or install the package libzookeeper-java"
    );
    env::join_paths(jars).expect("paths without colons")
}

/// Options for short-lived JVMs: small, and quick to start.
pub(super) const QUICK: [&str; 4] = ["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"];

/// The program that runs Java: that of the environment variable `JAVA`, or else from the path.
pub(super) const PROGRAM: &str = "java";

/// A command that runs a class of these folders, ZooKeeper or Curator.
#[must_use]
pub(super) fn java(folder: &Path, class: &str) -> Command {
    let mut path = OsString::from(folder);
    path.push(":");
    path.push(class_path());
    let mut command = Command::new(program_of("JAVA", PROGRAM));
    command.args(QUICK).arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=off").arg("-cp").arg(path).arg(class);
    command
}

/// Compiles a source file that uses ZooKeeper or Curator, unless an earlier run did. Returns the
/// folder with its classes.
///
/// # Panics
///
/// If `javac` is not installed, or refuses the file.
#[must_use]
pub(super) fn javac(source: &Path) -> PathBuf {
    let text = fs::read(source).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
    let mut hash = DefaultHasher::new();
    text.hash(&mut hash);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/java");
    let classes = folder.join(format!("{:016x}", hash.finish()));
    if classes.exists() {
        return classes;
    }
    fs::create_dir_all(&folder).expect("a folder under target");
    let unfinished = tempfile::tempdir_in(&folder).expect("a temporary directory");
    let mut command = Command::new(program_of("JAVAC", "javac"));
    command.args(["-J-XX:TieredStopAtLevel=1", "-proc:none", "-d"]).arg(unfinished.path());
    let output = command.arg("-cp").arg(class_path()).arg(source).output().unwrap_or_else(|e| {
        panic!("javac does not run: {e}. Run `make servers`, or install the package default-jdk-headless")
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Fails if another process was faster.
    if fs::rename(unfinished.path(), &classes).is_ok() {
        let _ = unfinished.keep();
    }
    classes
}

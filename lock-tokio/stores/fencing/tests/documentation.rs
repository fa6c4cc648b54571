//! The Rust code of docs/fencing.md is code of the tests.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;

#[test]
fn examples_are_those_of_the_tests() {
    // F1
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let lines = |text: &str| text.lines().map(|line| format!("{}\n", line.trim())).collect::<String>();
    let folders = [root.join("lock-tokio/stores/fencing/tests"), root.join("examples/fence-layer/tests")];
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap()).map(|file| file.unwrap().path());
    let sources: Vec<_> =
        files.filter(|path| path.is_file()).map(|path| lines(&fs::read_to_string(path).unwrap())).collect();
    let page = fs::read_to_string(root.join("docs/fencing.md")).unwrap();
    let examples: Vec<_> = page.split("```rust\n").skip(1).map(|rest| rest.split_once("```").unwrap().0).collect();
    assert!(examples.len() >= 8, "{} examples", examples.len());
    for example in examples {
        assert!(sources.iter().any(|source| source.contains(&lines(example))), "no test has this:\n{example}");
    }
}

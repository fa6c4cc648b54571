//! Replays the committed corpora on stable Rust, without libFuzzer.

use std::path::Path;

fn replay(target: &str, run: fn(&[u8]), at_least: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).expect("the corpus is there").map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    assert!(files.len() >= at_least, "only {} seeds in {}", files.len(), folder.display());
    for file in files {
        // On failure the test harness shows the last line.
        println!("{}", file.display());
        let data = std::fs::read(&file).expect("readable");
        run(&data);
        // And cut short at every place, for the first bytes at least.
        for end in 0..data.len().min(200) {
            run(&data[..end]);
        }
    }
}

#[test]
fn pipe() {
    replay("pipe", lock_fuzz::pipe, 15);
}

#[test]
fn url() {
    replay("url", lock_fuzz::url, 15);
}

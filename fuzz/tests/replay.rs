//! Replays the committed corpora on stable Rust, without libFuzzer.
// S7

use std::path::Path;
use std::process::Command;

use lock_sim::scenario::Flaw;
use lock_sim::{Keep, Rule};

/// Replays each file, and the file truncated at each of its first `cuts` bytes.
fn replay(target: &str, run: fn(&[u8]), at_least: usize, cuts: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).expect("the corpus is there").map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    assert!(files.len() >= at_least, "only {} seeds in {}", files.len(), folder.display());
    for file in files {
        // If a test fails, the harness shows the last line.
        println!("{}", file.display());
        let data = std::fs::read(&file).expect("readable");
        let makes_run = !lock_fuzz::plays_worlds(target) || lock_fuzz::plan(target, &data).is_some();
        assert!(makes_run, "{} makes no run", file.display());
        run(&data);
        for end in 0..data.len().min(cuts) {
            run(&data[..end]);
        }
    }
}

#[test]
fn pipe() {
    replay("pipe", lock_fuzz::pipe, 15, 200);
}

#[test]
fn url() {
    replay("url", lock_fuzz::url, 15, 200);
}

#[test]
fn tls() {
    replay("tls", lock_fuzz::tls, 15, 0);
}

#[test]
fn redis_ops() {
    replay("redis_ops", lock_fuzz::redis_ops, 300, 0);
}

#[test]
fn quorum_ops() {
    replay("quorum_ops", lock_fuzz::quorum_ops, 300, 0);
}

#[test]
fn etcd_ops() {
    replay("etcd_ops", lock_fuzz::etcd_ops, 200, 0);
}

#[test]
fn election_ops() {
    replay("election_ops", lock_fuzz::election_ops, 150, 0);
}

#[test]
fn zk_pipe() {
    replay("zk_pipe", lock_fuzz::zk_pipe, 100, 200);
}

#[test]
fn zk_ops() {
    replay("zk_ops", lock_fuzz::zk_ops, 100, 0);
}

#[test]
fn register_ops() {
    replay("register_ops", lock_fuzz::register_ops, 50, 0);
}

#[test]
fn redis_model() {
    // S13
    replay("redis_model", lock_fuzz::redis_model, 100, 0);
}

/// The example of `fuzz/README.md`: a target can fail, and the same input breaks nothing without
/// the flaw.
#[test]
fn example_finding_is_found_only_with_its_flaw() {
    // S4, S13
    let input = include_bytes!("../examples/redis_model/release-without-comparing-the-token");
    let flaw = Flaw::named("redis-deletes-anything").expect("a flaw of that name");
    let found = std::panic::catch_unwind(|| lock_fuzz::play("redis_model", input, Some(flaw)));
    let panic = found.expect_err("the flaw is found");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.starts_with("Model at "), "{text}");
    lock_fuzz::play("redis_model", input, None);
}

/// The corpus catches each flaw that the model exists for, also where no other checker does.
#[test]
fn corpus_of_redis_model_catches_flawed_clients() {
    // S4, S13
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/redis_model");
    for name in ["redis-deletes-anything", "redis-hides-loss", "redis-renews-for-ever"] {
        let flaw = Flaw::named(name).expect("a flaw of that name");
        let caught = std::fs::read_dir(&folder).expect("the corpus is there").any(|entry| {
            let data = std::fs::read(entry.expect("readable").path()).expect("readable");
            lock_fuzz::plan("redis_model", &data).is_some_and(|mut plan| {
                plan.flaw = Some(flaw);
                plan.run_keeping(Keep::Nothing).violations.iter().any(|found| found.rule == Rule::Model)
            })
        });
        assert!(caught, "{name}");
    }
}

/// The first byte of an input selects the scenario, so an input of one byte makes an empty plan.
#[test]
fn command_that_draws_input_of_one_byte_is_complete() {
    for (target, _) in lock_fuzz::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        for entry in std::fs::read_dir(folder).expect("the corpus is there") {
            let file = entry.expect("readable").path();
            let data = std::fs::read(&file).expect("readable");
            if data.len() != 1 || lock_fuzz::plan(target, &data).is_none() {
                continue;
            }
            let output = Command::new(env!("CARGO_BIN_EXE_replay")).arg(&file).output().expect("it runs");
            let text = String::from_utf8_lossy(&output.stdout);
            let line = text.lines().find(|line| line.starts_with("draw it: ")).expect("a command");
            // Not an option without its value. The tests of `explore` parse it.
            assert!(line.ends_with(" --bytes="), "{line}");
        }
    }
}

#[test]
fn input_that_makes_no_run_is_named() {
    let shown = |target| {
        let output = Command::new(env!("CARGO_BIN_EXE_replay")).args([target, "/dev/null"]).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(shown("redis_model").ends_with("makes no run\n"));
    assert!(shown("pipe").ends_with("nothing is broken\n"));
}

/// Without variables of its own, the recipe once printed those of the whole environment.
#[test]
fn make_replay_prints_no_variables() {
    let output = Command::new("make")
        .args(["replay", "INPUT=fuzz/corpus/pipe", "CARGO=true"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .env("API_TOKEN", "sesame")
        .output()
        .expect("make is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("sesame"), "{} bytes of output", text.len());
}

/// The commands of the guide name what exists: make targets, programs, files and flaws.
#[test]
fn commands_of_guide_name_what_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("readable");
    let (guide, makefile, manifest) = (read("fuzz/README.md"), read("Makefile"), read("fuzz/Cargo.toml"));
    let after = |word: &str| -> Vec<String> {
        let part = guide.split(word).skip(1);
        let end = |c: char| c.is_whitespace() || "`,;.)|".contains(c);
        part.map(|rest| rest.split(end).next().unwrap_or_default().to_owned()).filter(|name| !name.is_empty()).collect()
    };
    let targets = after("make ");
    assert!(targets.len() > 5);
    for target in targets.iter().filter(|target| target.chars().all(|c| c.is_ascii_lowercase() || c == '-')) {
        assert!(makefile.contains(&format!("\n{target}: ")), "make {target}");
    }
    for flaw in after("FLAW=") {
        assert!(Flaw::named(&flaw).is_some(), "{flaw}");
    }
    for target in after("--no-trace-compares ").iter().filter(|target| *target != "TARGET") {
        assert!(manifest.contains(&format!("name = \"{target}\"")), "{target}");
    }
    let words = guide.split(|c: char| c.is_whitespace() || "`()=:,;".contains(c));
    let is_path = |word: &&str| word.contains('/') && word.contains('.') | word.starts_with("fuzz/");
    let made = [
        "…",
        "http",
        "scratch",
        "artifacts",
        "target/",
        "fuzz/corpus/name",
        "fuzz_targets/name",
        "release-of-an",
        "c1/c0",
    ];
    for word in words.filter(is_path).filter(|word| !made.iter().any(|part| word.contains(part))) {
        let path = word.trim_end_matches('.').split('#').next().unwrap_or_default();
        let places = ["", "fuzz", "lock-proto/sim/src/scenario"];
        assert!(places.iter().any(|place| root.join(place).join(path).exists()), "{word} is no file");
    }
    assert_eq!(lock_fuzz::TARGETS.len(), manifest.matches("path = \"fuzz_targets/").count());
    for (target, _) in lock_fuzz::TARGETS {
        assert!(guide.contains(&format!("| `{target}` |")), "{target} is not in the table");
    }
}

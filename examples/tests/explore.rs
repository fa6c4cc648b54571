//! Black-box tests of `explore`: exit codes, commands that can be pasted, pages that are
//! well-formed and reproducible.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use lock_sim::picture::Picture;
use lock_sim::scenario::Backend;
use lock_sim::{Plan, scenarios};

/// A scenario beyond the bounds, in which a lock is soon held twice.
const BEYOND: &str = "redis-promotion";
/// A scenario within the bounds.
const KEPT: &str = "redis-contention";

fn explore(folder: &Path, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_explore"));
    command.args(line.split_whitespace()).current_dir(folder).output().expect("explore runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Returns the path of the page that a run printed.
fn page(folder: &Path, output: &Output) -> String {
    let text = text(output);
    let path = text.lines().find_map(|line| line.strip_prefix("timeline: "));
    let path = path.unwrap_or_else(|| panic!("no page: {text}"));
    fs::read_to_string(folder.join(path)).expect("the page")
}

/// Checks that tags are closed in order, attributes are quoted, and text contains only known
/// entities.
fn assert_well_formed(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>\n").expect("a page begins with its type");
    while let Some(at) = rest.find('<') {
        assert_entities(&rest[..at]);
        let tag = &rest[at + 1..];
        let end = tag.find('>').expect("a tag ends");
        let (inside, after) = (&tag[..end], &tag[end + 1..]);
        rest = after;
        if let Some(name) = inside.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed before {}", &after[..after.len().min(80)]);
            continue;
        }
        let (inside, closed) = inside.strip_suffix('/').map_or((inside, false), |inside| (inside, true));
        let (name, attributes) = inside.split_once(' ').unwrap_or((inside, ""));
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric()), "<{inside}>");
        assert_attributes(attributes);
        if name == "style" {
            // Style sheets contain no markup.
            let (style, after) = rest.split_once("</style>").expect("a style ends");
            assert!(!style.contains(['<', '&']));
            rest = after;
        } else if !closed {
            open.push(name);
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} stay open");
    assert!(!page.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "control characters");
}

fn assert_attributes(attributes: &str) {
    let mut rest = attributes.trim();
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("no attribute: {rest}"));
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'), "{name}");
        let (value, after) = after.split_once('"').expect("a value ends");
        assert_entities(value);
        rest = after.trim_start();
    }
}

fn assert_entities(text: &str) {
    for (at, _) in text.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"].iter().any(|entity| text[at..].starts_with(entity));
        assert!(known, "{}", &text[at..text.len().min(at + 20)]);
    }
}

#[test]
fn search_without_violation_exits_with_0_and_reports_run_count() {
    let folder = folder();
    let output = explore(folder.path(), &format!("--scenario {KEPT} --seeds 0..8 --jobs 2"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = text(&output);
    assert!(text.starts_with("nothing is broken: 8 runs in ") && text.contains(" grants, "), "{text}");
    assert!(output.stderr.is_empty(), "no bar where there is no terminal: {output:?}");
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0, "nothing to draw");
}

#[test]
fn all_scenarios_are_listed_and_run() {
    let folder = folder();
    let list = text(&explore(folder.path(), "--list"));
    let all = scenarios();
    for scenario in all {
        assert!(list.contains(scenario.name) && list.contains(scenario.about), "{list}");
    }
    for backend in [Backend::Redis, Backend::Etcd] {
        assert!(all.iter().any(|scenario| scenario.backend == backend), "{backend:?}");
    }
    let output = explore(folder.path(), "--scenario all --seeds 3..4");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        text(&output).starts_with(&format!(
            "nothing is broken: {} runs",
            all.iter().map(|scenario| scenario.weight).sum::<u64>()
        )),
        "{output:?}"
    );
}

#[test]
fn found_violation_is_shrunk_drawn_and_reproducible() {
    let folder = folder();
    let find = format!("--scenario {BEYOND} --seeds 0..300 --find MutualExclusion --out pictures");
    let output = explore(folder.path(), &find);
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    assert!(printed.contains("not promised: MutualExclusion at "), "{printed}");
    let first = page(folder.path(), &output);
    assert_well_formed(&first);
    assert!(first.contains("class=\"violation excused\"") && first.contains("Not promised here: one holder at a time"));

    // The result does not depend on the number of threads.
    let again = explore(folder.path(), &format!("{find} --jobs 3"));
    assert_eq!(page(folder.path(), &again), first);

    // The printed command reproduces the page.
    let line = printed.lines().find_map(|line| line.strip_prefix("again, as small as this: explore ")).expect("a line");
    let pasted = explore(folder.path(), line);
    assert_eq!(pasted.status.code(), Some(0), "{pasted:?}");
    assert_eq!(page(folder.path(), &pasted), first);

    // The first printed command reproduces the original run.
    let line = printed.lines().find_map(|line| line.strip_prefix("explore ")).expect("a line");
    let whole = explore(folder.path(), line);
    assert!(text(&whole).contains("not promised: MutualExclusion at "), "{whole:?}");
    assert_well_formed(&page(folder.path(), &whole));
}

#[test]
fn same_seed_draws_same_page() {
    let folder = folder();
    let line = format!("--scenario {KEPT} --seed 5 --out one.html");
    let output = explore(folder.path(), &line);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let first = page(folder.path(), &output);
    assert_well_formed(&first);
    assert!(
        first.contains(&format!("explore --scenario {KEPT} --seed 5</code>")) && first.contains("Nothing is broken.")
    );
    assert_eq!(page(folder.path(), &explore(folder.path(), &line)), first);
    // Another window, written to an existing directory.
    let output = explore(folder.path(), &format!("--scenario {KEPT} --seed 5 --from 0 --to 100ms --out ."));
    let part = page(folder.path(), &output);
    assert_well_formed(&part);
    assert!(part.contains("from 0.000 s to 0.100 s") && folder.path().join(format!("{KEPT}-5.html")).exists());
}

#[test]
fn every_scenario_can_be_drawn() {
    for scenario in scenarios() {
        let plan = Plan::from_seed(scenario, 2);
        let (outcome, trace) = plan.run_traced();
        let picture = Picture::of_plan(&plan, &outcome, &trace).replay("explore");
        let page = picture.page();
        assert_well_formed(&page);
        assert_eq!(picture.page(), page, "{}", scenario.name);
        assert!(page.contains("class=\"held n0\"") && page.contains("class=\"m request\""), "{}", scenario.name);
    }
}

#[test]
fn etcd_specific_entries_are_drawn() {
    let folder = folder();
    let drawn = |line: &str| {
        let output = explore(folder.path(), line);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let page = page(folder.path(), &output);
        assert_well_formed(&page);
        page
    };
    let page = drawn("--scenario etcd-turns --seed 2");
    for part in [">member 0</text>", ">leads</text>", ">lease ", "put a/", "keep alive ", "class=\"write n"] {
        assert!(page.contains(part), "{part} is not drawn");
    }
    let page = drawn("--scenario etcd-elections --seed 3");
    for part in [">campaigns as #", ">observes: e is led by #"] {
        assert!(page.contains(part), "{part} is not drawn");
    }
    let page = drawn("--scenario etcd-suspended --seeds 0..300 --find MutualExclusion");
    for part in ["class=\"violation excused\"", ">clock −", "class=\"paused\""] {
        assert!(page.contains(part), "{part} is not drawn");
    }
}

#[test]
fn byte_string_and_file_draw_same_run() {
    let folder = folder();
    let bytes: Vec<u8> = (0..=255).collect();
    fs::write(folder.path().join("input"), &bytes).expect("an input");
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let one = explore(folder.path(), &format!("--scenario {KEPT} --bytes {hex}"));
    let two = explore(folder.path(), &format!("--scenario {KEPT} --bytes @input --out two.html"));
    assert_eq!(one.status.code(), Some(0), "{one:?}");
    assert_eq!(page(folder.path(), &one), page(folder.path(), &two));
}

#[test]
fn errors_map_to_exit_codes() {
    let folder = folder();
    for (line, code, word) in [
        ("", 64, "--list"),
        ("--scenario redis-nothing", 64, "redis-nothing"),
        ("--scenario all --seeds 5", 64, "0..1000"),
        ("--unknown", 64, "--unknown"),
        ("--scenario redis-contention --seeds 0..2 --find MutualExclusion", 2, ""),
        ("--scenario redis-contention --seed 1 --find MutualExclusion", 2, "no MutualExclusion"),
        ("--scenario redis-contention --seed 1 --out /dev/null/page.html", 74, "/dev/null/page.html"),
    ] {
        let output = explore(folder.path(), line);
        assert_eq!(output.status.code(), Some(code), "{line}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(word) && said.lines().count() <= 1, "{line}: {said}");
    }
    let help = explore(folder.path(), "--help");
    assert!(help.status.success() && text(&help).contains("--scenario NAME"));
}

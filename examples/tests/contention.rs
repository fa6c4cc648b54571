//! Black-box tests of `contention` on real servers. They check the output, but no timings, because
//! machines differ.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "kit/mod.rs"]
mod kit;

use std::collections::BTreeMap;
use std::process::Command;

use kit::{Ended, Scratch, Tool};
use lock_proto::redis::{FENCE_NAME, SIGNAL_SUFFIX, WAITING_SUFFIX};
use lock_testkit::{Authority, Chroot, Etcd, Redis};

const FIELDS: [&str; 22] = [
    "workload",
    "clients",
    "seconds",
    "hold_ms",
    "ops",
    "ops_total",
    "ops_per_s",
    "mean_us",
    "p50_us",
    "p70_us",
    "p90_us",
    "p99_us",
    "max_us",
    "client_cpu_s",
    "cpu_s_per_1000",
    "jain",
    "errors",
    "violations",
    "pending",
    "pending_max_us",
    "starved",
    "hold_us_mean",
];

fn contention(args: &[&str]) -> Tool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_contention"));
    command.args(args).env_remove("LOCK_BACKEND");
    Tool::spawn(command)
}

fn measured(urls: &[String], args: &str) -> Vec<(String, String)> {
    let backends: Vec<&str> = urls.iter().flat_map(|url| ["--backend", url]).collect();
    let args: Vec<&str> = args.split_whitespace().chain(["--json"]).chain(backends).collect();
    let ended = contention(&args).end();
    assert_eq!(ended.code, 0, "{ended:?}");
    one_line_of_json(&ended)
}

/// Parses a flat JSON object on one line.
fn one_line_of_json(ended: &Ended) -> Vec<(String, String)> {
    let line = ended.out.strip_suffix('\n').unwrap();
    assert!(!line.contains('\n'), "{line}");
    let fields = line.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap();
    let field = |field: &str| {
        let (name, value) = field.split_once(':').unwrap();
        let name = name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap();
        (name.to_owned(), value.to_owned())
    };
    fields.split(',').map(field).collect()
}

fn names(fields: &[(String, String)]) -> Vec<&str> {
    fields.iter().map(|(name, _)| &**name).collect()
}

#[track_caller]
fn number(fields: &[(String, String)], name: &str) -> f64 {
    let (_, value) = fields.iter().find(|(other, _)| other == name).unwrap();
    value.parse().unwrap_or_else(|_| panic!("{name} is {value}"))
}

#[track_caller]
fn assert_sound(fields: &[(String, String)]) {
    assert_eq!(names(fields), FIELDS);
    let of = |name| number(fields, name);
    assert!(of("ops") > 0.0 && of("ops_total") >= of("ops"), "{fields:?}");
    assert_eq!((of("violations"), of("errors")), (0.0, 0.0), "{fields:?}");
    let quantiles = ["p50_us", "p70_us", "p90_us", "p99_us", "max_us"].map(of);
    assert!(quantiles.is_sorted() && quantiles[0] > 0.0, "{fields:?}");
    assert!(of("jain") > 0.0 && of("jain") <= 1.0, "{fields:?}");
    assert!(of("client_cpu_s") > 0.0, "{fields:?}");
    assert!(of("pending") <= of("clients") && of("starved") <= of("clients"), "{fields:?}");
}

/// The keys of locks, without those that wake waiters, which expire.
fn locks_left(redis: &Redis) -> Vec<String> {
    let is_lock = |key: &String| {
        key.starts_with("contention:") && !key.ends_with(SIGNAL_SUFFIX) && !key.ends_with(WAITING_SUFFIX)
    };
    redis.keys().into_iter().filter(is_lock).collect()
}

#[test]
fn json_fields_are_in_order_on_each_runtime() {
    let redis = Redis::start();
    for runtime in ["tokio", "smol", "async-std"] {
        let workload = format!("--workload contended --clients 4 --seconds 0.5 --hold 1ms --runtime {runtime}");
        let fields = measured(&[redis.url()], &workload);
        assert_sound(&fields);
        assert_eq!((fields[0].1.as_str(), fields[1].1.as_str()), ("\"contended\"", "4"));
        assert_eq!((fields[2].1.as_str(), fields[3].1.as_str()), ("0.5", "1"));
        assert!(number(&fields, "hold_us_mean") >= 1_000.0, "a hold was shorter than requested: {fields:?}");
    }
    assert_eq!(locks_left(&redis), Vec::<String>::new());
}

#[test]
fn tasks_with_separate_clients_exclude_each_other() {
    let redis = Redis::start();
    for settings in ["--wake notify", "--wake poll --poll 5ms", "--turns off --fence off"] {
        let workload = format!("--workload contended --clients 3 --seconds 0.5 --clients-per-connection 1 {settings}");
        assert_sound(&measured(&[redis.url()], &workload));
    }
}

#[test]
fn runs_on_quorum_etcd_and_zookeeper_are_sound() {
    let redis = Redis::start_many(3);
    let urls: Vec<String> = redis.iter().map(Redis::url).collect();
    let fields = measured(&urls[..1], "--workload uncontended --clients 3 --seconds 0.3");
    assert_sound(&fields);
    assert_eq!(number(&fields, "starved"), 0.0);
    assert_sound(&measured(&urls, "--workload quorum --clients 2 --seconds 0.3"));
    let etcd = Etcd::start();
    assert_sound(&measured(&[etcd.url()], "--workload contended --clients 4 --clients-per-connection 2 --seconds 0.5"));
    assert_eq!((etcd.keys(), etcd.leases()), (vec![], vec![]));
    let chroot = Chroot::new();
    assert_sound(&measured(
        &[chroot.url()],
        "--workload contended --clients 4 --clients-per-connection 2 --seconds 0.5",
    ));
    // With the default tick, the default TTL is too short.
    let url = chroot.url();
    let url = &[url.split('?').next().unwrap().to_owned()];
    assert_sound(&measured(url, "--workload uncontended --clients 2 --seconds 0.3"));
    assert_eq!(number(&measured(url, "--workload held --locks 20 --clients 2 --seconds 0.3"), "lost"), 0.0);
    assert_eq!(chroot.ephemerals(), Vec::<String>::new());
}

#[test]
fn held_workload_counts_locks_and_loses_none() {
    let redis = Redis::start();
    let fields = measured(&[redis.url()], "--workload held --locks 200 --clients 8 --seconds 1 --ttl 600ms");
    let expected = ["workload", "clients", "seconds", "locks", "acquire_s", "hold_cpu_s", "rss_per_lock", "lost"];
    assert_eq!(names(&fields), expected);
    // Longer than the TTL, so the locks were renewed.
    assert_eq!((number(&fields, "locks"), number(&fields, "lost")), (200.0, 0.0));
    assert_eq!(locks_left(&redis), Vec::<String>::new());
}

#[test]
fn held_workload_that_fails_releases_and_keeps_exit_code() {
    let keys = format!("~{FENCE_NAME} ~contention:*:first:* ~contention:*:0:[0-4]*");
    let redis = Redis::builder().acl("app", &format!("on >s3cret +@all {keys}")).start();
    let url = redis.url_with("app", "s3cret");
    // One task takes them in turn, and the sixth is forbidden.
    let ended = contention(&["--workload", "held", "--locks", "10", "--clients", "1", "--backend", &url]).end();
    assert_eq!(ended.code, 77, "{ended:?}");
    assert_eq!(locks_left(&redis), Vec::<String>::new());
}

#[test]
fn table_is_printed_without_json_option() {
    let redis = Redis::start();
    let url = redis.url();
    let ended = contention(&["--workload", "contended", "--seconds", "0.3", "--clients", "2", "--backend", &url]).end();
    assert_eq!(ended.code, 0, "{ended:?}");
    for part in ["locks taken", "wait", "P99", "fairness", "commands", "overlaps seen"] {
        assert!(ended.out.contains(part), "no {part:?}: {}", ended.out);
    }
    assert!(!ended.out.contains('{'), "{}", ended.out);
}

#[test]
fn usage_errors_exit_with_64() {
    for (args, word) in [
        (&["--workload", "contended", "--clients", "many"][..], "--clients"),
        (&[], "--workload"),
        (&["--workload", "contended", "--peer", "rslock"], "examples/bench/Cargo.toml"),
        (&["report", "--seconds", "x"], "--seconds"),
    ] {
        let ended = contention(args).end();
        assert_eq!((ended.code, ended.out.as_str()), (64, ""), "{ended:?}");
        assert!(ended.err.contains(word), "{ended:?}");
    }
    let help = contention(&["--help"]).end();
    assert_eq!(help.code, 0, "{help:?}");
    for part in ["contention report", "69  a server does not reply, or cannot be started", "74  the report"] {
        assert!(help.out.contains(part), "{part}: {help:?}");
    }
}

#[test]
fn missing_password_exits_with_77() {
    let redis = Redis::builder().password("secret").start();
    let bare = format!("redis://127.0.0.1:{}", redis.port());
    let ended = contention(&["--workload", "contended", "--backend", &bare]).end();
    assert_eq!(ended.code, 77, "{ended:?}");
    assert_sound(&measured(&[redis.url()], "--workload contended --clients 2 --seconds 0.3"));
}

/// Over TLS, with a password that is on no command line.
#[test]
fn password_of_environment_is_used_over_tls() {
    let authority = Authority::new();
    let redis = Redis::builder().tls(authority.server()).acl("app", "on >s3cret ~* &* +@all").start();
    let url = redis.tls_url(&format!("{}&user=app", authority.query()));
    for (password, code) in [("s3cret", 0), ("wrong!", 77)] {
        let args = ["--workload", "contended", "--clients", "2", "--seconds", "0.3", "--json", "--backend", &url];
        let mut command = Command::new(env!("CARGO_BIN_EXE_contention"));
        command.args(args).env_remove("LOCK_BACKEND").env("LOCK_PASSWORD", password);
        let ended = Tool::spawn(command).end();
        assert_eq!(ended.code, code, "{ended:?}");
        assert!(!ended.err.contains(password), "{ended:?}");
        if code == 0 {
            assert_sound(&one_line_of_json(&ended));
        }
    }
}

#[test]
fn report_is_complete_and_well_formed() {
    let scratch = Scratch::new();
    let out = scratch.path("report");
    let ended = contention(&["report", "--seconds", "0.1", "--clients", "1", "--out", &out]).end_within(kit::LONG * 4);
    assert_eq!(ended.code, 0, "{ended:?}");
    let page = scratch.read("report/report.html");
    let elements = elements_of(&page);
    // Four scenarios with a row for each method; lines and dots.
    assert_eq!(elements["svg"], 4 + 1 + 3);
    assert!(!elements.contains_key("script"), "readable without scripts");
    for method in ["polling", "wake-up", "local hand-over", "quorum of five", "etcd", "etcd, local", "ZooKeeper"] {
        // The charts of the waits, of the dots (three, with four columns each), and of the rates.
        assert!(page.matches(&format!(">{method}<")).count() >= 4 + 3, "{method} is missing");
    }
    // The command line is at the end, and its path may contain any letters.
    let figures = page.split("Environment<").next().unwrap();
    assert!(!figures.contains("NaN") && !figures.contains("inf"), "a figure that is none");
    assert_eq!(
        page.matches("://").count(),
        page.matches("http://www.w3.org/2000/svg").count(),
        "it needs nothing from elsewhere"
    );
    for part in
        ["class=\"ridge c-wakeup\"", "class=\"series c-etcd\"", "class=\"dot c-turns\"", "prefers-color-scheme: dark"]
    {
        assert!(page.contains(part), "no {part}");
    }
    let text = scratch.read("report/report.md");
    for part in [
        "Redis server v",
        "etcd Version",
        "command line: `contention report --seconds 0.1",
        "| wake-up |",
        "100 clients",
    ] {
        assert!(text.contains(part), "no {part:?}: {text}");
    }
}

/// Counts the elements by name. Panics if they are not nested as in XML.
fn elements_of(page: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    while let Some((text, tail)) = rest.split_once('<') {
        assert!(!text.contains('>') || open.last() == Some(&"style"), "a bare > in {text:?}");
        let (tag, after) = tail.split_once('>').unwrap();
        rest = after;
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "</{name}> closes another");
            continue;
        }
        let name = tag.split([' ', '/']).next().unwrap();
        *counts.entry(name.to_owned()).or_default() += 1;
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    counts
}

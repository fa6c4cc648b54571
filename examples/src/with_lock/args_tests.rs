#![allow(clippy::unwrap_used, reason = "tests")]

use lock_proto::redis::Wake;

use super::*;

fn read(line: &[&str]) -> Result<Parsed, Usage> {
    parse(line.iter().map(OsString::from), None, &[])
}

fn run(line: &[&str]) -> Args {
    match read(line) {
        Ok(Parsed::Run(args)) => *args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn defaults_match_contract() {
    let args = run(&["job"]);
    assert_eq!(args.name, b"job");
    assert_eq!((args.ttl, args.wait), (Duration::from_secs(10), Wait::Forever));
    assert_eq!(args.command, None);
    assert_eq!(args.grace, Duration::from_secs(10) / 3);
    assert_eq!(args.runtime, Some(Runtime::Tokio));
    let Backend::Store(StoreSettings::File(file)) = args.backend else { panic!("{:?}", args.backend) };
    assert!(file.folder.ends_with("lock-proto"), "{file:?}");
    let notice = args.notice.unwrap();
    assert!(notice.contains("no --backend") && notice.contains("/lock-proto"), "{notice}");
    let args = run(&["--backend", "redis://127.0.0.1:6379", "job"]);
    let config = lock_proto::redis::Config::parse("redis://127.0.0.1:6379").unwrap();
    let config = config.poll(Backoff::fixed(Duration::from_millis(50))).wake(Wake::Notify);
    assert_eq!((args.notice, args.backend), (None, Backend::Store(StoreSettings::Redis(config))));
}

#[test]
fn backend_option_overrides_environment() {
    let list = Some(OsStr::new(" redis://a redis://b  redis://c "));
    let nodes = |line: &[&str]| match parse(line.iter().map(OsString::from), list, &[]) {
        Ok(Parsed::Run(args)) => match args.backend {
            Backend::Store(StoreSettings::Redis(config)) => config.nodes().len(),
            other @ (Backend::Store(_) | Backend::Register(_)) => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    assert_eq!(nodes(&["job"]), 3);
    assert_eq!(nodes(&["--backend", "redis://d", "job"]), 1);
}

/// It must not count as unset: the default is another server.
#[test]
fn variable_that_is_not_utf8_is_usage_error() {
    use std::os::unix::ffi::OsStrExt as _;

    let variable = Some(OsStr::from_bytes(b"redis://:p\xe4ss@a"));
    let error = parse([OsString::from("job")], variable, &[]).unwrap_err();
    assert_eq!(error.0, "LOCK_BACKEND is not UTF-8; a URL has other bytes as %XX");
    let given = ["--backend", "redis://b", "job"].map(OsString::from);
    assert!(parse(given, variable, &[]).is_ok(), "it is not used");
}

#[test]
fn arguments_after_double_dash_are_command() {
    let args = run(&["--ttl=2s", "job", "--wait", "0", "--", "ls", "--ttl", "--", "-x"]);
    let (program, rest) = args.command.unwrap();
    assert_eq!(program, "ls");
    assert_eq!(rest, ["--ttl", "--", "-x"]);
    assert_eq!((args.ttl, args.wait), (Duration::from_secs(2), Wait::Try));
}

#[test]
fn options_are_parsed() {
    let args =
        run(&["--runtime", "blocking", "--wake", "poll", "--poll", "1s", "--wait", "1m30s", "--grace", "1s", "job"]);
    assert_eq!(args.runtime, None);
    assert_eq!(args.grace, Duration::from_secs(1));
    assert_eq!(args.wait, Wait::For(Duration::from_secs(90)));
    assert_eq!(run(&["--ttl", "60s", "--grace", "ttl/2", "job"]).grace, Duration::from_secs(30));
}

#[test]
fn etcd_session_ttl_is_rounded_up_to_whole_seconds() {
    let url = "etcd://app:secret@a,b:2380";
    for (ttl, seconds) in [("10s", 10), ("1500ms", 2), ("1ms", 1)] {
        let args = run(&["--backend", url, "--ttl", ttl, "--runtime", "smol", "--poll", "0", "job"]);
        let ttl = Duration::from_secs(seconds);
        assert_eq!((args.ttl, args.grace), (ttl, ttl / 3));
        let config = lock_proto::etcd::Config::parse(url).unwrap().session_ttl(ttl);
        assert_eq!((args.runtime, args.backend), (Some(Runtime::Smol), Backend::Store(StoreSettings::Etcd(config))));
    }
}

#[test]
fn zookeeper_session_ttl_is_at_least_five_ticks() {
    let url = "zk://app:secret@a,b:2182/locks?tick_ms=500";
    for (ttl, millis) in [("10s", 10_000), ("1ms", 2_500)] {
        let args = run(&["--backend", url, "--ttl", ttl, "--runtime", "blocking", "job"]);
        let ttl = Duration::from_millis(millis);
        assert_eq!((args.ttl, args.grace), (ttl, ttl / 3));
        let config = lock_proto::zookeeper::Config::parse(url).unwrap().session_ttl(ttl);
        assert_eq!((args.runtime, args.backend), (None, Backend::Store(StoreSettings::ZooKeeper(config))));
    }
    // The servers' default tick of 3 s.
    assert_eq!(run(&["--backend", "zk://a", "job"]).ttl, Duration::from_secs(15));
}

#[test]
fn user_is_told_of_ttl_that_became_longer() {
    for (backend, ttl, told) in [
        (
            "zk://a",
            "4s",
            "--ttl 4s became 15s: on ZooKeeper a TTL has at least five ticks of the servers, 15s; set tick_ms",
        ),
        ("etcd://a", "1500ms", "--ttl 1.5s became 2s: etcd counts whole seconds"),
    ] {
        let notice = run(&["--backend", backend, "--ttl", ttl, "job"]).notice.unwrap();
        assert!(notice.starts_with(told), "{notice}");
    }
    for line in [
        &["--backend", "zk://a", "--ttl", "15s", "job"][..],
        &["--backend", "zk://a", "job"],
        &["--backend", "redis://a", "job"],
    ] {
        assert_eq!(run(line).notice, None, "{line:?}");
    }
}

#[test]
fn usage_error_names_cause() {
    for (line, part) in [
        (&["--ttl", "ten", "job"][..], "'ten'"),
        (&["--wait", "later", "job"], "'later'"),
        (&["--wake", "shout", "job"], "'shout' for '--wake <MODE>' [possible values: notify, poll]"),
        (
            &["--runtime", "mio", "job"],
            "'mio' for '--runtime <NAME>' [possible values: tokio, smol, async-std, blocking]",
        ),
        (&["--grace", "9s", "job"], "9s"),
        (&["--grace", "ttl/0", "job"], "ttl/0"),
        (&[], "<NAME>"),
        (&["-job", "--", "ls"], "cannot begin with a dash"),
        (&["--", "-job"], "<NAME> comes before `--`"),
        (&["job", "ls"], "'ls' found; the command comes after `--`"),
        (&["job", "--"], "no command"),
        (&["--frobnicate", "job"], "frobnicate"),
        (&["--ttl"], "ttl"),
        (&["--backend", "redis://a", "--backend", "redis://b", "job"], "2 nodes"),
        (&["--backend", "redis://a", "--backend", "redis://a", "--backend", "redis://c", "job"], "same server"),
        (&["--backend", "redis://a", "--backend", "etcd://b", "job"], "one URL"),
        (&["--backend", "etcd://a", "--backend", "redis://b", "--backend", "etcd://c", "job"], "one URL"),
        (&["--backend", "etcd://a", "--backend", "etcd://b", "job"], "etcd://a,b,c"),
        (&["--backend", "ETCD://a,a:2379", "job"], "same server"),
        (&["--backend", "etcds://a?cert=x", "job"], "together"),
        (&["--backend", "etcd://a/b", "job"], "path"),
        (&["--backend", "etcd://a", "--ttl", "0", "job"], "--ttl: session_ttl must be"),
        (&["--backend", "etcd://a", "--ttl", "1s", "--grace", "600ms", "job"], "600ms"),
        (&["--backend", "zk://a", "--backend", "zk://b", "job"], "one URL"),
        (&["--backend", "zk://a?tick=5", "job"], "tick_ms"),
        (&["--backend", "zk://a", "--ttl", "0", "job"], "--ttl: session_ttl must be"),
        (&["--backend", "mysql://a", "job"], "--backend"),
        (&["--backend", "s3://a/b", "job"], "tools with the feature `object-store`"),
        (&["--backend", "redis://a", "--create-table", "job"], "postgres://"),
        (&["--poll", "0", "job"], "--poll: poll.every must be"),
        (&["--wait", "-1", "job"], "'-1' for '--wait <TIME>': expected a duration"),
        (&["--ttl", "-5s", "job"], "'-5s' for '--ttl <TIME>': expected a duration"),
        (&["--poll", "-1", "job"], "'-1' for '--poll <TIME>'"),
        (&["--grace", "-1s", "job"], "'-1s' for '--grace <TIME>'"),
        (&["--quarantine", "-1s", "job"], "'-1s' for '--quarantine <TIME>'"),
        (&["--backend", "redis://a?user=app", "job"], "by the variable LOCK_PASSWORD"),
        (&["--backend", "etcd://a?user=app", "job"], "by the variable LOCK_PASSWORD"),
        (&["--backend", "zk://a?user=app", "job"], "by the variable LOCK_PASSWORD"),
        (&["--backend", "etcd://a/x", "job"], "put the prefix into the names"),
        (&["--backend", "redis://a", "--quarantine", "0", "job"], "--quarantine: quarantine must be"),
    ] {
        match read(line) {
            Err(Usage(message)) => assert!(message.contains(part), "{line:?}: {message}"),
            Ok(parsed) => panic!("{line:?} was understood: {parsed:?}"),
        }
    }
}

#[test]
fn password_is_never_shown() {
    for scheme in ["redis", "etcd", "zk"] {
        let url = format!("{scheme}://u:hunter2@a");
        let bad_port = format!("{url}:99999");
        let Err(Usage(message)) = read(&["--backend", &bad_port, "job"]) else { panic!("a bad port") };
        assert!(!message.contains("hunter2"), "{message}");
        let shown = format!("{:?}", run(&["--backend", &url, "job"]));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

/// A store whose waiters poll once a second, with a shortest TTL.
static SLOW: &[StoreUrl] = &[StoreUrl {
    schemes: &["slow"],
    connect: |_, _| Err(lock_driver::ConnectError::NoRuntime),
    config: lock_proto::register::Config::new,
    min_ttl: Some((Duration::from_secs(3), "as told")),
    create_table: None,
    default_password: None,
}];

#[test]
fn store_of_another_package_has_its_own_interval_and_shortest_ttl() {
    let run = |line: &[&str]| match parse(line.iter().map(OsString::from), Some(OsStr::new("slow://a")), SLOW) {
        Ok(Parsed::Run(args)) => *args,
        other => panic!("{other:?}"),
    };
    let settings = |args: &Args| match &args.backend {
        Backend::Register(register) => register.settings().clone(),
        other @ Backend::Store(_) => panic!("{other:?}"),
    };
    let config = lock_proto::register::Config::new;
    let args = run(&["job"]);
    assert_eq!((settings(&args), args.ttl, args.notice), (config(), Duration::from_secs(10), None));
    let args = run(&["--poll", "50ms", "--ttl", "1s", "job"]);
    assert_eq!(settings(&args), config().poll(POLL));
    assert_eq!((args.ttl, args.grace), (Duration::from_secs(3), Duration::from_secs(1)));
    assert_eq!(args.notice.as_deref(), Some("--ttl 1s became 3s: as told"));
}

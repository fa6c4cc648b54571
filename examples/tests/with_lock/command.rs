//! The command's environment, exit code and signals.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use lock_testkit::{Redis, Stopwatch, wait_until};
use rustix::process::Signal;

use crate::harness::{LONG, PROGRAM, Quorum, Scratch, Tool, WITH_SIGNALS, assert_clean, is_alive, run, runtime};
use crate::kit::ms;

#[test]
fn exit_code_of_command_is_passed_on() {
    let redis = Redis::start();
    let scratch = Scratch::new();
    std::fs::write(scratch.path("data"), "no program").unwrap();
    let data = scratch.path("data");
    for (command, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "exit 76"], 76),
        (&["sh", "-c", "kill -9 $$"], 128 + 9),
        (&["sh", "-c", "kill -15 $$"], 128 + 15),
        (&["/no/such/command"], 127),
        (&["no-such-command-anywhere"], 127),
        (&[&data], 126),
    ] {
        let ended = run(&redis, &[&["job", "--"], command].concat());
        assert_eq!(ended.code, code, "{command:?}: {ended:?}");
    }
    assert_clean(&redis);
}

/// What a shell does with them.
#[test]
fn scripts_and_folders_are_run_as_by_a_shell() {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    let redis = Redis::start();
    let scratch = Scratch::new();
    for (name, text) in [("plain", "exit 8\n"), ("windows", "#!/bin/sh\r\nexit 8\r\n")] {
        std::fs::write(scratch.path(name), text).unwrap();
        std::fs::set_permissions(scratch.path(name), Permissions::from_mode(0o755)).unwrap();
    }
    std::fs::create_dir(scratch.path("folder")).unwrap();
    for (name, code) in [("plain", 8), ("folder", 126), ("windows", 127)] {
        let ended = run(&redis, &["job", "--", &scratch.path(name)]);
        assert_eq!(ended.code, code, "{name}: {ended:?}");
    }
    assert_clean(&redis);
}

#[cfg(target_os = "linux")]
#[test]
fn command_inherits_no_descriptor_of_the_tool() {
    let redis = Redis::start();
    // Both lists come from one process, which may have inherited descriptors itself: a test that runs
    // beside this one starts programs too.
    let line = r#"ls /proc/self/fd; echo; exec "$0" --backend "$1" job -- ls /proc/self/fd"#;
    let ended = Command::new("sh").args(["-c", line, PROGRAM, &redis.url()]).output().unwrap();
    let out = String::from_utf8(ended.stdout).unwrap();
    let (alone, under_lock) = out.split_once("\n\n").unwrap();
    assert_eq!(under_lock.trim_end(), alone);
}

/// The kernel reaps the children of such a process, whose exit codes would be lost.
#[test]
fn exit_code_is_known_if_sigchld_was_ignored() {
    let redis = Redis::start();
    let line = r#"trap "" CHLD; exec "$0" --backend "$1" job -- sh -c "exit 7""#;
    let ended = Command::new("sh").args(["-c", line, PROGRAM, &redis.url()]).output().unwrap();
    assert_eq!(ended.status.code(), Some(7), "{ended:?}");
    assert_clean(&redis);
}

#[cfg(target_os = "linux")]
#[test]
fn missing_command_exits_with_127_if_stderr_cannot_be_written() {
    let redis = Redis::start();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["--backend", &redis.url(), "job", "--", "no-such-command-anywhere"]);
    assert_eq!(command.stderr(full).status().unwrap().code(), Some(127));
    assert_clean(&redis);
}

#[test]
fn command_finds_lock_in_environment() {
    let redis = Redis::start();
    let mut fences = Vec::new();
    let runtime = runtime();
    let scratch = Scratch::new();
    let (file, go) = (scratch.path("env"), scratch.path("go"));
    let script =
        format!(r#"echo "$LOCK_NAME|$LOCK_TOKEN|$LOCK_FENCE" > {file}; until [ -e {go} ]; do sleep 0.01; done"#);
    let tool = Tool::on(&redis, &["--runtime", runtime, "a job", "--", "sh", "-c", &script]);
    let line = scratch.line("env");
    let parts: Vec<&str> = line.split('|').collect();
    assert_eq!(parts[0], "a job");
    assert_eq!(parts[1], redis.cli(&["GET", "a job"]), "the token is the key's value");
    fences.push(parts[2].parse::<u64>().unwrap());
    std::fs::write(go, "").unwrap();
    assert_eq!(tool.end().code, 0);
    assert!(fences.is_sorted_by(|a, b| a < b), "fences grow: {fences:?}");
}

#[test]
fn quorum_unsets_inherited_lock_variables() {
    let quorum = Quorum::of(3);
    let scratch = Scratch::new();
    let file = scratch.path("env");
    let script = format!(r#"echo "${{LOCK_FENCE-unset}} ${{LOCK_TOKEN:+set}} ${{ETCD_LOCK_KEY-unset}}" > {file}"#);
    let outer = [("LOCK_FENCE", "7"), ("ETCD_LOCK_KEY", "job/1"), ("ETCD_LOCK_REV", "1")];
    let ended = quorum.start_with(&["job", "--", "sh", "-c", &script], &outer).end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(scratch.line("env"), "unset set unset");
}

#[test]
fn int_and_term_are_forwarded_and_lock_is_released() {
    let redis = Redis::start();
    for (signal, name, code) in [(Signal::INT, "INT", 33), (Signal::TERM, "TERM", 34)] {
        let scratch = Scratch::new();
        let script =
            format!("trap 'exit {code}' {name}; echo ready > {}; while :; do sleep 0.02; done", scratch.path("log"));
        let url = redis.url();
        let mut command = Tool::command(&["--backend", &url, "job", "--", "sh", "-c", &script], &[]);
        // Never the foreground of the terminal that runs the tests.
        command.process_group(0);
        let tool = Tool::spawn(command);
        scratch.line("log");
        tool.signal(signal);
        let ended = tool.end();
        assert_eq!(ended.code, code, "{ended:?}");
        assert_clean(&redis);
    }
}

/// The end of a session, such as the last one of a terminal.
#[cfg(target_os = "linux")]
#[test]
fn hangup_is_handled_unless_ignored() {
    let redis = Redis::start();
    let url = redis.url();
    let start = |starter: &[&str], args: &[&str]| {
        Tool::spawn(Tool::command_by(starter, &[&["--backend", &url, "job"], args].concat(), &[]))
    };
    let scratch = Scratch::new();
    let script = format!("trap 'exit 35' HUP; echo ready > {}; while :; do sleep 0.02; done", scratch.path("log"));
    let holder = start(WITH_SIGNALS, &["--", "sh", "-c", &script]);
    scratch.line("log");
    for (starter, code) in [(WITH_SIGNALS, 129), (&["env", "--default-signal=TERM", "nohup"], 143)] {
        let waiter = start(starter, &[]);
        waiter.wait_for_err("waiting");
        waiter.signal(Signal::HUP);
        waiter.signal(Signal::TERM);
        let ended = waiter.end();
        assert_eq!(ended.code, code, "{starter:?}: {ended:?}");
    }
    holder.signal(Signal::HUP);
    let ended = holder.end();
    assert_eq!(ended.code, 35, "{ended:?}");
    assert_clean(&redis);
}

/// systemd can send SIGHUP right after SIGTERM.
#[cfg(target_os = "linux")]
#[test]
fn signals_sent_together_do_not_abandon_release() {
    let redis = Redis::start();
    let args = ["--backend", &redis.url(), "--runtime", runtime(), "--ttl", "60s", "job"];
    let mut tool = Tool::spawn(Tool::command_by(WITH_SIGNALS, &args, &[]));
    tool.wait_for_out("held job");
    redis.pause();
    tool.signal(Signal::TERM);
    tool.signal(Signal::HUP);
    assert!(!wait_until(ms(300), || tool.has_ended()), "the release was abandoned: {}", tool.err());
    redis.resume();
    let ended = tool.end();
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    assert_clean(&redis);
}

/// The one that the command was sent did not count as the first.
#[test]
fn second_signal_abandons_release() {
    let redis = Redis::start();
    let runtime = runtime();
    let scratch = Scratch::new();
    let script = format!("echo $$ > {}; exec sleep 60", scratch.path("pid"));
    let mut tool = Tool::on(&redis, &["--runtime", runtime, "job", "--", "sh", "-c", &script]);
    let pid = scratch.line("pid");
    redis.pause();
    tool.signal(Signal::TERM);
    assert!(wait_until(LONG, || !is_alive(&pid)), "{runtime}: the command runs on");
    assert!(!wait_until(ms(1_300), || tool.has_ended()), "{runtime}: the release was abandoned: {}", tool.err());
    tool.signal(Signal::TERM);
    let signalled = Stopwatch::start();
    let ended = tool.end();
    signalled.assert_within(ms(1_000), runtime);
    assert_eq!(ended.code, 128 + 15, "{runtime}: {ended:?}");
    assert!(ended.err.ends_with("job: the release is unconfirmed; the lock ends with its TTL\n"), "{ended:?}");
}

/// A shell without job control starts what runs in the background with SIGINT ignored.
#[cfg(target_os = "linux")]
#[test]
fn command_ignores_what_was_ignored() {
    let redis = Redis::start();
    for signal in ["INT", "TERM", "QUIT", "PIPE", "USR1"] {
        let starter = ["env", &format!("--ignore-signal={signal}")];
        let script = format!("kill -{signal} $$; exit 7");
        let args = ["--backend", &redis.url(), "job", "--", "sh", "-c", &script];
        let ended = Tool::spawn(Tool::command_by(&starter, &args, &[])).end();
        assert_eq!(ended.code, 7, "{signal}: {ended:?}");
    }
}

/// Rust's runtime ignores it, whatever it was.
#[cfg(target_os = "linux")]
#[test]
fn sigpipe_that_was_not_ignored_ends_the_command() {
    let redis = Redis::start();
    let args = ["--backend", &redis.url(), "job", "--", "sh", "-c", "kill -PIPE $$; exit 7"];
    let ended = Tool::spawn(Tool::command_by(&["env", "--default-signal=PIPE"], &args, &[])).end();
    assert_eq!(ended.code, 128 + 13, "{ended:?}");
}

/// Regression: they ended `with-lock`, the command was killed, and the lock stayed until its TTL. As
/// the first process of a container it ignored them.
#[cfg(target_os = "linux")]
#[test]
fn signals_for_services_are_forwarded() {
    let redis = Redis::start();
    let signals = [Signal::QUIT, Signal::USR1, Signal::USR2, Signal::ALARM, Signal::WINCH];
    let scratch = Scratch::new();
    let log = scratch.path("log");
    let script = format!(
        "for signal in QUIT USR1 USR2 ALRM WINCH; do trap \"echo $signal >> {log}\" $signal; done; \
         trap 'exit 36' TERM; echo ready >> {log}; while :; do sleep 0.02; done"
    );
    let url = redis.url();
    let mut command = Tool::command(&["--backend", &url, "job", "--", "sh", "-c", &script], &[]);
    // Never the foreground of the terminal that runs the tests.
    command.process_group(0);
    let tool = Tool::spawn(command);
    scratch.line("log");
    let mut expected = "ready\n".to_owned();
    for (signal, name) in signals.into_iter().zip(["QUIT", "USR1", "USR2", "ALRM", "WINCH"]) {
        tool.signal(signal);
        expected = format!("{expected}{name}\n");
        assert!(wait_until(LONG, || scratch.read("log") == expected), "{name}: {}", scratch.read("log"));
    }
    tool.signal(Signal::TERM);
    let ended = tool.end();
    assert_eq!(ended.code, 36, "{ended:?}");
    assert_clean(&redis);
}

#[cfg(target_os = "linux")]
#[test]
fn quit_ends_the_wait_and_a_resize_does_not() {
    let redis = Redis::start();
    let holder = Tool::on(&redis, &["job"]);
    holder.wait_for_out("held");
    let mut waiter = Tool::on(&redis, &["job"]);
    waiter.wait_for_err("waiting");
    waiter.signal(Signal::WINCH);
    assert!(!wait_until(ms(200), || waiter.has_ended()), "{}", waiter.err());
    waiter.signal(Signal::QUIT);
    assert_eq!(waiter.end().code, 128 + 3);
    holder.signal(Signal::QUIT);
    let ended = holder.end();
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_clean(&redis);
}

/// The first process of a container is the parent of every orphan. So is what replaces a shell of
/// the shell's children.
#[cfg(target_os = "linux")]
#[test]
fn children_of_others_are_reaped() {
    let redis = Redis::start();
    let scratch = Scratch::new();
    let (ready, go) = (scratch.path("ready"), scratch.path("go"));
    let script = format!("echo > {ready}; until [ -e {go} ]; do sleep 0.01; done; exit 7");
    let line = r#"for i in 1 2 3 4 5; do sleep 0.0$i & done; exec "$0" --backend "$1" job -- sh -c "$2""#;
    let mut command = Command::new("sh");
    command.args(["-c", line, PROGRAM, &redis.url(), &script]);
    let tool = Tool::spawn(command);
    scratch.line("ready");
    let children = || {
        let pid = tool.pid().as_raw_pid();
        let lists = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let lists = lists.map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap());
        lists.collect::<String>().split_whitespace().count()
    };
    assert!(wait_until(LONG, || children() == 1), "{} children are left", children());
    std::fs::write(go, "").unwrap();
    assert_eq!(tool.end().code, 7);
    assert_clean(&redis);
}

#[test]
fn lock_without_command_is_held_until_signal() {
    let runtime = runtime();
    let redis = Redis::start();
    let tool = Tool::on(&redis, &["--runtime", runtime, "--ttl", "1500ms", "line\nbreak"]);
    tool.wait_for_out("held line\\nbreak fence=");
    assert!(tool.out().ends_with(" ttl=1500\n"), "{}", tool.out());
    // Renewed past its TTL.
    std::thread::sleep(core::time::Duration::from_millis(2200));
    assert_eq!(redis.cli(&["EXISTS", "line\nbreak"]), "1", "{runtime}: not renewed");
    tool.signal(Signal::INT);
    let ended = tool.end();
    assert_eq!(ended.code, 0, "{runtime}: {ended:?}");
    assert_clean(&redis);
}

/// The terminal sends SIGINT to the command too. A command outside of the foreground group shows
/// what `with-lock` forwards.
#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_of_terminal_is_not_forwarded() {
    let redis = Redis::start();
    let scratch = Scratch::new();
    let script = format!(
        "trap 'echo INT >> {log}' INT; trap 'echo TERM >> {log}; exit 34' TERM; echo ready >> {log}; \
         while :; do sleep 0.02; done",
        log = scratch.path("log")
    );
    let mut terminal = crate::terminal::Terminal::open();
    let tool = terminal.start(&["--backend", &redis.url(), "job", "--", "setsid", "sh", "-c", &script]);
    scratch.line("log");
    terminal.press_ctrl_c();
    tool.signal(Signal::TERM);
    let ended = tool.end();
    assert_eq!(ended.code, 34, "{ended:?}");
    assert_eq!(scratch.read("log"), "ready\nTERM\n");
    assert_clean(&redis);
}

/// Ctrl-C may end the command before `with-lock` learns of the signal.
#[test]
fn one_signal_during_release_does_not_abandon_it() {
    let redis = Redis::start();
    let runtime = runtime();
    let scratch = Scratch::new();
    let (file, go) = (scratch.path("pid"), scratch.path("go"));
    let script = format!("echo $$ > {file}; until [ -e {go} ]; do sleep 0.01; done");
    let tool = Tool::on(&redis, &["--runtime", runtime, "--ttl", "60s", "job", "--", "sh", "-c", &script]);
    let pid = scratch.line("pid");
    redis.pause();
    std::fs::write(go, "").unwrap();
    // Also when `with-lock` has collected its exit code.
    assert!(wait_until(LONG, || !is_alive(&pid)), "{runtime}: the command runs on");
    tool.signal(Signal::INT);
    redis.resume();
    let ended = tool.end();
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{runtime}: {ended:?}");
    assert_clean(&redis);
}

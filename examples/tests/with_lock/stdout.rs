//! `with-lock` when its stdout is full or nobody reads it.

use std::io::{BufRead as _, BufReader};

use lock_testkit::{Redis, wait_until};
use rustix::process::Signal;

use crate::harness::{Tool, assert_clean, ms};
use crate::kit::{full, unread};

#[test]
fn lock_is_released_if_its_line_cannot_be_written() {
    for stdout in [full, unread] {
        let redis = Redis::start();
        let url = redis.url();
        let command = Tool::command(&["--backend", &url, "job"], &[]);
        let ended = Tool::spawn_to(command, stdout()).end();
        assert!(ended.code == 74 && ended.err.contains("stdout"), "{ended:?}");
        assert_clean(&redis);
    }
}

#[test]
fn lock_is_released_once_nobody_reads_stdout() {
    let redis = Redis::start();
    let url = redis.url();
    let (reader, writer) = std::io::pipe().unwrap();
    let tool = Tool::spawn_to(Tool::command(&["--backend", &url, "job"], &[]), writer);
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).unwrap();
    assert!(line.starts_with("held job"), "{line}");
    let ended = tool.end();
    assert!(ended.code == 74 && ended.err.contains("nobody reads stdout any more; releasing the lock"), "{ended:?}");
    assert_clean(&redis);
}

/// Ctrl-C ends both sides of a pipe.
#[test]
fn reader_that_leaves_during_release_is_no_error() {
    let redis = Redis::start();
    let (reader, writer) = std::io::pipe().unwrap();
    let command = Tool::command(&["--backend", &redis.url(), "--ttl", "60s", "job"], &[("LOCK_LOG", "off")]);
    let mut tool = Tool::spawn_to(command, writer);
    let mut reader = BufReader::new(reader);
    reader.read_line(&mut String::new()).unwrap();
    redis.pause();
    tool.signal(Signal::INT);
    assert!(!wait_until(ms(300), || tool.has_ended()), "{}", tool.err());
    drop(reader);
    assert!(!wait_until(ms(300), || tool.has_ended()), "{}", tool.err());
    redis.resume();
    let ended = tool.end();
    assert_eq!((ended.code, &*ended.err), (0, ""), "{ended:?}");
    assert_clean(&redis);
}

#[test]
fn wait_ends_once_nobody_reads_stdout() {
    let redis = Redis::start();
    let holder = Tool::on(&redis, &["job"]);
    holder.wait_for_out("held job");
    let url = redis.url();
    let ended = Tool::spawn_to(Tool::command(&["--backend", &url, "job"], &[]), unread()).end();
    assert!(ended.code == 74 && ended.err.contains("nobody reads stdout any more"), "{ended:?}");
    assert_eq!(holder.terminate().code, 0);
    assert_clean(&redis);
}

#[test]
fn command_does_not_depend_on_stdout() {
    let redis = Redis::start();
    let url = redis.url();
    for stdout in [full, unread] {
        let command = Tool::command(&["--backend", &url, "job", "--", "sleep", "0.2"], &[]);
        let ended = Tool::spawn_to(command, stdout()).end();
        assert!(ended.code == 0 && ended.err.is_empty(), "{ended:?}");
    }
}

#[test]
fn text_that_cannot_be_written_is_an_error() {
    for option in ["--help", "--version"] {
        let ended = Tool::spawn_to(Tool::command(&[option], &[]), full()).end();
        assert!(ended.code == 74 && ended.err.contains("stdout cannot be written"), "{option}: {ended:?}");
    }
}

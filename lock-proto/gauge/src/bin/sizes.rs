//! Memory and stack of the state machines on this computer. Part of `make sizes`.
//!
//! Memory is counted by the allocator, stack by valgrind, which runs this program again with `run
//! NAME`.

use core::time::Duration;
use std::process::{Command, ExitCode};

use allocation_counter::measure;
use lock_gauge::rig::Rig;
use lock_gauge::{etcd, quorum, redis, zookeeper};
use lock_proto::Machine as _;

/// Locks of which the average is taken.
const LOCKS: i64 = 1_000;
/// A frame of a known size.
const FRAME: usize = 16 * 1024;
/// A name, what counts memory, and what needs the stack.
type Subject = (&'static str, fn() -> [i64; 4], fn());
const SUBJECTS: [Subject; 4] = [
    ("Redis, one node", memory::<redis::Rig>, cycle::<redis::Rig>),
    ("Redis, quorum of five", memory::<quorum::Rig>, cycle::<quorum::Rig>),
    ("etcd", memory::<etcd::Rig>, cycle::<etcd::Rig>),
    ("ZooKeeper", memory::<zookeeper::Rig>, cycle::<zookeeper::Rig>),
];

fn main() -> ExitCode {
    let run = std::env::args().nth(2);
    if let Some(name) = run {
        let frame: fn() = frame;
        let work = SUBJECTS.iter().find(|(subject, ..)| *subject == name).map_or(frame, |(_, _, cycle)| *cycle);
        return if std::thread::spawn(work).join().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    println!("| bytes | client with its connections | held lock | waiter | released lock | stack |");
    println!("|---|---|---|---|---|---|");
    for (name, memory, _) in SUBJECTS {
        let [client, held, waiter, released] = memory();
        // What a thread has on its stack before it calls anything.
        let stack = stack("frame").and_then(|base| Ok(stack(name)? - (base - FRAME)));
        match stack {
            Ok(stack) => println!("| {name} | {client} | {held} | {waiter} | {released} | {stack} |"),
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Bytes of a client, of a held lock, of a waiter, and what a lock leaves when it is released.
fn memory<R: Rig>() -> [i64; 4] {
    let mut rig = None;
    let client = measure(|| rig = Some(Box::new(R::ready()))).bytes_current;
    let rig = rig.as_mut().expect("a client");
    let mut locks = Vec::with_capacity(LOCKS as usize);
    let held = measure(|| locks.extend((0..LOCKS).map(|n| rig.hold(&format!("invoice:{n:08}"))))).bytes_current;
    let release_all = || {
        locks.drain(..).for_each(|lock| rig.release(lock));
        // A client of ZooKeeper remembers the end of each queue for a second.
        rig.pass(Duration::from_secs(1));
        let (client, now) = rig.client();
        client.handle_timeout(now);
    };
    let released = held + measure(release_all).bytes_current;
    let _holder = rig.hold("invoice:00000000");
    let waiters = measure(|| (0..LOCKS).for_each(|_| rig.wait("invoice:00000000"))).bytes_current;
    [client, held / LOCKS, waiters / LOCKS, released / LOCKS]
}

/// Acquisitions and releases.
fn cycle<R: Rig>() {
    let mut rig = Box::new(R::ready());
    (0..10).for_each(|_| rig.cycle());
}

fn frame() {
    core::hint::black_box([0_u8; FRAME]);
}

/// The most that the thread of `run NAME` has had on its stack.
fn stack(name: &str) -> Result<usize, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=drd", "--show-stack-usage=yes"]).arg(program).args(["run", name]).env_clear();
    let output = valgrind.output().map_err(|error| format!("valgrind cannot be run: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let used = text.split("thread 2 finished and used ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    used.filter(|_| output.status.success()).ok_or_else(|| format!("valgrind: {}\n{text}", output.status))
}

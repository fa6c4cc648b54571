//! Three processes on one path, each with another library: ours, kazoo and Curator. Some are
//! killed, and their connections are cut. Nobody overlaps, and the fences grow.
//!
//! `LOCK_TURNS` sets the number of turns of all together: 10000 takes a few minutes.

use core::time::Duration;
use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use lock_testkit::{Chroot, Proxy, Witness, ZooKeeper, ZooKeeperPeer, spawn, wait_until};
use lock_tokio::{Release, zookeeper};
use tokio::time::sleep;

use crate::kit::{TTL, assert_clean, in_time, ms};

const TURNS: usize = 900;
/// How long a turn is on average.
const HOLD_MS: u64 = 1;
/// Between two cuts. The Java client waits for up to a second before it connects again.
const CUT_EVERY: Duration = ms(600);
/// Between two kills. Each stops the queue for a TTL if it hits the holder.
const KILL_EVERY: Duration = ms(10_000);
/// How often a peer may give up.
const MAX_RESTARTS: u32 = 5;
const PATH: &str = "/a";

/// A process that takes turns until it is killed or has had them all.
enum Process {
    Peer(ZooKeeperPeer),
    Ours(Child),
}

impl Process {
    /// The exit status, if it has ended by itself.
    fn ended(&mut self) -> Option<ExitStatus> {
        match self {
            Self::Peer(peer) => peer.ended(),
            Self::Ours(child) => child.try_wait().unwrap(),
        }
    }

    fn kill(&mut self) {
        match self {
            Self::Peer(peer) => peer.kill(),
            Self::Ours(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn three_libraries_take_turns_under_kills_and_cuts() {
    let turns = env::var("LOCK_TURNS").map_or(TURNS, |text| text.parse().expect("LOCK_TURNS is a number"));
    let each = turns / 3;
    let chroot = Chroot::alone(ZooKeeper::start());
    let witness = Witness::start();
    let proxies: [Proxy; 3] = core::array::from_fn(|_| Proxy::start(chroot.server().address()));
    let names = ["ours", "kazoo", "curator"];
    let had = |who: usize| witness.turns().iter().filter(|turn| turn.who == names[who]).count();
    let start = |who: usize| {
        let hosts = format!("{}{}", proxies[who].address(), chroot.path());
        let command = format!("turns {PATH} {} {HOLD_MS} {}", each - had(who).min(each), witness.address());
        match who {
            0 => Process::Ours(start_ours(&format!("zk://{hosts}?tick_ms=200"), each - had(who), &witness)),
            _ => {
                let mut peer = match who {
                    1 => ZooKeeperPeer::kazoo(&hosts, TTL * 2, "-lock-"),
                    _ => ZooKeeperPeer::curator(&hosts, TTL * 2),
                };
                peer.send(&command);
                Process::Peer(peer)
            }
        }
    };
    let mut processes: [Process; 3] = core::array::from_fn(start);
    let (mut cut_at, mut kill_at, mut round) = (Instant::now() + CUT_EVERY, Instant::now() + KILL_EVERY, 0);
    let limit = Duration::from_secs(30) + ms(100) * u32::try_from(turns).unwrap();
    let (mut kills, mut cuts, mut restarts) = (0, 0, 0);
    let all_served = wait_until(limit, || {
        for (who, process) in processes.iter_mut().enumerate() {
            // Before it is killed and replaced.
            let Some(status) = process.ended() else { continue };
            if who > 0 && had(who) < each && restarts < MAX_RESTARTS {
                // A peer gives up if a cut costs it its session. It begins again, as after a kill.
                *process = start(who);
                restarts += 1;
                continue;
            }
            assert!(status.success() && had(who) >= each, "{} ends after {}: {status}", names[who], had(who));
        }
        let now = Instant::now();
        if now >= cut_at {
            proxies[round % 3].cut();
            (cut_at, round, cuts) = (now + CUT_EVERY, round + 1, cuts + 1);
        }
        // A short run may be over before the first of the later kills.
        if now >= kill_at || (kills == 0 && had(0) >= each / 2) {
            let who = kills % 3;
            if had(who) < each {
                processes[who].kill();
                processes[who] = start(who);
            }
            (kill_at, kills) = (Instant::now() + KILL_EVERY, kills + 1);
        }
        (0..3).all(|who| had(who) >= each)
    });
    let turns = witness.turns();
    let counts = [0, 1, 2].map(had);
    println!("{} turns {counts:?}, {cuts} cuts, {kills} kills, {restarts} peers gave up", turns.len());
    assert!(all_served && kills > 0, "{counts:?} of {each}");
    let changes = turns.windows(2).filter(|pair| pair[0].who != pair[1].who).count();
    assert!(changes > turns.len() / 10, "they alternate: {changes} of {}", turns.len());
    drop(processes);
    tokio::runtime::Runtime::new().unwrap().block_on(assert_clean(&chroot));
}

fn start_ours(url: &str, turns: usize, witness: &Witness) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["alternation::worker", "--exact", "--ignored", "--nocapture"]);
    command.env("LOCK_WORKER_URL", url).env("LOCK_WORKER_TURNS", turns.to_string());
    command.env("LOCK_WORKER_WITNESS", witness.address().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    spawn(command).unwrap()
}

/// The process of our client, started by the test above.
#[test]
#[ignore = "it is a process of another test"]
fn worker() {
    let Ok(url) = env::var("LOCK_WORKER_URL") else { return };
    let turns: usize = env::var("LOCK_WORKER_TURNS").unwrap().parse().unwrap();
    let mut witness = TcpStream::connect(env::var("LOCK_WORKER_WITNESS").unwrap()).unwrap();
    witness.set_nodelay(true).unwrap();
    let mut answers = BufReader::new(witness.try_clone().unwrap());
    let mut tell = |words: String| {
        writeln!(witness, "{words}").unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, "ok\n");
    };
    tell(format!("ours {turns}"));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        // A killed process stops the queue for that long.
        let config = zookeeper::Config::parse(&url).unwrap().session_ttl(TTL);
        let client = lock_tokio::connect_with(config).unwrap();
        for _ in 0..turns {
            // A session may end while its server is being cut off, and the lock with it.
            let guard = in_time("a grant", client.lock(&PATH[1..]).acquire()).await.unwrap();
            tell(format!("enter {}", guard.fence().unwrap()));
            sleep(ms(HOLD_MS)).await;
            assert!(guard.is_held());
            tell("leave".to_owned());
            let released = in_time("a release", guard.release()).await;
            assert!(matches!(released, Release::Released | Release::Unknown), "{released:?}");
        }
        client.shutdown(TTL).await;
    });
}

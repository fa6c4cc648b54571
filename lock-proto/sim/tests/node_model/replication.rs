//! Replication: the stream of a primary, the state of a replica, and the data after a promotion.

use core::time::Duration;
use std::time::Instant as Clock;

use lock_sim::redis::NodeConfig;

use crate::feed::Feed;
use crate::generate::Generator;
use crate::reply::{Match, Reply};
use crate::{CONNS, Pair};

fn field(info: &str, name: &str) -> String {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {info}")).to_owned()
}

impl Pair {
    fn real_info(&mut self) -> String {
        let Reply::Bulk(info) = self.control.round_trip(&["INFO", "replication"]) else { panic!("INFO answers text") };
        String::from_utf8_lossy(&info).into_owned()
    }

    fn model_info(&mut self) -> String {
        let now = self.now();
        self.model.handle_connected(now, 98);
        self.model.handle_received(now, 98, b"INFO replication\r\n");
        let Some(Reply::Bulk(info)) = self.model_reply(98) else { panic!("INFO answers text") };
        self.model.handle_disconnected(now, 98);
        String::from_utf8_lossy(&info).into_owned()
    }

    fn real_offset(&mut self) -> u64 {
        field(&self.real_info(), "master_repl_offset").parse().unwrap()
    }

    fn same_info(&mut self, names: &[&str]) {
        let (model, real) = (self.model_info(), self.real_info());
        for name in names {
            assert_eq!(field(&model, name), field(&real, name), "{name} in\n{model}\nand\n{real}");
        }
    }
}

struct Replicated {
    primary: Pair,
    replica: Pair,
}

impl Replicated {
    fn new(seed: u64, prepare: impl Fn(&mut crate::server::RealConnection)) -> Self {
        let mut primary = Pair::new(NodeConfig::new(seed), &prepare);
        let mut replica = Pair::new(NodeConfig::new(seed + 1_000), &prepare);
        primary.log_in(&[]);
        replica.log_in(&[]);
        // Data from before the replication is part of the copy.
        primary.run(&mut Generator::new(seed, CONNS), 100);
        let port = primary.server.port.to_string();
        assert_eq!(replica.control.round_trip(&["REPLICAOF", "127.0.0.1", &port]), Reply::Line('+', "OK".into()));
        let now = primary.now();
        let copy = primary.model.snapshot(now);
        let now = replica.now();
        replica.model.replicate(now, &copy);
        let mut both = Self { primary, replica };
        both.catch_up();
        both
    }

    /// Applies all effects to the replica's model and waits until the real replica has them.
    fn catch_up(&mut self) {
        let now = self.replica.now();
        while let Some(effect) = self.primary.model.poll_effect() {
            self.replica.model.handle_effect(now, &effect);
        }
        let offset = self.replica.model.replication_offset();
        assert!(!self.replica.model.needs_copy());
        assert_eq!(offset, self.primary.model.replication_offset());
        let now = self.primary.now();
        self.primary.model.handle_ack(now, 1, offset);
        let deadline = Clock::now() + Duration::from_secs(30);
        loop {
            let primary = self.primary.real_offset();
            if primary == offset && self.replica.real_offset() == offset {
                let info = self.replica.real_info();
                if field(&info, "master_link_status") == "up" {
                    return;
                }
            }
            if Clock::now() > deadline {
                let info = self.replica.real_info();
                self.primary
                    .fail(&format!("the model is at {offset}, redis-server at {primary}, its replica at {info}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn promote(&mut self) {
        assert_eq!(self.replica.control.round_trip(&["REPLICAOF", "NO", "ONE"]), Reply::Line('+', "OK".into()));
        let now = self.replica.now();
        self.replica.model.promote(now);
    }
}

#[test]
fn primary_sends_same_replication_stream() {
    for seed in 71..74 {
        let mut pair = Pair::new(NodeConfig::new(seed), |control| {
            // Keys expire on access, not in the background.
            control.round_trip(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        });
        pair.log_in(&[]);
        let mut feed = Feed::open(pair.server.port);
        let now = pair.now();
        let copy = pair.model.snapshot(now);
        assert_eq!(copy, pair.model.snapshot(now));
        let mut generator = Generator::new(seed, CONNS);
        let mut effects = 0;
        for round in 0..300 {
            pair.run(&mut generator, 4);
            if round % 30 == 0 {
                pair.run_line("SET ends v PX 1");
                pair.run_line("SELECT 1");
                pair.run_line("SET other v");
                pair.run_line("SELECT 0");
                // The keys must expire on both clocks.
                std::thread::sleep(Duration::from_millis(4));
                pair.run_line("DEL ends other");
                pair.run_line("PUBLISH c message");
            }
            while let Some(effect) = pair.model.poll_effect() {
                effects += 1;
                if let Err(why) = feed.expect(&effect) {
                    pair.fail(&why);
                }
            }
        }
        assert!(effects > 200, "{effects} are too few to tell");
        let offset = pair.real_offset();
        assert_eq!(pair.model.replication_offset(), offset, "the stream is as long, to the byte");
    }
}

#[test]
fn replica_gives_same_replies_before_and_after_promotion() {
    let mut both = Replicated::new(81, |_| {});
    let mut writes = Generator::new(82, CONNS);
    let mut all = Generator::new(83, CONNS);
    all.blocking = false;
    for _ in 0..10 {
        both.primary.run(&mut writes, 40);
        both.catch_up();
        both.replica.run(&mut all, 40);
    }
    both.replica.same_info(&[
        "role",
        "master_link_status",
        "slave_repl_offset",
        "slave_read_only",
        "master_repl_offset",
    ]);
    both.primary.same_info(&["role", "connected_slaves", "master_repl_offset", "second_repl_offset", "master_replid2"]);
    both.replica.run_line_as("ROLE", Match::Kind);
    both.replica.run_line("WAIT 1 0");
    both.promote();
    both.replica.same_info(&["role", "master_repl_offset", "second_repl_offset"]);
    let id = both.replica.model.replication_id().to_owned();
    assert_ne!(id, both.primary.model.replication_id());
    assert_eq!(field(&both.replica.model_info(), "master_replid2"), both.primary.model.replication_id());
    both.replica.run(&mut Generator::new(84, CONNS), 500);
}

#[test]
fn replica_hides_expired_keys_until_primary_removes_them() {
    let mut both = Replicated::new(91, |control| {
        control.round_trip(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    });
    both.primary.run_line("FLUSHALL");
    for promoted in [false, true] {
        both.primary.run_line("SET short v PX 30");
        both.primary.run_line("RPUSH list a b");
        both.primary.run_line("PEXPIRE list 30");
        both.catch_up();
        // The keys must expire on all clocks.
        std::thread::sleep(Duration::from_millis(40));
        for line in ["GET short", "LLEN list", "PTTL short", "TYPE list", "EXISTS short list", "KEYS *", "DBSIZE"] {
            both.replica.run_line(line);
        }
        both.replica.run_line("SET short w NX");
        if promoted {
            both.promote();
            both.replica.run_line("SET short w NX PX 100000");
            both.replica.run_line("GET list");
        } else {
            // Access on the primary expires the keys and replicates that.
            both.primary.run_line("EXISTS short list");
            both.catch_up();
        }
        both.replica.run_line("DBSIZE");
    }
}

#[test]
fn acknowledged_writes_are_counted_alike() {
    let mut both = Replicated::new(101, |_| {});
    both.primary.run_line("WAIT x 0");
    both.primary.run_line("WAIT 1 -1");
    both.primary.run_line("WAIT 1 x");
    both.primary.run_line("SET k v");
    both.catch_up();
    // A real replica acknowledges once a second; WAIT asks it to do so at once.
    let offset = both.primary.model.replication_offset();
    let now = both.primary.now();
    both.primary.model.handle_ack(now, 1, offset);
    both.primary.real[0].send(b"WAIT 1 25000\r\n");
    assert_eq!(both.primary.real[0].read(), Ok(Reply::Int(1)));
    both.primary.model.handle_received(now, 0, b"WAIT 1 25000\r\n");
    assert_eq!(both.primary.model_reply(0), Some(Reply::Int(1)));
    both.primary.real[0].send(b"WAIT 2 20\r\n");
    let now = both.primary.now();
    both.primary.model.handle_received(now, 0, b"WAIT 2 20\r\n");
    assert_eq!(both.primary.model_reply(0), None);
    both.primary.model.handle_timeout(both.primary.model.next_deadline().unwrap());
    assert_eq!(both.primary.model_reply(0), Some(Reply::Int(1)));
    assert_eq!(both.primary.real[0].read(), Ok(Reply::Int(1)));
}

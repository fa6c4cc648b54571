//! Compares the simulated node with a real Redis server: both get the same generated commands, and
//! every reply must match.
// S1
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod feed;
mod fences;
mod generate;
mod limits;
mod replication;
mod reply;
mod server;
mod speed;

use core::time::Duration;
use std::time::{Instant as Clock, SystemTime, UNIX_EPOCH};

use generate::{Generator, Step};
use lock_proto::Instant;
use lock_sim::redis::{Condition, Node, NodeConfig, RespReply as SimReply, ScriptCalls, User};
use reply::{Match, Reply, parse};
use server::{RealConnection, RealServer, encode};

const CONNS: usize = 3;

struct Pair {
    server: RealServer,
    control: RealConnection,
    real: Vec<RealConnection>,
    real_ids: Vec<i64>,
    model: Node,
    model_ids: Vec<i64>,
    start: Clock,
    history: Vec<String>,
}

impl Pair {
    fn new(config: NodeConfig, prepare: impl FnOnce(&mut RealConnection)) -> Self {
        let server = RealServer::start();
        let mut control = RealConnection::open(server.port);
        prepare(&mut control);
        let start = Clock::now();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let model = Node::new(Instant::ZERO, config.unix_time(unix));
        let mut pair = Self {
            server,
            control,
            real: Vec::new(),
            real_ids: Vec::new(),
            model,
            model_ids: Vec::new(),
            start,
            history: Vec::new(),
        };
        for conn in 0..CONNS {
            pair.real.push(RealConnection::open(pair.server.port));
            pair.model.handle_connected(Instant::ZERO, conn as u64);
        }
        pair
    }

    /// Logs in on every connection and stores the client ids.
    fn log_in(&mut self, args: &[&str]) {
        for conn in 0..CONNS {
            if !args.is_empty() {
                self.step(&Step {
                    conn,
                    args: args.iter().map(|arg| arg.as_bytes().to_vec()).collect(),
                    how: Match::Exact,
                });
            }
            let Reply::Int(id) = self.real[conn].round_trip(&["CLIENT", "ID"]) else { panic!("an id") };
            self.real_ids.push(id);
            self.model.handle_received(self.now(), conn as u64, b"CLIENT ID\r\n");
            let Some(Reply::Int(id)) = self.model_reply(conn) else { panic!("an id") };
            self.model_ids.push(id);
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.start.elapsed()
    }

    fn model_reply(&mut self, conn: usize) -> Option<Reply> {
        let (reply, used) = parse(self.model.outgoing(conn as u64))?;
        self.model.consume(conn as u64, used);
        Some(reply)
    }

    fn step(&mut self, step: &Step) {
        let shown: Vec<String> =
            step.args.iter().map(|arg| format!("{:.60}", arg.escape_ascii().to_string())).collect();
        self.history.push(format!("{}: {}", step.conn, shown.join(" ")));
        let with_ids = |ids: &[i64]| -> Vec<Vec<u8>> {
            let replaced = step.args.iter().map(|arg| {
                let place = (0..CONNS).find(|i| *arg == format!("{{id:{i}}}").into_bytes());
                place.map_or_else(|| arg.clone(), |i| ids[i].to_string().into_bytes())
            });
            replaced.collect()
        };
        self.real[step.conn].send(&encode(&with_ids(&self.real_ids)));
        let now = self.now();
        self.model.handle_received(now, step.conn as u64, &encode(&with_ids(&self.model_ids)));
        let mut answered = false;
        for conn in 0..CONNS {
            while let Some(expected) = self.model_reply(conn) {
                answered |= conn == step.conn;
                let how = if conn == step.conn { step.how } else { Match::Exact };
                match self.real[conn].read() {
                    Ok(found) if expected.agrees(&found, how) => {}
                    found => {
                        self.fail(&format!("connection {conn}: the model says {expected:?}, redis-server {found:?}"))
                    }
                }
            }
        }
        if !answered {
            self.await_blocked();
        }
    }

    /// Waits until the real server has blocked the client as well.
    fn await_blocked(&mut self) {
        let expected = format!("blocked_clients:{}\r\n", self.model.blocked_count());
        let deadline = Clock::now() + Duration::from_secs(30);
        loop {
            let Reply::Bulk(info) = self.control.round_trip(&["INFO", "clients"]) else { panic!("INFO answers text") };
            let info = String::from_utf8_lossy(&info).into_owned();
            if info.contains(&expected) {
                return;
            }
            if Clock::now() > deadline {
                self.fail(&format!("the model expects {expected:?}, redis-server says {info}"));
            }
        }
    }

    /// Sends one command on the first connection, given as words.
    fn run_line(&mut self, line: &str) {
        self.run_line_as(line, Match::Exact);
    }

    fn run_line_as(&mut self, line: &str, how: Match) {
        let args = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        self.step(&Step { conn: 0, args, how });
    }

    fn fail(&self, what: &str) -> ! {
        let tail = &self.history[self.history.len().saturating_sub(40)..];
        panic!("{what}\nafter\n{}", tail.join("\n"));
    }

    fn run(&mut self, generator: &mut Generator, steps: usize) {
        for _ in 0..steps {
            let mut step = generator.step();
            // A blocked client sends nothing. The next free one sends the command instead.
            let free = (0..CONNS).map(|i| (step.conn + i) % CONNS).find(|conn| !self.is_blocked(*conn));
            match free {
                Some(conn) => step.conn = conn,
                None => self.release_all(),
            }
            let others_blocked = (0..CONNS).filter(|conn| self.is_blocked(*conn)).count();
            if step.args[0] == b"BLPOP" && others_blocked + 1 == CONNS {
                continue;
            }
            self.step(&step);
            // The clocks differ, so a signal with its own TTL may expire on one server only.
            for signal in generator.signals.drain(..) {
                let args = ["EXPIRE", signal, "1000000"].map(|arg| arg.as_bytes().to_vec()).to_vec();
                self.step(&Step { conn: step.conn, args, how: Match::Exact });
            }
        }
        self.release_all();
    }

    fn is_blocked(&self, conn: usize) -> bool {
        self.model.is_blocked(conn as u64)
    }

    fn release_all(&mut self) {
        for conn in 0..CONNS {
            if !self.is_blocked(conn) {
                continue;
            }
            let id = self.real_ids[conn].to_string();
            assert_eq!(self.control.round_trip(&["CLIENT", "UNBLOCK", &id]), Reply::Int(1));
            let now = self.now();
            self.model.handle_connected(now, 99);
            // Without a password AUTH fails, which does no harm.
            let line = format!("AUTH secret\r\nCLIENT UNBLOCK {}\r\n", self.model_ids[conn]);
            self.model.handle_received(now, 99, line.as_bytes());
            self.model.handle_disconnected(now, 99);
            let expected = self.model_reply(conn);
            let found = self.real[conn].read().ok();
            assert_eq!(expected, found, "after CLIENT UNBLOCK");
        }
    }
}

#[test]
fn generated_commands_get_same_replies() {
    // More seeds: NODE_MODEL_SEEDS=100 cargo test --features sim --test node_model
    let seeds = std::env::var("NODE_MODEL_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    for seed in 1..=seeds {
        let mut pair = Pair::new(NodeConfig::new(seed), |_| {});
        pair.log_in(&[]);
        pair.run(&mut Generator::new(seed, CONNS), 2_000);
    }
}

#[test]
fn transactions_get_same_replies() {
    for seed in 51..54 {
        let mut pair = Pair::new(NodeConfig::new(seed), |_| {});
        pair.log_in(&[]);
        let mut generator = Generator::new(seed, CONNS);
        // The replies of commands in a transaction do not tell who waits.
        (generator.transactions, generator.blocking) = (true, false);
        pair.run(&mut generator, 3_000);
        assert!(pair.model.calls().get("exec").is_some_and(|count| *count > 100));
    }
}

#[test]
fn transaction_is_refused_like_its_commands() {
    let mut pair = Pair::new(NodeConfig::new(1), |_| {});
    pair.log_in(&[]);
    pair.run_line("MULTI");
    pair.run_line("SET k v");
    pair.run_line("BLPOP list 0");
    pair.run_line("SELECT 1");
    pair.run_line("SET k w");
    pair.run_line("WAIT 3 0");
    pair.control.round_trip(&["CONFIG", "SET", "maxmemory", "1"]);
    let now = pair.now();
    pair.model.set(now, Condition::OutOfMemory, true);
    pair.run_line("EXEC");
    pair.run_line("MULTI");
    pair.run_line("SET k v");
    pair.run_line("EXEC");
    pair.control.round_trip(&["CONFIG", "SET", "maxmemory", "0"]);
    let now = pair.now();
    pair.model.set(now, Condition::OutOfMemory, false);
    for line in ["MULTI", "SET k v", "BLPOP list 0", "SELECT 1", "SET k w", "WAIT 3 0", "GET k", "EXEC", "GET k"] {
        pair.run_line(line);
    }
    // A watched key that expires counts as changed.
    for line in ["SELECT 0", "SET short v PX 15", "WATCH short", "MULTI", "SET x y"] {
        pair.run_line(line);
    }
    std::thread::sleep(Duration::from_millis(18));
    pair.run_line("EXEC");
    pair.run_line("EXISTS x short");
}

/// A script that is not this library's, and a Rust function that does the same.
#[test]
fn own_scripts_get_same_replies() {
    const SOURCE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('rpush', KEYS[2], 'freed') \
                          return {redis.call('del', KEYS[1]), 'freed'} end \
                          return redis.pcall('incr', KEYS[1])";
    fn run(redis: &mut ScriptCalls<'_>, keys: &[&[u8]], args: &[&[u8]]) -> Result<SimReply, SimReply> {
        if redis.call(&[b"GET", keys[0]])?.bytes() == args.first().copied() {
            redis.call(&[b"RPUSH", keys[1], b"freed"])?;
            let deleted = redis.call(&[b"DEL", keys[0]])?;
            return Ok(SimReply::Array(vec![deleted, SimReply::bulk("freed")]));
        }
        Ok(redis.try_call(&[b"INCR", keys[0]]))
    }
    let mut pair = Pair::new(NodeConfig::new(1).script(SOURCE, run), |_| {});
    pair.log_in(&[]);
    let Reply::Bulk(sha1) = pair.control.round_trip(&["SCRIPT", "LOAD", SOURCE]) else { panic!("a hash") };
    let sha1 = String::from_utf8(sha1).unwrap();
    pair.control.round_trip(&["SCRIPT", "FLUSH"]);
    let script = |pair: &mut Pair, args: &[&str]| {
        let args = args.iter().map(|arg| arg.as_bytes().to_vec()).collect();
        pair.step(&Step { conn: 0, args, how: Match::Exact });
    };
    script(&mut pair, &["EVALSHA", &sha1, "2", "k", "l", "me"]);
    script(&mut pair, &["SCRIPT", "LOAD", SOURCE]);
    script(&mut pair, &["SCRIPT", "EXISTS", &sha1, &sha1.to_uppercase(), "x"]);
    for line in ["SET k you", "GET k", "SET k 41"] {
        script(&mut pair, &["EVALSHA", &sha1, "2", "k", "l", "me"]);
        pair.run_line(line);
    }
    script(&mut pair, &["EVAL", SOURCE, "2", "k", "l", "me"]);
    pair.run_line("SET k me");
    script(&mut pair, &["MULTI"]);
    script(&mut pair, &["EVAL", SOURCE, "2", "k", "l", "me"]);
    script(&mut pair, &["LRANGE", "l", "0", "-1"]);
    script(&mut pair, &["EXEC"]);
    // What a script wrote before its error stays.
    for line in ["SET l text", "SET k me"] {
        pair.run_line(line);
    }
    let args = ["EVAL", SOURCE, "2", "k", "l", "me"].map(|arg| arg.as_bytes().to_vec()).to_vec();
    pair.step(&Step { conn: 0, args, how: Match::Kind });
    pair.run_line("GET k");
    script(&mut pair, &["SCRIPT", "FLUSH"]);
    script(&mut pair, &["EVALSHA", &sha1, "2", "k", "l", "me"]);
}

#[test]
fn channels_carry_same_messages() {
    for seed in 31..33 {
        let mut pair = Pair::new(NodeConfig::new(seed), |_| {});
        pair.log_in(&[]);
        let mut generator = Generator::new(seed, CONNS);
        generator.channels = true;
        pair.run(&mut generator, 1_000);
    }
}

#[test]
fn keys_expire_in_both() {
    let mut pair = Pair::new(NodeConfig::new(1), |_| {});
    pair.log_in(&[]);
    for _ in 0..5 {
        pair.run_line("SET short v PX 15");
        // The keys must expire on both clocks.
        std::thread::sleep(Duration::from_millis(18));
        pair.run_line("GET short");
        pair.run_line("PTTL short");
        pair.run_line("RPUSH list a");
        pair.run_line("PEXPIRE list 5");
        std::thread::sleep(Duration::from_millis(8));
        pair.run_line("EXISTS list short");
        pair.run_line("DBSIZE");
    }
}

#[test]
fn restricted_user_gets_same_replies() {
    let user = User::new("app").password("pw").except(["pexpire", "time", "keys"]).keys(["lock:*", "k1", "f"]);
    let user = user.channels(["lock:*", "d"]);
    let config = NodeConfig::new(1).password("secret").user(user);
    let mut pair = Pair::new(config, |control| {
        control.round_trip(&[
            "ACL", "SETUSER", "app", "on", ">pw", "~lock:*", "~k1", "~f", "&lock:*", "&d", "+@all", "-pexpire",
            "-time", "-keys",
        ]);
        control.round_trip(&["CONFIG", "SET", "requirepass", "secret"]);
        control.round_trip(&["AUTH", "secret"]);
    });
    for line in
        ["PING", "AUTH wrong", "AUTH app wrong", "HELLO 3", "HELLO 3 AUTH app wrong", "GET x", "CLIENT ID", "nonsense"]
    {
        pair.run_line(line);
    }
    pair.log_in(&["AUTH", "app", "pw"]);
    let mut generator = Generator::new(11, CONNS);
    pair.run(&mut generator, 2_000);
    generator.channels = true;
    pair.run(&mut generator, 500);
}

#[test]
fn conditions_give_same_replies() {
    for (condition, enter, leave) in [
        (Condition::OutOfMemory, &["CONFIG", "SET", "maxmemory", "1"][..], &["CONFIG", "SET", "maxmemory", "0"][..]),
        // Nothing listens on the discard port: a replica with an unreachable primary.
        (Condition::ReadOnly, &["REPLICAOF", "127.0.0.1", "9"], &["REPLICAOF", "NO", "ONE"]),
    ] {
        let mut pair = Pair::new(NodeConfig::new(1), |_| {});
        pair.log_in(&[]);
        let mut generator = Generator::new(21, CONNS);
        generator.blocking = false;
        pair.run(&mut generator, 300);
        pair.control.round_trip(enter);
        let now = pair.now();
        pair.model.set(now, condition, true);
        pair.run(&mut generator, 600);
        pair.control.round_trip(leave);
        let now = pair.now();
        pair.model.set(now, condition, false);
        pair.run(&mut generator, 300);
    }
}

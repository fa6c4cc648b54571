//! Command sequences from a seed.

use lock_proto::redis::script;
use lock_sim::Rng;

use crate::reply::Match;

pub(crate) struct Step {
    pub(crate) conn: usize,
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) how: Match,
}

/// The client part of two clients' tokens.
const CLIENTS: [&str; 2] = ["00000000000000000000000000000001:", "00000000000000000000000000000002:"];
const KEYS: [&str; 6] = ["k0", "k1", "k2", "lock:a", "lock:b", "f"];
const NUMBERS: [&str; 11] = ["0", "1", "2", "3", "-1", "abc", "1.5", "", "1000000000", "9223372036854775807", "+1"];

pub(crate) struct Generator {
    rng: Rng,
    conns: usize,
    pub(crate) blocking: bool,
    /// Generate pub/sub commands, too. A RESP2 subscriber can do little else, so not always.
    pub(crate) channels: bool,
    /// Generate transactions, too.
    pub(crate) transactions: bool,
    /// The signals of the last command. They would expire during the test.
    pub(crate) signals: Vec<&'static str>,
}

impl Generator {
    pub(crate) fn new(seed: u64, conns: usize) -> Self {
        Self { rng: Rng::new(seed), conns, blocking: true, channels: false, transactions: false, signals: Vec::new() }
    }

    fn pick<'a>(&mut self, items: &[&'a str]) -> &'a str {
        self.rng.pick(items).copied().unwrap_or_default()
    }

    fn key(&mut self) -> &'static str {
        self.pick(&KEYS)
    }

    fn value(&mut self) -> String {
        match self.rng.below(4) {
            0 => self.pick(&["v", "w", "17", "-5", "1e3", "some longer value"]).into(),
            _ => format!("{}{}", self.pick(&CLIENTS), self.pick(&["1", "2", "3", "4", "x", "0x2", " 2"])),
        }
    }

    /// Draws a TTL that does not expire during the test, and far from all others: scripts compare
    /// TTLs, and the two clocks differ by milliseconds, or more on a busy machine.
    fn ttl(&mut self) -> String {
        (1_000_000_000 + 1_000_000 * self.rng.below(100_000)).to_string()
    }

    pub(crate) fn step(&mut self) -> Step {
        self.signals.clear();
        let conn = usize::try_from(self.rng.below(self.conns as u64)).unwrap_or(0);
        let (mut args, mut how) = self.command();
        // In a transaction all replies come with that to EXEC.
        if self.transactions && matches!(how, Match::Kind | Match::Set) {
            (args, how) = (vec!["PING".into()], Match::Exact);
        }
        Step { conn, args: args.into_iter().map(String::into_bytes).collect(), how }
    }

    fn command(&mut self) -> (Vec<String>, Match) {
        let (key, other) = (self.key(), self.key());
        let value = self.value();
        let number = self.pick(&NUMBERS);
        let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        if self.channels && self.rng.one_in(4) {
            return (self.channel_command(), Match::Exact);
        }
        if self.transactions && self.rng.one_in(3) {
            return self.transaction_command();
        }
        match self.rng.below(44) {
            0..5 => (self.take(), Match::Clock),
            5..8 => (self.extend(), Match::Clock),
            8..11 => (self.release(), Match::Exact),
            11 => (self.release_many(), Match::Exact),
            12 => (self.announce(), Match::Exact),
            13..16 => {
                let mut args = words(&["SET", key, &value]);
                for _ in 0..self.rng.below(3) {
                    match self.rng.below(7) {
                        0 => args.push("NX".into()),
                        1 => args.push("xx".into()),
                        2 => args.push("GET".into()),
                        3 => args.push("KEEPTTL".into()),
                        4 => args.extend(words(&["EX", "1000000"])),
                        5 => args.extend(words(&["PX", &self.ttl()])),
                        _ => args.extend(words(&["PX", number])),
                    }
                }
                // `PX 1` and the like would expire during the test.
                if args.windows(2).any(|w| w[0] == "PX" && matches!(w[1].as_str(), "1" | "2" | "3")) {
                    return (words(&["GET", key]), Match::Clock);
                }
                (args, Match::Clock)
            }
            16 | 17 => (words(&[self.pick(&["GET", "get", "GETDEL"]), key]), Match::Clock),
            18 => (words(&["DEL", key, other]), Match::Exact),
            19 => (words(&["EXISTS", key, other, key]), Match::Exact),
            20 => (words(&["TYPE", key]), Match::Exact),
            21 => (words(&[self.pick(&["PTTL", "TTL", "PEXPIRETIME", "EXPIRETIME"]), key]), Match::Clock),
            22 => {
                let ttl = self.ttl();
                let time =
                    if self.rng.one_in(2) { &ttl } else { self.pick(&["0", "-1", "abc", "9223372036854775807"]) };
                let mut args = words(&["PEXPIRE", key, time]);
                for _ in 0..self.rng.below(3) {
                    args.push(self.pick(&["NX", "XX", "gt", "LT", "foo"]).into());
                }
                (args, Match::Exact)
            }
            23 => (
                words(&["EXPIRE", key, self.pick(&["1000000", "2000000", "-5", "x", "9223372036854775"])]),
                Match::Exact,
            ),
            24 => (words(&["PERSIST", key]), Match::Exact),
            25 => (words(&["KEYS", self.pick(&["*", "k?", "lock:*", "[kf]*", "none"])]), Match::Set),
            26 => (words(&["DBSIZE"]), Match::Exact),
            27 => (words(&[self.pick(&["RPUSH", "LPUSH"]), key, &value, "x"]), Match::Exact),
            28 => match self.rng.below(2) {
                0 => (words(&["LPOP", key]), Match::Exact),
                _ => (words(&["LPOP", key, number]), Match::Exact),
            },
            29 => {
                (words(&["LRANGE", key, self.pick(&["0", "-2", "1", "x"]), self.pick(&["-1", "0", "5"])]), Match::Exact)
            }
            30 => (words(&["LLEN", key]), Match::Exact),
            31 | 32 if self.blocking => {
                (words(&["BLPOP", key, other, self.pick(&["0", "100", "-1", "x"])]), Match::Exact)
            }
            31 | 32 => (words(&["SETNX", key, &value]), Match::Exact),
            33 => (
                words(&["CLIENT", "UNBLOCK", &format!("{{id:{}}}", self.rng.below(self.conns as u64)), "ERROR"]),
                Match::Exact,
            ),
            34 => match self.rng.below(4) {
                0 => (words(&["SCRIPT", "FLUSH"]), Match::Exact),
                1 => (words(&["SCRIPT", "EXISTS", self.script().sha1, "abc"]), Match::Exact),
                2 => (words(&["SCRIPT", "LOAD", self.script().source]), Match::Exact),
                _ => (words(&["EVALSHA", "0000000000000000000000000000000000000000", "0"]), Match::Exact),
            },
            35 => (words(&["INCRBY", key, self.pick(&["1", "5", "x"])]), Match::Clock),
            36 => (words(&["HELLO", self.pick(&["2", "3", "4", "x"])]), Match::Kind),
            37 => match self.rng.below(8) {
                0 => (words(&["CLIENT", "SETNAME", self.pick(&["me", "a b", ""])]), Match::Exact),
                1 => (words(&["CLIENT", "GETNAME"]), Match::Exact),
                2 => (words(&["CLIENT", "ID"]), Match::Kind),
                3 => (words(&["CLIENT", "KILL", "ID", self.pick(&["0", "x", "999999"])]), Match::Exact),
                4 => (words(&["CLIENT", "KILL", "TYPE", "foo"]), Match::Exact),
                5 => (words(&["CLIENT", "nonsense"]), Match::Exact),
                6 => (words(&["CLIENT", "UNBLOCK", number, "TIMEOUT", "x"]), Match::Exact),
                _ => (words(&["CLIENT"]), Match::Exact),
            },
            38 => match self.rng.below(9) {
                0 => (words(&["PING"]), Match::Exact),
                1 => (words(&["PING", &value]), Match::Exact),
                2 => (words(&["ECHO", &value]), Match::Exact),
                3 => (words(&["TIME"]), Match::Kind),
                4 => (words(&["SELECT", self.pick(&["0", "-1", "16", "x"])]), Match::Exact),
                5 => (words(&["AUTH", "x"]), Match::Exact),
                6 => (words(&["AUTH", "nobody", "x"]), Match::Exact),
                7 => (words(&["FLUSHDB", "nonsense"]), Match::Exact),
                _ => (words(&["FLUSHALL"]), Match::Exact),
            },
            39 | 40 => (self.take_free(), Match::Clock),
            41 | 42 => (self.extend_many(), Match::Clock),
            _ => match self.rng.below(4) {
                0 => (words(&["NONSENSE", &value, key]), Match::Exact),
                1 => (words(&["GET"]), Match::Exact),
                2 => (words(&["EVAL", "this is no Lua", number, key]), Match::Kind),
                _ => (words(&["set", key]), Match::Exact),
            },
        }
    }

    fn transaction_command(&mut self) -> (Vec<String>, Match) {
        let (key, other) = (self.key(), self.key());
        let words: Vec<&str> = match self.rng.below(10) {
            0..2 => vec!["WATCH", key, other],
            2 => vec!["UNWATCH"],
            3..5 => vec!["MULTI"],
            5..8 => vec!["EXEC"],
            8 => vec!["DISCARD"],
            _ => vec![self.pick(&["WATCH", "exec", "MULTI"]), "nonsense"],
        };
        (words.into_iter().map(str::to_owned).collect(), Match::Clock)
    }

    fn channel_command(&mut self) -> Vec<String> {
        let (one, two) = (self.pick(&["c", "d", "lock:c"]), self.pick(&["c", "d", "lock:d"]));
        // No two patterns match the same channel: the order of their messages is undefined.
        let patterns = ["lock:*", "[cd]", "x*"];
        let words: Vec<&str> = match self.rng.below(9) {
            0 => vec!["SUBSCRIBE", one, two],
            1 => vec!["PSUBSCRIBE", self.pick(&patterns)],
            2 => vec!["UNSUBSCRIBE", one],
            3 => vec!["PUNSUBSCRIBE", self.pick(&patterns)],
            // With explicit names: otherwise the order of the replies is undefined.
            4 => vec!["PUNSUBSCRIBE", "x*", "lock:*", "[cd]"],
            5 => vec!["UNSUBSCRIBE", "c", "d", "lock:c", "lock:d"],
            6 => vec!["SUBSCRIBE"],
            _ => vec!["PUBLISH", one, "message"],
        };
        words.into_iter().map(str::to_owned).collect()
    }

    fn script(&mut self) -> script::Script {
        self.rng.pick(&script::ALL).copied().unwrap_or(script::TAKE)
    }

    /// Calls a script by source or by hash, which may fail with NOSCRIPT.
    fn call(&mut self, script: &script::Script, keys: &[&str], argv: &[&str]) -> Vec<String> {
        let (verb, code) = if self.rng.one_in(2) { ("EVALSHA", script.sha1) } else { ("EVAL", script.source) };
        let count = keys.len().to_string();
        let all = [verb, code, &count].into_iter().chain(keys.iter().copied()).chain(argv.iter().copied());
        all.map(str::to_owned).collect()
    }

    fn retired(&mut self) -> String {
        let small = ["0", "1", "2", "3", "4"];
        [self.pick(&small), self.pick(&small), self.pick(&small)].join(" ")
    }

    fn token(&mut self) -> String {
        format!("{}{}", self.pick(&CLIENTS), self.pick(&["0", "1", "2", "3", "4"]))
    }

    fn take(&mut self) -> Vec<String> {
        let (token, retired, key, ttl) = (self.token(), self.retired(), self.key(), self.ttl());
        let (fence, block) = (self.pick(&["f", "f", "f", "k0"]), self.pick(&["1", "64"]));
        let (marker, life) = (self.pick(&["k1", "k2", "marker"]), self.ttl());
        match self.rng.below(6) {
            0 => self.call(&script::TAKE, &[key], &[&token, &retired, &ttl]),
            1 => self.call(&script::TAKE, &[key, marker], &[&token, &retired, &ttl, "0", &life]),
            2 | 3 => self.call(&script::TAKE, &[key, fence, marker], &[&token, &retired, &ttl, block, &life]),
            _ => self.call(&script::TAKE, &[key, fence], &[&token, &retired, &ttl, block]),
        }
    }

    fn extend(&mut self) -> Vec<String> {
        let (token, key, ttl) = (self.token(), self.key(), self.ttl());
        if self.rng.one_in(3) {
            let (fence, block) = (self.pick(&["f", "f", "f", "k0"]), self.pick(&["1", "64"]));
            return self.call(&script::EXTEND, &[key, fence], &[&token, &ttl, block]);
        }
        self.call(&script::EXTEND, &[key], &[&token, &ttl])
    }

    fn release(&mut self) -> Vec<String> {
        let (token, retired, key) = (self.token(), self.retired(), self.key());
        let argv = if self.rng.one_in(2) { &[&*token, &*retired][..] } else { &[&*token] };
        if self.rng.one_in(3) {
            self.call(&script::RELEASE, &[key], argv)
        } else {
            let (marker, signal) = (self.pick(&["k1", "k2", "marker"]), self.pick(&["k0", "k1", "signal"]));
            self.signals.push(signal);
            self.call(&script::RELEASE, &[key, marker, signal], argv)
        }
    }

    /// Draws several locks, which may coincide, and tokens for them.
    fn bunch(&mut self) -> (Vec<&'static str>, Vec<String>) {
        let count = 1 + self.rng.below(4) as usize;
        let tokens = (0..count).map(|_| self.token()).collect();
        ((0..count).map(|_| self.key()).collect(), tokens)
    }

    fn take_free(&mut self) -> Vec<String> {
        let ((mut keys, mut argv), ttl) = (self.bunch(), self.ttl());
        // In a transaction the model may take less time than several locks need tokens.
        let block = if self.transactions { "0" } else { self.pick(&["0", "1", "64"]) };
        if block != "0" {
            keys.push(self.pick(&["f", "f", "f", "k0"]));
        }
        argv.extend([ttl, block.into()]);
        self.call(&script::TAKE_FREE, &keys, &argv.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn extend_many(&mut self) -> Vec<String> {
        let ((keys, mut argv), ttl) = (self.bunch(), self.ttl());
        argv.push(ttl);
        self.call(&script::EXTEND_MANY, &keys, &argv.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Draws names that may coincide, of locks and of signals: both servers must do the same.
    fn release_many(&mut self) -> Vec<String> {
        let (mut keys, tokens) = self.bunch();
        let count = keys.len();
        if !self.rng.one_in(3) {
            let names: [&[&str]; 2] = [&["k1", "k2", "marker"], &["k0", "k1", "signal"]];
            keys.extend(names.iter().flat_map(|names| (0..count).map(|_| self.pick(names)).collect::<Vec<_>>()));
            self.signals.extend(&keys[2 * count..]);
        }
        self.call(&script::RELEASE_MANY, &keys, &tokens.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn announce(&mut self) -> Vec<String> {
        let signal = self.pick(&["k1", "k2", "signal"]);
        self.signals.push(signal);
        self.call(&script::ANNOUNCE, &[signal], &[])
    }
}

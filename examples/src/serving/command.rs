//! The commands of a plan and of the control port.

use core::time::Duration;

use super::line::Direction;
use crate::cli::args;

/// A server by its name: `redis0`, `etcd2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Redis(usize),
    Etcd(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    List,
    Pause(Server),
    Continue(Server),
    Cut(Server, Option<Direction>),
    Heal(Server),
    Delay(Server, Option<Direction>, Duration),
    Reset(Server),
    Kill(Server),
    /// With its data or without.
    Start(Server, bool),
    StopReplication(usize),
    Promote(usize),
    Clock(usize, Duration, bool),
    Evict(usize, String),
    Keys(Server),
    Isolate(usize),
    Join(usize),
    ChangeLeader,
    Quit,
}

/// A command of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timed {
    /// Since the start.
    pub(super) at: Duration,
    pub(super) text: String,
    pub(super) command: Command,
}

impl Timed {
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let (at, text) = line.split_once(char::is_whitespace).ok_or("expected a time and a command")?;
        let at = time(at)?;
        Ok(Self { at, text: text.trim().into(), command: Command::parse(text)? })
    }
}

const USAGE: &str = "expected one of: list; pause, continue, heal, reset, kill, keys SERVER; cut SERVER [in|out]; \
                     delay SERVER TIME [in|out]; start SERVER [empty]; stop-replication, promote redisN; clock redisN +TIME|-TIME; \
                     evict redisN KEY; isolate, join etcdN; change-leader; quit";

impl Command {
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["list"] => Ok(Self::List),
            ["quit"] => Ok(Self::Quit),
            ["change-leader"] => Ok(Self::ChangeLeader),
            ["pause", name] => server(name).map(Self::Pause),
            ["continue", name] => server(name).map(Self::Continue),
            ["heal", name] => server(name).map(Self::Heal),
            ["reset", name] => server(name).map(Self::Reset),
            ["kill", name] => server(name).map(Self::Kill),
            ["keys", name] => server(name).map(Self::Keys),
            ["cut", name] => Ok(Self::Cut(server(name)?, None)),
            ["cut", name, to] => Ok(Self::Cut(server(name)?, Some(direction(to)?))),
            ["delay", name, by] => Ok(Self::Delay(server(name)?, None, time(by)?)),
            ["delay", name, by, to] => Ok(Self::Delay(server(name)?, Some(direction(to)?), time(by)?)),
            ["start", name] => Ok(Self::Start(server(name)?, true)),
            ["start", name, "empty"] => Ok(Self::Start(server(name)?, false)),
            ["stop-replication", name] => redis(name).map(Self::StopReplication),
            ["promote", name] => redis(name).map(Self::Promote),
            ["clock", name, by] => match (by.strip_prefix('+'), by.strip_prefix('-')) {
                (Some(by), _) => Ok(Self::Clock(redis(name)?, time(by)?, true)),
                (_, Some(by)) => Ok(Self::Clock(redis(name)?, time(by)?, false)),
                _ => Err(format!("{by:?} has no sign")),
            },
            ["evict", name, key] => Ok(Self::Evict(redis(name)?, key.into())),
            ["isolate", name] => etcd(name).map(Self::Isolate),
            ["join", name] => etcd(name).map(Self::Join),
            _ => Err(USAGE.into()),
        }
    }
}

fn server(name: &str) -> Result<Server, String> {
    let number = |prefix: &str| name.strip_prefix(prefix).and_then(|number| number.parse().ok());
    let found = number("redis").map(Server::Redis).or_else(|| number("etcd").map(Server::Etcd));
    found.ok_or_else(|| format!("{name:?} is no server; expected redis0, etcd0 and so on"))
}

fn redis(name: &str) -> Result<usize, String> {
    match server(name)? {
        Server::Redis(number) => Ok(number),
        Server::Etcd(_) => Err("only Redis servers do this".into()),
    }
}

fn etcd(name: &str) -> Result<usize, String> {
    match server(name)? {
        Server::Etcd(number) => Ok(number),
        Server::Redis(_) => Err("only members of etcd do this".into()),
    }
}

fn direction(word: &str) -> Result<Direction, String> {
    match word {
        "in" => Ok(Direction::ToServer),
        "out" => Ok(Direction::ToClient),
        _ => Err(format!("{word:?} is no direction: in is to the server, out is to the client")),
    }
}

/// Longer times are taken for typing errors. The clock of the system, plus this, does not overflow.
const MAX_TIME: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Parses a time of a command, a plan or an option.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    match args::time(text) {
        Ok(time) if time <= MAX_TIME => Ok(time),
        Ok(_) => Err(format!("{text:?} is too long: expected a time from 0s to 365days")),
        Err(expected) => Err(format!("{text:?} is no time: {expected}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn commands_are_parsed() {
        let second = Duration::from_secs(1);
        for (line, command) in [
            ("pause redis0", Command::Pause(Server::Redis(0))),
            ("  delay etcd2 1s  out ", Command::Delay(Server::Etcd(2), Some(Direction::ToClient), second)),
            ("start redis1 empty", Command::Start(Server::Redis(1), false)),
            ("clock redis1 -1s", Command::Clock(1, second, false)),
        ] {
            assert_eq!(Command::parse(line), Ok(command));
        }
        let timed = Timed::parse("1500ms  kill redis0").unwrap();
        assert_eq!((timed.at, timed.command), (second * 3 / 2, Command::Kill(Server::Redis(0))));
    }

    #[test]
    fn errors_name_the_word() {
        for (line, word) in [
            ("pause mysql0", "mysql0"),
            ("delay redis0 soon", "soon"),
            ("delay redis0 584542046090y", "from 0s to 365days"),
            ("delay redis0 18446744073709551615s1000000000ns", "is no time"),
            ("clock redis0 +366days", "from 0s to 365days"),
            ("promote etcd0", "only Redis"),
            ("dance", "list;"),
        ] {
            assert!(Command::parse(line).unwrap_err().contains(word), "{line}");
        }
        assert!(Timed::parse("2y kill redis0").unwrap_err().contains("from 0s to 365days"));
        assert_eq!(time("365days"), Ok(MAX_TIME));
    }
}

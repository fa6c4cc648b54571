//! The commands: their forms, who may run them and when.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::reply::Reply;
use super::{Condition, Node, keyspace, lists, number, script, server, strings};

/// Who runs a command, and in what.
#[derive(Clone, Debug)]
pub(super) struct Context {
    pub(super) conn: u64,
    pub(super) db: u32,
    pub(super) user: Option<String>,
    /// Set while a script runs.
    pub(super) script: Option<Running>,
    /// Server time in ms, one for the whole command.
    pub(super) now: u64,
}

/// A script that runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Running {
    /// It has written already, so that running out of memory stops it no more.
    pub(super) wrote: bool,
}

/// Where the keys are among the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    None,
    First,
    All,
    AllButLast,
    /// As many as the second argument says, after it.
    Counted,
}

type Run = fn(&mut Node, &mut Context, &[&[u8]]) -> Reply;

struct Command {
    name: &'static str,
    /// Number of words with the name; at least that many if negative.
    arity: i32,
    flags: u8,
    keys: Keys,
    run: Run,
}

const WRITE: u8 = 1;
/// Needs memory.
const GROWS: u8 = 2;
/// Allowed while the data is loaded.
const LOADING: u8 = 4;
/// Not allowed in scripts.
const NO_SCRIPT: u8 = 8;
/// Allowed before login.
const NO_AUTH: u8 = 16;

/// The table, with the flags that `COMMAND INFO` of Redis 7.0 shows.
static COMMANDS: [Command; 48] = {
    const fn c(name: &'static str, arity: i32, flags: u8, keys: Keys, run: Run) -> Command {
        Command { name, arity, flags, keys, run }
    }
    [
        c("auth", -2, NO_SCRIPT | LOADING | NO_AUTH, Keys::None, server::auth),
        c("blpop", -3, WRITE | NO_SCRIPT, Keys::AllButLast, lists::blpop),
        c("client|getname", 2, NO_SCRIPT | LOADING, Keys::None, server::client_getname),
        c("client|id", 2, NO_SCRIPT | LOADING, Keys::None, server::client_id),
        c("client|kill", -3, NO_SCRIPT | LOADING, Keys::None, server::client_kill),
        c("client|setinfo", 4, NO_SCRIPT | LOADING, Keys::None, server::client_setinfo),
        c("client|setname", 3, NO_SCRIPT | LOADING, Keys::None, server::client_setname),
        c("client|unblock", -3, NO_SCRIPT | LOADING, Keys::None, server::client_unblock),
        c("dbsize", 1, 0, Keys::None, keyspace::dbsize),
        c("del", -2, WRITE, Keys::All, keyspace::del),
        c("echo", 2, LOADING, Keys::None, server::echo),
        c("eval", -3, NO_SCRIPT, Keys::Counted, script::eval),
        c("evalsha", -3, NO_SCRIPT, Keys::Counted, script::evalsha),
        c("exists", -2, 0, Keys::All, keyspace::exists),
        c("expire", -3, WRITE, Keys::First, keyspace::expire),
        c("expireat", -3, WRITE, Keys::First, keyspace::expireat),
        c("expiretime", 2, 0, Keys::First, keyspace::expiretime),
        c("flushall", -1, WRITE, Keys::None, keyspace::flushall),
        c("flushdb", -1, WRITE, Keys::None, keyspace::flushdb),
        c("get", 2, 0, Keys::First, strings::get),
        c("getdel", 2, WRITE, Keys::First, strings::getdel),
        c("hello", -1, NO_SCRIPT | LOADING | NO_AUTH, Keys::None, server::hello),
        c("incr", 2, WRITE | GROWS, Keys::First, strings::incr),
        c("incrby", 3, WRITE | GROWS, Keys::First, strings::incrby),
        c("info", -1, LOADING, Keys::None, server::info),
        c("keys", 2, 0, Keys::None, keyspace::keys),
        c("llen", 2, 0, Keys::First, lists::llen),
        c("lpop", -2, WRITE, Keys::First, lists::lpop),
        c("lpush", -3, WRITE | GROWS, Keys::First, lists::lpush),
        c("lrange", 4, 0, Keys::First, lists::lrange),
        c("persist", 2, WRITE, Keys::First, keyspace::persist),
        c("pexpire", -3, WRITE, Keys::First, keyspace::pexpire),
        c("pexpireat", -3, WRITE, Keys::First, keyspace::pexpireat),
        c("pexpiretime", 2, 0, Keys::First, keyspace::pexpiretime),
        c("ping", -1, 0, Keys::None, server::ping),
        c("pttl", 2, 0, Keys::First, keyspace::pttl),
        c("quit", -1, NO_SCRIPT | LOADING | NO_AUTH, Keys::None, server::quit),
        c("rpush", -3, WRITE | GROWS, Keys::First, lists::rpush),
        c("script|exists", -3, NO_SCRIPT, Keys::None, script::script_exists),
        c("script|flush", -2, NO_SCRIPT, Keys::None, script::script_flush),
        c("script|load", 3, NO_SCRIPT, Keys::None, script::script_load),
        c("select", 2, LOADING, Keys::None, server::select),
        c("set", -3, WRITE | GROWS, Keys::First, strings::set),
        c("setnx", 3, WRITE | GROWS, Keys::First, strings::setnx),
        c("time", 1, LOADING, Keys::None, server::time),
        c("ttl", 2, 0, Keys::First, keyspace::ttl),
        c("type", 2, 0, Keys::First, keyspace::type_),
        c("unlink", -2, WRITE, Keys::All, keyspace::del),
    ]
};

/// Commands that are only known by their second word.
const CONTAINERS: [&str; 2] = ["client", "script"];

fn find(name: &str) -> Option<&'static Command> {
    COMMANDS.binary_search_by(|command| command.name.cmp(name)).ok().map(|at| &COMMANDS[at])
}

const NOAUTH: Reply = Reply::error("NOAUTH Authentication required.");
const DISK_ERROR: Reply = Reply::error(
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that may modify \
     the data set are disabled, because this instance is configured to report errors during writes if RDB snapshotting fails \
     (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB error.",
);
const OUT_OF_MEMORY: Reply = Reply::error("OOM command not allowed when used memory > 'maxmemory'.");
const READ_ONLY: Reply = Reply::error("READONLY You can't write against a read only replica.");

impl Node {
    /// Runs a command of a client, or of a script of it.
    pub(super) fn run(&mut self, context: &mut Context, args: &[&[u8]]) -> Reply {
        let command = match self.look_up(args) {
            Ok(command) => command,
            Err(refused) => return refused,
        };
        let words = i32::try_from(args.len()).unwrap_or(i32::MAX);
        if (command.arity > 0 && words != command.arity) || words < -command.arity {
            return wrong_arity(command.name);
        }
        if context.script.is_none() {
            *self.calls.entry(command.name.to_owned()).or_default() += 1;
        }
        let refused = if context.script.is_some() {
            self.refuse_in_script(context, command, args)
        } else {
            self.refuse(context, command, args)
        };
        if let Some(refused) = refused {
            return refused;
        }
        if let Some(running) = &mut context.script {
            running.wrote |= command.flags & WRITE != 0;
        }
        (command.run)(self, context, args)
    }

    fn look_up(&self, args: &[&[u8]]) -> Result<&'static Command, Reply> {
        let name = lower(args[0]);
        let full = match args.get(1) {
            Some(second) if CONTAINERS.contains(&name.as_str()) => format!("{name}|{}", lower(second)),
            Some(_) | None => name.clone(),
        };
        // `SETINFO` came with 7.2.
        let known = full != "client|setinfo" || self.config.version >= (7, 2, 0);
        if let Some(command) = find(&full).filter(|_| known) {
            return Ok(command);
        }
        if !CONTAINERS.contains(&name.as_str()) {
            return Err(unknown(args));
        }
        Err(match args.get(1) {
            None => wrong_arity(&name),
            Some(second) => {
                let second = shown(second, 128);
                Reply::Error(
                    format!("ERR unknown subcommand '{second}'. Try {} HELP.", name.to_ascii_uppercase()).into(),
                )
            }
        })
    }

    /// Why a client may not run the command now, in the order in which Redis asks.
    fn refuse(&self, context: &Context, command: &Command, args: &[&[u8]]) -> Option<Reply> {
        let has = |flag: u8| command.flags & flag != 0;
        let is = |condition: Condition| self.conditions.contains(&condition);
        match &context.user {
            None if !has(NO_AUTH) => return Some(NOAUTH),
            None => {}
            Some(_) if has(NO_AUTH) => {}
            Some(name) => {
                let user = self.config.users.get(name)?;
                if !user.may_run(command.name) {
                    let name = command.name;
                    let text = format!("NOPERM this user has no permissions to run the '{name}' command");
                    return Some(Reply::Error(text.into()));
                }
                if !keys(command.keys, args).iter().all(|key| user.may_use(key)) {
                    return Some(Reply::error(
                        "NOPERM this user has no permissions to access one of the keys used as arguments",
                    ));
                }
            }
        }
        if is(Condition::OutOfMemory) && has(GROWS) {
            return Some(OUT_OF_MEMORY);
        }
        if is(Condition::DiskError) && (has(WRITE) || command.name == "ping") {
            return Some(DISK_ERROR);
        }
        if is(Condition::ReadOnly) && has(WRITE) {
            return Some(READ_ONLY);
        }
        if is(Condition::Loading) && !has(LOADING) {
            return Some(Reply::error("LOADING Redis is loading the dataset in memory"));
        }
        None
    }

    /// Why a script may not run the command.
    fn refuse_in_script(&self, context: &Context, command: &Command, args: &[&[u8]]) -> Option<Reply> {
        let has = |flag: u8| command.flags & flag != 0;
        let is = |condition: Condition| self.conditions.contains(&condition);
        if has(NO_SCRIPT) {
            return Some(Reply::error("ERR This Redis command is not allowed from script"));
        }
        if let Some(user) = context.user.as_ref().and_then(|name| self.config.users.get(name)) {
            // The code is ERR here, not NOPERM: Redis 7.0 answers so.
            if !user.may_run(command.name) {
                return Some(Reply::error("ERR The user executing the script can't run this command or subcommand"));
            }
            if !keys(command.keys, args).iter().all(|key| user.may_use(key)) {
                return Some(Reply::error(
                    "ERR The user executing the script can't access at least one of the keys mentioned in the command \
                     arguments",
                ));
            }
        }
        if has(WRITE) {
            if is(Condition::ReadOnly) {
                return Some(READ_ONLY);
            }
            if is(Condition::DiskError) {
                return Some(DISK_ERROR);
            }
        }
        let wrote = context.script.is_some_and(|running| running.wrote);
        if has(GROWS) && is(Condition::OutOfMemory) && !wrote {
            return Some(OUT_OF_MEMORY);
        }
        None
    }
}

fn keys<'a>(which: Keys, args: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let slice = match which {
        Keys::None => None,
        Keys::First => args.get(1..2),
        Keys::All => args.get(1..),
        Keys::AllButLast => args.get(1..args.len() - 1),
        Keys::Counted => {
            let count = args.get(2).and_then(|n| number::integer(n)).and_then(|n| usize::try_from(n).ok());
            count.and_then(|n| args.get(3..3_usize.checked_add(n)?))
        }
    };
    slice.map(<[&[u8]]>::to_vec).unwrap_or_default()
}

pub(super) fn wrong_arity(name: &str) -> Reply {
    Reply::Error(format!("ERR wrong number of arguments for '{name}' command").into())
}

fn unknown(args: &[&[u8]]) -> Reply {
    let mut text = format!("ERR unknown command '{}', with args beginning with: ", shown(args[0], 128));
    let mut listed = 0;
    for arg in &args[1..] {
        if listed >= 128 {
            break;
        }
        let part = shown(arg, 128 - listed);
        listed += part.len() + 3;
        text.push_str(&format!("'{part}' "));
    }
    Reply::Error(text.into())
}

/// At most `max` bytes of `text`, fit for one line.
fn shown(text: &[u8], max: usize) -> String {
    let text = &text[..text.len().min(max)];
    String::from_utf8_lossy(text).replace(['\r', '\n', '\0'], " ")
}

pub(super) fn lower(text: &[u8]) -> String {
    String::from_utf8_lossy(text).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name));
        for container in CONTAINERS {
            assert!(find(container).is_none());
        }
    }
}

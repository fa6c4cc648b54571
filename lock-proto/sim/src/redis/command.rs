//! The command table: syntax, permissions and preconditions.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::reply::RespReply;
use super::store::View;
use super::{
    Condition, Node, ServedSlots, keyspace, lists, number, pubsub, replication, script, server, slot, strings,
    transaction,
};

#[derive(Clone, Debug)]
pub(super) struct CommandContext {
    pub(super) conn: u64,
    pub(super) db: u32,
    pub(super) user: Option<Arc<str>>,
    pub(super) script: Option<Running>,
    /// Part of an `EXEC`: nothing blocks.
    pub(super) in_transaction: bool,
    /// The view of the data, with one time for the whole command.
    pub(super) view: View,
    /// Memory was exhausted when the client's command arrived.
    pub(super) full: bool,
    pub(super) propagate: Propagate,
}

impl CommandContext {
    /// The context of a command from the primary, which belongs to no client.
    pub(super) const fn of_primary(db: u32, view: View) -> Self {
        Self {
            conn: u64::MAX,
            db,
            user: None,
            script: None,
            in_transaction: false,
            view,
            full: false,
            propagate: Propagate::IfChanged,
        }
    }
}

/// How a command is propagated to replicas.
#[derive(Clone, Debug, Default)]
pub(super) enum Propagate {
    /// The original command, if it changed something.
    #[default]
    IfChanged,
    /// The original command.
    Always,
    /// Another command, whose effect does not depend on the time.
    Instead(Vec<Vec<u8>>),
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Running {
    /// It has written, so an exhausted memory no longer stops it.
    pub(super) wrote: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    None,
    First,
    All,
    AllButLast,
    /// The second argument is their number, and they follow it.
    Counted,
    /// No keys. The first argument is a channel, or all arguments are channels or patterns.
    Channel,
    Channels,
    Patterns,
}

type CommandRun = fn(&mut Node, &mut CommandContext, &[&[u8]]) -> RespReply;

struct CommandEntry {
    name: &'static str,
    /// The first bytes of the name, for the lookup.
    prefix: u64,
    /// Number of arguments including the name; a minimum if negative.
    arity: i32,
    flags: u8,
    keys: Keys,
    run: CommandRun,
}

const WRITE: u8 = 1;
/// May use more memory.
const GROWS: u8 = 2;
/// Allowed while loading.
const LOADING: u8 = 4;
/// Forbidden in scripts.
const NO_SCRIPT: u8 = 8;
/// Allowed before login.
const NO_AUTH: u8 = 16;
/// Allowed on a replica without a link that does not serve stale data.
const STALE: u8 = 32;
/// Allowed to a RESP2 client with subscriptions.
const SUBSCRIBED: u8 = 64;
/// Executed at once after `MULTI`.
const AT_ONCE: u8 = 128;

pub(super) const COUNT: usize = 61;

/// The table, with the flags that `COMMAND INFO` of Redis 7.0 reports.
static COMMANDS: [CommandEntry; COUNT] = {
    const fn c(name: &'static str, arity: i32, flags: u8, keys: Keys, run: CommandRun) -> CommandEntry {
        CommandEntry { name, prefix: prefix(name.as_bytes()), arity, flags, keys, run }
    }
    [
        c("auth", -2, NO_SCRIPT | LOADING | STALE | NO_AUTH, Keys::None, server::auth),
        c("blpop", -3, WRITE | NO_SCRIPT, Keys::AllButLast, lists::blpop),
        c("client|getname", 2, NO_SCRIPT | LOADING | STALE, Keys::None, server::client_getname),
        c("client|id", 2, NO_SCRIPT | LOADING | STALE, Keys::None, server::client_id),
        c("client|kill", -3, NO_SCRIPT | LOADING | STALE, Keys::None, server::client_kill),
        c("client|setinfo", 4, NO_SCRIPT | LOADING | STALE, Keys::None, server::client_setinfo),
        c("client|setname", 3, NO_SCRIPT | LOADING | STALE, Keys::None, server::client_setname),
        c("client|unblock", -3, NO_SCRIPT | LOADING | STALE, Keys::None, server::client_unblock),
        c("dbsize", 1, 0, Keys::None, keyspace::dbsize),
        c("del", -2, WRITE, Keys::All, keyspace::del),
        c("discard", 1, NO_SCRIPT | LOADING | STALE | AT_ONCE, Keys::None, transaction::discard),
        c("echo", 2, LOADING | STALE, Keys::None, server::echo),
        c("eval", -3, NO_SCRIPT | STALE, Keys::Counted, script::eval),
        c("evalsha", -3, NO_SCRIPT | STALE, Keys::Counted, script::evalsha),
        c("exec", 1, NO_SCRIPT | LOADING | STALE | AT_ONCE, Keys::None, transaction::exec),
        c("exists", -2, 0, Keys::All, keyspace::exists),
        c("expire", -3, WRITE, Keys::First, keyspace::expire),
        c("expireat", -3, WRITE, Keys::First, keyspace::expireat),
        c("expiretime", 2, 0, Keys::First, keyspace::expiretime),
        c("flushall", -1, WRITE, Keys::None, keyspace::flushall),
        c("flushdb", -1, WRITE, Keys::None, keyspace::flushdb),
        c("get", 2, 0, Keys::First, strings::get),
        c("getdel", 2, WRITE, Keys::First, strings::getdel),
        c("hello", -1, NO_SCRIPT | LOADING | STALE | NO_AUTH, Keys::None, server::hello),
        c("incr", 2, WRITE | GROWS, Keys::First, strings::incr),
        c("incrby", 3, WRITE | GROWS, Keys::First, strings::incrby),
        c("info", -1, LOADING | STALE, Keys::None, server::info),
        c("keys", 2, 0, Keys::None, keyspace::keys),
        c("llen", 2, 0, Keys::First, lists::llen),
        c("lpop", -2, WRITE, Keys::First, lists::lpop),
        c("lpush", -3, WRITE | GROWS, Keys::First, lists::lpush),
        c("lrange", 4, 0, Keys::First, lists::lrange),
        c("mget", -2, 0, Keys::All, strings::mget),
        c("multi", 1, NO_SCRIPT | LOADING | STALE | AT_ONCE, Keys::None, transaction::multi),
        c("persist", 2, WRITE, Keys::First, keyspace::persist),
        c("pexpire", -3, WRITE, Keys::First, keyspace::pexpire),
        c("pexpireat", -3, WRITE, Keys::First, keyspace::pexpireat),
        c("pexpiretime", 2, 0, Keys::First, keyspace::pexpiretime),
        c("ping", -1, SUBSCRIBED, Keys::None, server::ping),
        c("psubscribe", -2, NO_SCRIPT | LOADING | STALE | SUBSCRIBED, Keys::Patterns, pubsub::psubscribe),
        c("pttl", 2, 0, Keys::First, keyspace::pttl),
        c("publish", 3, LOADING | STALE, Keys::Channel, pubsub::publish),
        c("punsubscribe", -1, NO_SCRIPT | LOADING | STALE | SUBSCRIBED, Keys::None, pubsub::punsubscribe),
        c("quit", -1, NO_SCRIPT | LOADING | STALE | NO_AUTH | SUBSCRIBED | AT_ONCE, Keys::None, server::quit),
        c("role", 1, NO_SCRIPT | LOADING | STALE, Keys::None, replication::role),
        c("rpush", -3, WRITE | GROWS, Keys::First, lists::rpush),
        c("script|exists", -3, NO_SCRIPT, Keys::None, script::script_exists),
        c("script|flush", -2, NO_SCRIPT, Keys::None, script::script_flush),
        c("script|load", 3, NO_SCRIPT | STALE, Keys::None, script::script_load),
        c("select", 2, LOADING | STALE, Keys::None, server::select),
        c("set", -3, WRITE | GROWS, Keys::First, strings::set),
        c("setnx", 3, WRITE | GROWS, Keys::First, strings::setnx),
        c("subscribe", -2, NO_SCRIPT | LOADING | STALE | SUBSCRIBED, Keys::Channels, pubsub::subscribe),
        c("time", 1, LOADING | STALE, Keys::None, server::time),
        c("ttl", 2, 0, Keys::First, keyspace::ttl),
        c("type", 2, 0, Keys::First, keyspace::type_),
        c("unlink", -2, WRITE, Keys::All, keyspace::del),
        c("unsubscribe", -1, NO_SCRIPT | LOADING | STALE | SUBSCRIBED, Keys::None, pubsub::unsubscribe),
        c("unwatch", 1, NO_SCRIPT | LOADING | STALE, Keys::None, transaction::unwatch),
        c("wait", 3, NO_SCRIPT, Keys::None, replication::wait),
        c("watch", -2, NO_SCRIPT | LOADING | STALE | AT_ONCE, Keys::All, transaction::watch),
    ]
};

const EXEC: &str = "exec";

/// Commands that always need a subcommand.
const CONTAINERS: [&str; 2] = ["client", "script"];

/// Longer than any command name or option.
pub(super) const LONGEST: usize = 24;

/// The first eight bytes; preserves the order of the names.
const fn prefix(name: &[u8]) -> u64 {
    let (mut value, mut at) = (0, 0);
    while at < 8 {
        value = value << 8 | if at < name.len() { name[at] as u64 } else { 0 };
        at += 1;
    }
    value
}

fn find(name: &[u8]) -> Option<(usize, &'static CommandEntry)> {
    let prefix = prefix(name);
    let start = COMMANDS.partition_point(|command| command.prefix < prefix);
    let mut like = COMMANDS.iter().enumerate().skip(start).take_while(|(_, command)| command.prefix == prefix);
    like.find(|(_, command)| command.name.as_bytes() == name)
}

fn find_by_words(args: &[&[u8]]) -> Option<(usize, &'static CommandEntry)> {
    let mut name = [0; LONGEST];
    let first = args[0];
    let mut len = first.len();
    name.get_mut(..len)?.copy_from_slice(first);
    name[..len].make_ascii_lowercase();
    if CONTAINERS.iter().any(|container| container.as_bytes() == &name[..len])
        && let Some(second) = args.get(1)
    {
        *name.get_mut(len)? = b'|';
        name.get_mut(len + 1..len + 1 + second.len())?.copy_from_slice(second);
        len += 1 + second.len();
        name[..len].make_ascii_lowercase();
    }
    find(&name[..len])
}

/// Runs a command from the primary. Ignores commands that this server does not know.
pub(super) fn run_from_primary(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) {
    if let Some((_, command)) = args.first().and_then(|_| find_by_words(args)) {
        (command.run)(node, context, args);
    }
}

const NOAUTH: RespReply = RespReply::error("NOAUTH Authentication required.");
const DISK_ERROR: RespReply = RespReply::error(
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that may modify \
     the data set are disabled, because this instance is configured to report errors during writes if RDB snapshotting fails \
     (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB error.",
);
const OUT_OF_MEMORY: RespReply = RespReply::error("OOM command not allowed when used memory > 'maxmemory'.");
const NO_SLOT: RespReply = RespReply::error("CLUSTERDOWN Hash slot not served");
const CROSS_SLOT: RespReply = RespReply::error("CROSSSLOT Keys in request don't hash to the same slot");
const READ_ONLY: RespReply = RespReply::error("READONLY You can't write against a read only replica.");
const FEW_REPLICAS: RespReply = RespReply::error("NOREPLICAS Not enough good replicas to write.");
pub(super) const STALE_DATA: RespReply =
    RespReply::error("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.");

impl Node {
    pub(super) fn run(&mut self, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
        let (index, command) = match self.look_up(args) {
            Ok(found) => found,
            Err(refused) => return self.break_transaction(context, refused),
        };
        if let Some(error) = self.config.refused.get(command.name) {
            return self.break_transaction(context, RespReply::Error(error.clone().into()));
        }
        let words = i32::try_from(args.len()).unwrap_or(i32::MAX);
        if (command.arity > 0 && words != command.arity) || words < -command.arity {
            return self.refuse_call(context, command, wrong_arity(command.name));
        }
        let queued = command.flags & AT_ONCE == 0 && self.is_queueing(context);
        if context.script.is_none() && !queued {
            self.calls[index] += 1;
        }
        let refused = if context.script.is_some() {
            self.refuse_in_script(context, command, args)
        } else if context.in_transaction {
            // The rest was checked before it was queued.
            self.refuse_by_user(context, command, args)
        } else {
            self.refuse(context, command, command.flags, args)
        };
        let refused = refused.or_else(|| if command.name == EXEC { self.refuse_queued(context) } else { None });
        if let Some(refused) = refused {
            return self.refuse_call(context, command, refused);
        }
        if queued && let Some(transaction) = self.transaction(context.conn) {
            transaction.queue.push(args.iter().map(|arg| arg.to_vec()).collect());
            return RespReply::simple("QUEUED");
        }
        if let Some(running) = &mut context.script {
            running.wrote |= command.flags & WRITE != 0;
        }
        let reply = (command.run)(self, context, args);
        self.propagate(context, args);
        reply
    }

    /// Whether commands of this context are queued until `EXEC`.
    fn is_queueing(&self, context: &CommandContext) -> bool {
        context.script.is_none()
            && !context.in_transaction
            && self.connections.get(&context.conn).is_some_and(|connection| connection.transaction.is_some())
    }

    /// A command was refused with this reply, so an open transaction cannot be executed.
    fn break_transaction(&mut self, context: &CommandContext, refused: RespReply) -> RespReply {
        if self.is_queueing(context)
            && let Some(transaction) = self.transaction(context.conn)
        {
            transaction.refuse();
        }
        refused
    }

    /// Returns the reply to a refused command. A refused `EXEC` ends the transaction.
    fn refuse_call(&mut self, context: &CommandContext, command: &CommandEntry, refused: RespReply) -> RespReply {
        if command.name != EXEC || context.script.is_some() {
            return self.break_transaction(context, refused);
        }
        self.end_transaction(context.conn);
        transaction::aborted(&refused)
    }

    /// Why the state of the server forbids one of the queued commands now.
    fn refuse_queued(&self, context: &CommandContext) -> Option<RespReply> {
        let queue = &self.connections.get(&context.conn)?.transaction.as_ref()?.queue;
        queue.iter().find_map(|words| {
            let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let (_, command) = self.look_up(&args).ok()?;
            self.refuse_by_state(context, command.name, command.flags)
        })
    }

    pub(crate) fn executed(&self) -> u64 {
        self.calls.iter().sum()
    }

    pub(super) fn propagate_instead(&self, context: &mut CommandContext, args: &[&[u8]]) {
        if self.replication.is_feeding() {
            context.propagate = Propagate::Instead(args.iter().map(|arg| arg.to_vec()).collect());
        }
    }

    /// Propagates a command, preceded by deletes of the keys that expired while it ran.
    fn propagate(&mut self, context: &mut CommandContext, args: &[&[u8]]) {
        let (mut removed, mut dirty) = (Vec::new(), false);
        if let Some(db) = self.dbs.get_mut(&context.db) {
            removed = core::mem::take(&mut db.removed);
            dirty = core::mem::take(&mut db.dirty);
        }
        if !self.replication.is_feeding() {
            return;
        }
        for key in removed {
            self.replicate_command(context.db, &[b"DEL", &key]);
        }
        match core::mem::take(&mut context.propagate) {
            Propagate::IfChanged if !dirty => {}
            Propagate::IfChanged | Propagate::Always => self.replicate_command(context.db, args),
            Propagate::Instead(other) => {
                let other: Vec<&[u8]> = other.iter().map(Vec::as_slice).collect();
                self.replicate_command(context.db, &other);
            }
        }
    }

    fn look_up(&self, args: &[&[u8]]) -> Result<(usize, &'static CommandEntry), RespReply> {
        // `SETINFO` exists since 7.2.
        let known = |command: &CommandEntry| command.name != "client|setinfo" || self.config.version >= (7, 2, 0);
        if let Some(found) = find_by_words(args).filter(|(_, command)| known(command)) {
            return Ok(found);
        }
        let name = lower(args[0]);
        if !CONTAINERS.contains(&name.as_str()) {
            return Err(unknown(args));
        }
        Err(match args.get(1) {
            None => wrong_arity(&name),
            Some(second) => {
                let second = shown(second, 128);
                RespReply::Error(
                    format!("ERR unknown subcommand '{second}'. Try {} HELP.", name.to_ascii_uppercase()).into(),
                )
            }
        })
    }

    /// Returns the number of calls by clients for each command, by its full name in lower case.
    /// Calls by scripts are not counted. Counts survive a restart.
    #[must_use]
    pub fn calls(&self) -> BTreeMap<String, u64> {
        let counted = COMMANDS.iter().zip(&self.calls).filter(|(_, count)| **count > 0);
        counted.map(|(command, count)| (command.name.into(), *count)).collect()
    }

    /// Why a client may not run the command now. The order of the checks is that of Redis.
    fn refuse(&self, context: &CommandContext, command: &CommandEntry, flags: u8, args: &[&[u8]]) -> Option<RespReply> {
        self.refuse_by_user(context, command, args)
            .or_else(|| self.refuse_by_slot(command, args))
            .or_else(|| self.refuse_by_state(context, command.name, flags))
    }

    fn refuse_by_user(&self, context: &CommandContext, command: &CommandEntry, args: &[&[u8]]) -> Option<RespReply> {
        let has = |flag: u8| command.flags & flag != 0;
        match &context.user {
            None if !has(NO_AUTH) => return Some(NOAUTH),
            None => {}
            Some(_) if has(NO_AUTH) => {}
            Some(name) => {
                let user = self.config.users.get(&**name)?;
                if !user.may_run(command.name) {
                    let name = command.name;
                    let text = format!("NOPERM this user has no permissions to run the '{name}' command");
                    return Some(RespReply::Error(text.into()));
                }
                if !keys(command.keys, args).iter().all(|key| user.may_use(key)) {
                    return Some(RespReply::error(
                        "NOPERM this user has no permissions to access one of the keys used as arguments",
                    ));
                }
                if !user.may_subscribe(channels(command.keys, args), command.keys == Keys::Patterns) {
                    return Some(RespReply::error(
                        "NOPERM this user has no permissions to access one of the channels used as arguments",
                    ));
                }
            }
        }
        None
    }

    fn refuse_by_slot(&self, command: &CommandEntry, args: &[&[u8]]) -> Option<RespReply> {
        if let Some(slots) = self.config.cluster {
            let mut all = keys(command.keys, args).iter().map(|key| slot::of(key));
            match all.next() {
                Some(_) if slots == ServedSlots::None => return Some(NO_SLOT),
                Some(first) if all.any(|other| other != first) => return Some(CROSS_SLOT),
                Some(_) | None => {}
            }
        }
        None
    }

    fn refuse_by_state(&self, context: &CommandContext, name: &str, flags: u8) -> Option<RespReply> {
        let has = |flag: u8| flags & flag != 0;
        let is = |condition: Condition| self.conditions.contains(&condition);
        if context.full && has(GROWS) {
            return Some(OUT_OF_MEMORY);
        }
        if is(Condition::DiskError) && (has(WRITE) || name == "ping") {
            return Some(DISK_ERROR);
        }
        if has(WRITE) && self.below_min_replicas() {
            return Some(FEW_REPLICAS);
        }
        if has(WRITE) && self.is_replica() {
            return Some(READ_ONLY);
        }
        if !has(SUBSCRIBED) && self.is_resp2_subscriber(context.conn) {
            let text = format!(
                "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
                name,
            );
            return Some(RespReply::Error(text.into()));
        }
        if !has(STALE) && self.is_stale() {
            return Some(STALE_DATA);
        }
        if is(Condition::Loading) && !has(LOADING) {
            return Some(RespReply::error("LOADING Redis is loading the dataset in memory"));
        }
        None
    }

    fn refuse_in_script(&self, context: &CommandContext, command: &CommandEntry, args: &[&[u8]]) -> Option<RespReply> {
        let has = |flag: u8| command.flags & flag != 0;
        let is = |condition: Condition| self.conditions.contains(&condition);
        if has(NO_SCRIPT) {
            return Some(RespReply::error("ERR This Redis command is not allowed from script"));
        }
        if let Some(user) = context.user.as_ref().and_then(|name| self.config.users.get(&**name)) {
            // Redis 7.0 replies with ERR here, not with NOPERM.
            if !user.may_run(command.name) {
                return Some(RespReply::error(
                    "ERR The user executing the script can't run this command or subcommand",
                ));
            }
            if !keys(command.keys, args).iter().all(|key| user.may_use(key)) {
                return Some(RespReply::error(
                    "ERR The user executing the script can't access at least one of the keys mentioned in the command \
                     arguments",
                ));
            }
            if !user.may_subscribe(channels(command.keys, args), false) {
                return Some(RespReply::error(
                    "ERR The user executing the script can't publish to the channel mentioned in the command",
                ));
            }
        }
        if has(WRITE) {
            if self.is_replica() {
                return Some(READ_ONLY);
            }
            if is(Condition::DiskError) {
                return Some(DISK_ERROR);
            }
            if self.below_min_replicas() {
                return Some(FEW_REPLICAS);
            }
        }
        let wrote = context.script.is_some_and(|running| running.wrote);
        if has(GROWS) && context.full && !wrote {
            return Some(OUT_OF_MEMORY);
        }
        None
    }
}

fn keys<'s, 'a>(which: Keys, args: &'s [&'a [u8]]) -> &'s [&'a [u8]] {
    let slice = match which {
        Keys::None | Keys::Channel | Keys::Channels | Keys::Patterns => None,
        Keys::First => args.get(1..2),
        Keys::All => args.get(1..),
        Keys::AllButLast => args.get(1..args.len() - 1),
        Keys::Counted => {
            // Redis finds the keys by `atoi`, which accepts a plus that the command itself rejects.
            let count = args.get(2).map(|n| n.strip_prefix(b"+").unwrap_or(n));
            let count = count.and_then(number::integer).and_then(|n| usize::try_from(n).ok());
            count.and_then(|n| args.get(3..3_usize.checked_add(n)?))
        }
    };
    slice.unwrap_or_default()
}

fn channels<'s, 'a>(which: Keys, args: &'s [&'a [u8]]) -> &'s [&'a [u8]] {
    let slice = match which {
        Keys::None | Keys::First | Keys::All | Keys::AllButLast | Keys::Counted => None,
        Keys::Channel => args.get(1..2),
        Keys::Channels | Keys::Patterns => args.get(1..),
    };
    slice.unwrap_or_default()
}

pub(super) fn wrong_arity(name: &str) -> RespReply {
    RespReply::Error(format!("ERR wrong number of arguments for '{name}' command").into())
}

fn unknown(args: &[&[u8]]) -> RespReply {
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
    RespReply::Error(text.into())
}

/// Returns at most `max` bytes of `text`, without line breaks.
fn shown(text: &[u8], max: usize) -> String {
    let text = &text[..text.len().min(max)];
    String::from_utf8_lossy(text).replace(['\r', '\n', '\0'], " ")
}

pub(super) fn lower(text: &[u8]) -> String {
    String::from_utf8_lossy(text).to_ascii_lowercase()
}

/// Lower-cases `text` into `buffer`. Returns an empty word if it is too long for any option.
pub(super) fn lower_word<'a>(text: &[u8], buffer: &'a mut [u8; LONGEST]) -> &'a [u8] {
    let Some(word) = buffer.get_mut(..text.len()) else { return &[] };
    word.copy_from_slice(text);
    word.make_ascii_lowercase();
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_table_is_sorted() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name));
        assert!(COMMANDS.iter().all(|command| command.name.len() <= LONGEST));
        for container in CONTAINERS {
            assert!(find(container.as_bytes()).is_none());
        }
    }
}

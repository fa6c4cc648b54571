//! Commands about connections and the server.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec;
use alloc::vec::Vec;

use super::command::{CommandContext, lower};
use super::number;
use super::reply::RespReply;
use super::strings::{NOT_AN_INTEGER, SYNTAX};
use super::{Condition, Node, command};
use lock_proto::redis::Protocol;

const WRONG_PASS: RespReply = RespReply::error("WRONGPASS invalid username-password pair or user is disabled.");

pub(super) fn ping(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    match args {
        [_] | [_, _] if node.is_resp2_subscriber(context.conn) => {
            RespReply::Array(vec![RespReply::bulk(b"pong"), RespReply::bulk(args.get(1).copied().unwrap_or_default())])
        }
        [_] => RespReply::simple("PONG"),
        [_, text] => RespReply::bulk(text),
        _ => command::wrong_arity("ping"),
    }
}

pub(super) fn echo(_node: &mut Node, _context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    RespReply::bulk(args[1])
}

pub(super) fn quit(node: &mut Node, context: &mut CommandContext, _args: &[&[u8]]) -> RespReply {
    node.close_after_output(context.conn);
    RespReply::Ok
}

pub(super) fn time(node: &mut Node, _context: &mut CommandContext, _args: &[&[u8]]) -> RespReply {
    let micros = node.wall.read(node.now) / 1000;
    let part = |n: u64| RespReply::Bulk(n.to_string().into_bytes());
    RespReply::Array(vec![part(micros / 1_000_000), part(micros % 1_000_000)])
}

pub(super) fn select(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let Some(number) = number::integer(args[1]) else { return NOT_AN_INTEGER };
    if node.config.cluster.is_some() && number != 0 {
        return RespReply::error("ERR SELECT is not allowed in cluster mode");
    }
    let Some(db) = u32::try_from(number).ok().filter(|db| *db < node.config.databases) else {
        return RespReply::error("ERR DB index is out of range");
    };
    context.db = db;
    // A `SELECT` in a script does not outlast it.
    if context.script.is_none()
        && let Some(connection) = node.connections.get_mut(&context.conn)
    {
        connection.db = db;
    }
    RespReply::Ok
}

pub(super) fn auth(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    match args {
        [_, password] => {
            if node.config.users.get("default").is_none_or(|user| !user.needs_password()) {
                return RespReply::error(
                    "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                     configuration is correct?",
                );
            }
            log_in(node, context, b"default", password).err().unwrap_or(RespReply::Ok)
        }
        [_, user, password] => log_in(node, context, user, password).err().unwrap_or(RespReply::Ok),
        _ => SYNTAX,
    }
}

fn log_in(node: &mut Node, context: &CommandContext, user: &[u8], password: &[u8]) -> Result<(), RespReply> {
    let name = core::str::from_utf8(user).map_err(|_| WRONG_PASS)?;
    let user = node.config.users.get(name).filter(|user| user.accepts(password)).ok_or(WRONG_PASS)?;
    if let Some(connection) = node.connections.get_mut(&context.conn) {
        connection.user = Some(user.name.as_str().into());
        connection.login_until = node.config.login_limit.map(|limit| node.now + limit);
    }
    Ok(())
}

pub(super) fn hello(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let protocol = match args.get(1).map(|version| number::integer(version)) {
        None => None,
        Some(Some(2)) => Some(Protocol::Resp2),
        Some(Some(3)) => Some(Protocol::Resp3),
        Some(Some(_)) => return RespReply::error("NOPROTO unsupported protocol version"),
        Some(None) => return RespReply::error("ERR Protocol version is not an integer or out of range"),
    };
    let mut name = None;
    let mut login = None;
    let mut rest = args.get(2..).unwrap_or_default();
    while let Some((word, more)) = rest.split_first() {
        rest = match (lower(word).as_str(), more) {
            ("auth", [user, password, after @ ..]) => {
                login = Some((*user, *password));
                after
            }
            ("setname", [text, after @ ..]) => {
                name = Some(*text);
                after
            }
            _ => {
                let word = String::from_utf8_lossy(word);
                return RespReply::Error(format!("ERR Syntax error in HELLO option '{word}'").into());
            }
        };
    }
    if let Some((user, password)) = login
        && let Err(refused) = log_in(node, context, user, password)
    {
        return refused;
    }
    let Some(connection) = node.connections.get_mut(&context.conn) else { return RespReply::Later };
    if connection.user.is_none() {
        return RespReply::error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> \
             option can be used to authenticate the client and select the RESP protocol version at the same time",
        );
    }
    if let Some(name) = name {
        if !is_client_name(name) {
            return BAD_NAME;
        }
        connection.name = name.to_vec();
    }
    if let Some(protocol) = protocol {
        connection.protocol = protocol;
    }
    let (version, id) = (connection.protocol, connection.id);
    let bulk = |text: &str| RespReply::bulk(text.as_bytes());
    let role = if node.is_replica() { "replica" } else { "master" };
    RespReply::Map(vec![
        (bulk("server"), bulk("redis")),
        (bulk("version"), bulk(&node.version())),
        (bulk("proto"), RespReply::Int(if version == Protocol::Resp3 { 3 } else { 2 })),
        (bulk("id"), RespReply::Int(id)),
        (bulk("mode"), bulk(node.mode())),
        (bulk("role"), bulk(role)),
        (bulk("modules"), RespReply::Array(Vec::new())),
    ])
}

const BAD_NAME: RespReply = RespReply::error("ERR Client names cannot contain spaces, newlines or special characters.");

fn is_client_name(name: &[u8]) -> bool {
    name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

pub(super) fn client_setname(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    if !is_client_name(args[2]) {
        return BAD_NAME;
    }
    if let Some(connection) = node.connections.get_mut(&context.conn) {
        connection.name = args[2].to_vec();
    }
    RespReply::Ok
}

pub(super) fn client_getname(node: &mut Node, context: &mut CommandContext, _args: &[&[u8]]) -> RespReply {
    match node.connections.get(&context.conn).map(|connection| &connection.name) {
        Some(name) if !name.is_empty() => RespReply::bulk(name),
        Some(_) | None => RespReply::Nil,
    }
}

pub(super) fn client_setinfo(_node: &mut Node, _context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    match lower(args[2]).as_str() {
        "lib-name" | "lib-ver" if is_client_name(args[3]) => RespReply::Ok,
        option @ ("lib-name" | "lib-ver") => {
            RespReply::Error(format!("ERR {option} cannot contain spaces, newlines or special characters.").into())
        }
        _ => RespReply::Error(format!("ERR Unrecognized option '{}'", String::from_utf8_lossy(args[2])).into()),
    }
}

pub(super) fn client_id(node: &mut Node, context: &mut CommandContext, _args: &[&[u8]]) -> RespReply {
    RespReply::Int(node.connections.get(&context.conn).map_or(0, |connection| connection.id))
}

pub(super) fn client_unblock(node: &mut Node, _context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let reply = match args {
        [_, _, _] => None,
        [_, _, _, how] => match lower(how).as_str() {
            "timeout" => None,
            "error" => Some(RespReply::error("UNBLOCKED client unblocked via CLIENT UNBLOCK")),
            _ => return RespReply::error("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
        },
        _ => {
            let word = String::from_utf8_lossy(args[1]);
            let text = format!("ERR unknown subcommand or wrong number of arguments for '{word}'. Try CLIENT HELP.");
            return RespReply::Error(text.into());
        }
    };
    let Some(id) = number::integer(args[2]) else { return NOT_AN_INTEGER };
    let found =
        node.connections.iter().filter(|(_, c)| c.id == id).find_map(|(conn, c)| Some((*conn, c.blocked.as_ref()?)));
    let Some((conn, blocked)) = found else { return RespReply::Int(0) };
    let reply = reply.unwrap_or_else(|| node.timeout_reply(blocked));
    node.unblock(conn, &reply);
    RespReply::Int(1)
}

/// The filter of `CLIENT KILL`.
#[derive(Default)]
struct Victims {
    id: Option<i64>,
    user: Option<String>,
    /// Only connections with subscriptions, or only those without.
    subscribed: Option<bool>,
    /// The filter names an address or type that no connection here has.
    matches_none: bool,
    spare_me: bool,
}

pub(super) fn client_kill(node: &mut Node, context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    // The old form names an address; simulated connections have none.
    if args.len() == 3 {
        return RespReply::error("ERR No such client");
    }
    let victims = match victims(node, &args[2..]) {
        Ok(victims) => victims,
        Err(refused) => return refused,
    };
    let own = context.conn;
    let mut killed = 0;
    let all: Vec<u64> = node.connections.iter().filter(|(_, c)| !c.closing).map(|(conn, _)| *conn).collect();
    for conn in all {
        let Some(connection) = node.connections.get(&conn) else { continue };
        if victims.matches_none
            || victims.id.is_some_and(|id| id != connection.id)
            || victims.user.as_ref().is_some_and(|user| connection.user.as_deref() != Some(user))
            || victims.subscribed.is_some_and(|subscribed| subscribed != (connection.subscriptions() > 0))
            || (victims.spare_me && conn == own)
        {
            continue;
        }
        killed += 1;
        if conn == own {
            node.close_after_output(conn);
        } else {
            node.close(conn);
        }
    }
    RespReply::Int(killed)
}

fn victims(node: &Node, args: &[&[u8]]) -> Result<Victims, RespReply> {
    let mut victims = Victims { spare_me: true, ..Victims::default() };
    for pair in args.chunks(2) {
        let [option, value] = pair else { return Err(SYNTAX) };
        match (lower(option).as_str(), lower(value).as_str()) {
            ("id", _) => match number::integer(value) {
                Some(id) if id > 0 => victims.id = Some(id),
                Some(_) | None => return Err(RespReply::error("ERR client-id should be greater than 0")),
            },
            ("type", "normal") => victims.subscribed = Some(false),
            ("type", "pubsub") => victims.subscribed = Some(true),
            ("type", "master" | "replica" | "slave") | ("addr" | "laddr", _) => victims.matches_none = true,
            ("type", other) => return Err(RespReply::Error(format!("ERR Unknown client type '{other}'").into())),
            ("user", _) => {
                let name = String::from_utf8_lossy(value).into_owned();
                if !node.config.users.contains_key(&name) {
                    return Err(RespReply::Error(format!("ERR No such user '{name}'").into()));
                }
                victims.user = Some(name);
            }
            ("skipme", "yes") => victims.spare_me = true,
            ("skipme", "no") => victims.spare_me = false,
            _ => return Err(SYNTAX),
        }
    }
    Ok(victims)
}

pub(super) fn info(node: &mut Node, _context: &mut CommandContext, args: &[&[u8]]) -> RespReply {
    let requested: Vec<String> = args[1..].iter().map(|arg| lower(arg)).collect();
    let all =
        requested.is_empty() || requested.iter().any(|name| matches!(name.as_str(), "all" | "default" | "everything"));
    let mut sections: Vec<String> = Vec::new();
    for name in ["server", "clients", "persistence", "replication"] {
        if all || requested.iter().any(|other| other == name) {
            sections.push(node.info_section(name));
        }
    }
    RespReply::Text(sections.join("\r\n"))
}

impl Node {
    fn version(&self) -> String {
        let (major, minor, patch) = self.config.version;
        format!("{major}.{minor}.{patch}")
    }

    const fn mode(&self) -> &'static str {
        if self.config.cluster.is_some() { "cluster" } else { "standalone" }
    }

    fn info_section(&self, name: &str) -> String {
        match name {
            "server" => self.info_server(),
            "clients" => {
                let (open, blocked) = (self.connection_count(), self.blocked_count());
                let listening = self.connections.values().filter(|connection| connection.subscriptions() > 0).count();
                format!(
                    "# Clients\r\nconnected_clients:{open}\r\nblocked_clients:{blocked}\r\npubsub_clients:{listening}\r\n"
                )
            }
            "persistence" => {
                let loading = u8::from(self.conditions.contains(&Condition::Loading));
                format!("# Persistence\r\nloading:{loading}\r\n")
            }
            _ => self.info_replication(),
        }
    }

    fn info_server(&self) -> String {
        let (now, uptime) = (self.wall.read(self.now), self.uptime(self.now));
        format!(
            "# Server\r\nredis_version:{}\r\nredis_mode:{}\r\nrun_id:{}\r\ntcp_port:{}\r\nserver_time_usec:{}\r\n\
             uptime_in_seconds:{uptime}\r\nuptime_in_days:{}\r\n",
            self.version(),
            self.mode(),
            self.run_id,
            self.config.port,
            now / 1000,
            uptime / 86_400,
        )
    }
}

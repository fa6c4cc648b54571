//! Classification of server errors by their meaning for a lock, for Redis 6.2 to 8 and Valkey. "Not
//! executed" holds for the command that the error answers: scripts return errors only if they have
//! not written anything.
// A1, P2

use crate::lock::{ErrorClass, ServerError, printable};

/// Classes by error code, the first word of the text.
const CODES: &[(&str, ErrorClass)] = &[
    ("LOADING", ErrorClass::Transient),
    ("TRYAGAIN", ErrorClass::Transient),
    ("BUSY", ErrorClass::Transient),
    ("CLUSTERDOWN", ErrorClass::Transient),
    ("NOREPLICAS", ErrorClass::Transient),
    ("MISCONF", ErrorClass::Transient),
    ("OOM", ErrorClass::Transient),
    ("EXECABORT", ErrorClass::Transient),
    ("NOSCRIPT", ErrorClass::Transient),
    ("LOCKALONE", ErrorClass::Transient),
    ("READONLY", ErrorClass::Reconnect),
    ("MASTERDOWN", ErrorClass::Reconnect),
    // Sent to a blocked client when its server becomes a replica.
    ("UNBLOCKED", ErrorClass::Reconnect),
    ("NOAUTH", ErrorClass::Refused),
    ("WRONGPASS", ErrorClass::Refused),
    ("NOPERM", ErrorClass::Refused),
    ("NOPROTO", ErrorClass::Refused),
    ("DENIED", ErrorClass::Refused),
    ("MOVED", ErrorClass::Refused),
    ("ASK", ErrorClass::Refused),
    ("CROSSSLOT", ErrorClass::Refused),
    ("WRONGTYPE", ErrorClass::KeyInUse),
    ("LOCKFENCE", ErrorClass::KeyInUse),
];

/// Classes of errors without a code, by the lower-case start of the text after `ERR`.
const PHRASES: &[(&str, ErrorClass)] = &[
    ("max number of clients", ErrorClass::Transient),
    ("unknown command", ErrorClass::Refused),
    ("unknown subcommand", ErrorClass::Refused),
    // The reply to a long command before AUTH.
    ("protocol error: unauthenticated", ErrorClass::Refused),
    ("the user executing the script can't", ErrorClass::Refused),
    ("acl failure in script", ErrorClass::Refused),
    // A command that a script needs was renamed, or does not exist.
    ("unknown redis command called from", ErrorClass::Refused),
    ("unknown command called from", ErrorClass::Refused),
    ("this redis command is not allowed from script", ErrorClass::Refused),
    ("this valkey command is not allowed from script", ErrorClass::Refused),
    // Another language, or another dialect.
    ("error compiling script", ErrorClass::Refused),
    // The words of services and proxies for a command that they do not offer.
    ("command is not available", ErrorClass::Refused),
    ("unsupported command", ErrorClass::Refused),
    // An option of a command that the server does not know.
    ("syntax error", ErrorClass::Refused),
    ("wrong number of arguments for", ErrorClass::Refused),
    ("invalid password", ErrorClass::Refused),
    ("invalid username-password", ErrorClass::Refused),
    ("operation not permitted", ErrorClass::Refused),
    ("auth", ErrorClass::Refused),
    ("client sent auth", ErrorClass::Refused),
    ("db index is out of range", ErrorClass::Refused),
    ("invalid db index", ErrorClass::Refused),
    ("select is not allowed", ErrorClass::Refused),
];

/// Hint appended to errors of a server in cluster mode.
pub(crate) const NO_CLUSTER: &str = " (Redis Cluster is not supported)";

/// Hint appended where a server forbids or does not know the commands that run scripts.
const NEEDS_SCRIPTS: &str = " (locks are Lua scripts: allow EVAL and EVALSHA; a Sentinel runs none)";

/// Hint appended where a command that scripts need was renamed or does not exist.
const NEEDS_COMMANDS: &str = " (the scripts of a lock need commands that this server hides: see the access rules)";

/// Hint appended where the user lacks access to a key.
const NEEDS_KEYS: &str = " (besides its own keys, a lock uses lock-proto:fence, after the prefix)";

/// Hint appended where the user lacks a command within a script, which the error does not name.
const NAMED_IN_LOG: &str = " (`ACL LOG` on the server names it)";

/// Hint appended where the fence counter is broken, which the scripts do not name.
const FENCE_KEY: &str = " (its key is lock-proto:fence, after the prefix)";

/// Words for scripts, and words for what is not there.
const SCRIPTS: [&str; 4] = ["eval", "evalsha", "lua", "scripting"];
const MISSING: [&str; 10] = [
    "unknown",
    "could not find",
    "not support",
    "unsupported",
    "not allowed",
    "not available",
    "not permitted",
    "not implemented",
    "disabled",
    "no permissions",
];

/// Returns true if an error says that the server runs no scripts, or may not run them for this
/// user. Servers, services and proxies have different words for it. The error of a running script
/// must not be passed.
// P2
fn runs_no_scripts(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| SCRIPTS.contains(&word))
        && MISSING.iter().any(|missing| text.contains(missing))
        && !text.contains("called from")
}

/// Returns true if an error says that the keys of a command belong to several servers of a cluster.
/// Servers have the code `CROSSSLOT`, proxies have words.
fn spans_slots(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["same slot", "cross-slot", "cross slot", "non local key in a cluster"].iter().any(|part| text.contains(part))
        || text.contains("lua script for redis cluster")
}

/// Returns true if the server takes no more connections. It closes this one.
pub(super) fn is_full(text: &str) -> bool {
    text.starts_with("ERR max number of clients")
}

/// Returns true if the connection is not, or no longer, logged in. Then a server refuses long
/// commands before reading them.
pub(crate) fn asks_for_login(text: &str) -> bool {
    ["NOAUTH ", "ERR Protocol error: unauthenticated"].iter().any(|start| text.starts_with(start))
}

/// Returns true if the server rejects a user, a password or a token. Other steps of a handshake may
/// be refused too.
pub(crate) fn rejects_login(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let starts = ["wrongpass ", "noauth ", "err auth", "err client sent auth", "err invalid password"];
    starts.iter().any(|start| text.starts_with(start))
}

/// Returns true if the server will always refuse a command for several locks: for a cluster, or a
/// forbidden command. A forbidden key does not count, since the next batch has other keys.
pub(crate) fn refuses_several(text: &str) -> bool {
    ["CROSSSLOT ", "MOVED ", "ASK "].iter().any(|start| text.starts_with(start))
        || ["run this command", "to run the '"].iter().any(|part| text.contains(part))
}

/// Returns true if the server refuses a command because of one of its keys, so that it may accept
/// the same command with other keys.
pub(crate) fn refuses_key(error: &ServerError) -> bool {
    error.class == ErrorClass::KeyInUse || (error.class == ErrorClass::Refused && names_key(&error.text))
}

/// Returns true if an error says that the user lacks access to a key.
fn names_key(text: &str) -> bool {
    ["one of the keys", "to access a key"].iter().any(|part| text.contains(part))
}

/// Servers quote the arguments of unknown commands, including the password of a login.
const QUOTED_ARGUMENTS: &str = ", with args beginning with";

impl ServerError {
    /// Returns true if the server did not execute the command, and may do so later.
    pub(crate) const fn is_temporary(&self) -> bool {
        matches!(self.class, ErrorClass::Transient | ErrorClass::Reconnect)
    }

    /// Classifies an error by its code, the first word of its text.
    ///
    /// The stored text is safe to log: printable, at most 400 bytes, without quoted arguments.
    #[must_use]
    pub fn classify(text: &str) -> Self {
        let by_script = text.contains("user_script");
        let text = unwrapped(text);
        let text = text.split(QUOTED_ARGUMENTS).next().unwrap_or_default();
        let (code, rest) = text.split_once(' ').unwrap_or((text, ""));
        let no_scripts = !by_script && runs_no_scripts(text);
        let class = match CODES.iter().find(|(known, _)| *known == code) {
            Some((_, class)) => *class,
            None => {
                let phrase = if code == "ERR" { rest } else { text };
                let starts =
                    |with: &str| phrase.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
                match PHRASES.iter().find(|(phrase, _)| starts(phrase)) {
                    Some((_, class)) => *class,
                    None if no_scripts || spans_slots(text) => ErrorClass::Refused,
                    None => ErrorClass::Unclear,
                }
            }
        };
        let hint = match code {
            "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" => NO_CLUSTER,
            "LOCKFENCE" => FENCE_KEY,
            _ if class == ErrorClass::Refused && spans_slots(text) => NO_CLUSTER,
            _ if class == ErrorClass::Refused && no_scripts => NEEDS_SCRIPTS,
            "NOPERM" if names_key(text) => NEEDS_KEYS,
            _ if text.contains("executing the script can't run") => NAMED_IN_LOG,
            _ if text.contains("called from") || text.contains("not allowed from script") => NEEDS_COMMANDS,
            _ => "",
        };
        Self { class, text: printable(text, hint) }
    }
}

/// Strips the script location that Redis before 7 adds: `@user_script: 3: -READONLY …`, or
/// `ERR Error running script (call to f_…): @user_script:3: @user_script: 3: …`.
fn unwrapped(text: &str) -> &str {
    let wrapped = ["@user_script", "ERR Error running script"].iter().any(|start| text.starts_with(start));
    let Some((_, rest)) = text.rsplit_once("@user_script:").filter(|_| wrapped) else { return text };
    match rest.trim_start().split_once(": ") {
        Some((line, error)) if line.bytes().all(|b| b.is_ascii_digit()) => error.trim_start_matches('-'),
        Some(_) | None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::MAX_TEXT;
    use alloc::format;

    fn class(text: &str) -> ErrorClass {
        ServerError::classify(text).class
    }

    /// Texts of redis-server 7.0, and of other versions and Valkey 9 where they differ.
    #[test]
    fn errors_are_classified_by_meaning_for_lock() {
        // P2
        for (expected, texts) in [
            (
                ErrorClass::Transient,
                &[
                    "LOADING Redis is loading the dataset in memory",
                    "TRYAGAIN Multiple keys request during rehashing of slot",
                    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
                    "CLUSTERDOWN The cluster is down",
                    "NOREPLICAS Not enough good replicas to write.",
                    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
                    "OOM command not allowed when used memory > 'maxmemory'.",
                    "OOM command not allowed when used memory > 'maxmemory'. script: 0a9f, on @user_script:1.",
                    "@user_script: 12: -OOM command not allowed when used memory > 'maxmemory'.",
                    "EXECABORT Transaction discarded because of previous errors.",
                    "NOSCRIPT No matching script. Please use EVAL.",
                    "ERR max number of clients reached",
                ][..],
            ),
            (
                ErrorClass::Reconnect,
                &[
                    "READONLY You can't write against a read only replica.",
                    "READONLY You can't write against a read only replica. script: 0a9f, on @user_script:1.",
                    "@user_script: 3: -READONLY You can't write against a read only replica.",
                    "ERR Error running script (call to f_0a9f): @user_script:1: @user_script: 1: -READONLY You can't write",
                    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
                    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
                ],
            ),
            (
                ErrorClass::Refused,
                &[
                    "NOAUTH Authentication required.",
                    "WRONGPASS invalid username-password pair or user is disabled.",
                    "NOPERM this user has no permissions to run the 'set' command",
                    "NOPERM this user has no permissions to access one of the keys used as arguments",
                    "ERR The user executing the script can't run this command or subcommand",
                    "ERR The user executing the script can't access at least one of the keys mentioned in the command",
                    "@user_script: 1: The user executing the script can't run this command or subcommand",
                    "ERR ACL failure in script: User app has no permissions to run the 'get' command",
                    "NOPROTO unsupported protocol version",
                    "DENIED Redis is running in protected mode because protected mode is enabled",
                    "ERR unknown command 'foo', with args beginning with: 'bar' ",
                    "ERR unknown command `foo`, with args beginning with: `bar`, ",
                    "ERR Unknown subcommand or wrong number of arguments for 'UNBLOCK'. Try CLIENT HELP.",
                    "ERR invalid password",
                    "ERR AUTH <password> called without any password configured for the default user.",
                    "ERR Client sent AUTH, but no password is set",
                    "ERR DB index is out of range",
                    "ERR SELECT is not allowed in cluster mode",
                    "MOVED 866 127.0.0.1:6379",
                    "ASK 866 127.0.0.1:6379",
                    "CROSSSLOT Keys in request don't hash to the same slot",
                ],
            ),
            (
                ErrorClass::KeyInUse,
                &[
                    "WRONGTYPE Operation against a key holding the wrong kind of value",
                    "ERR Error running script (call to f_80d1): @user_script:1: WRONGTYPE Operation against a key",
                    "LOCKFENCE the fence counter holds no number",
                ],
            ),
            (
                ErrorClass::Unclear,
                &[
                    "",
                    "ERR",
                    "ERR timeout is not a float or out of range",
                    "BUSYKEY Target key name already exists.",
                    "ERR Error running script (call to f_80d1): @user_script:1: Script attempted to access nonexistent global",
                    "upstream connect error",
                    "@user_script",
                    "@user_script: x: y",
                ],
            ),
        ] {
            for text in texts {
                assert_eq!(class(text), expected, "{text}");
            }
        }
    }

    #[test]
    fn cluster_errors_mention_redis_cluster() {
        let error = ServerError::classify("MOVED 866 127.0.0.1:6379");
        assert_eq!(&*error.text, "MOVED 866 127.0.0.1:6379 (Redis Cluster is not supported)");
        let long = ServerError::classify(&format!("CROSSSLOT {}", "x".repeat(500)));
        assert_eq!(long.text.len(), MAX_TEXT);
        assert!(long.text.ends_with("(Redis Cluster is not supported)"));
    }

    #[test]
    fn forbidden_command_in_script_is_named_by_the_servers_log() {
        // P2
        for start in ["ERR ", "@user_script: 1: "] {
            let error = ServerError::classify(&format!("{start}The user executing the script can't run this command"));
            assert!(error.class == ErrorClass::Refused && error.text.ends_with(NAMED_IN_LOG), "{}", error.text);
        }
    }

    #[test]
    fn forbidden_keys_are_named_with_what_is_needed() {
        // P2
        for text in [
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            // Since 7.2, and Valkey.
            "NOPERM No permissions to access a key",
        ] {
            let error = ServerError::classify(text);
            assert_eq!(error.class, ErrorClass::Refused, "{text}");
            assert!(error.text.ends_with(NEEDS_KEYS), "{}", error.text);
            assert!(refuses_key(&error), "{text}");
        }
    }

    #[test]
    fn broken_fence_counter_is_named() {
        let text = "LOCKFENCE the fence counter holds no number, or one that leaves no room to count";
        let error = ServerError::classify(text);
        assert_eq!(*error.text, *format!("{text} (its key is lock-proto:fence, after the prefix)"));
    }

    /// Managed services forbid scripts by a permission, or by a name that is unknown.
    #[test]
    fn forbidden_scripts_are_named_with_what_is_needed() {
        // P2
        for text in [
            "NOPERM this user has no permissions to run the 'eval' command",
            "NOPERM User x has no permissions to run the 'evalsha' command",
            "NOPERM this user has no permissions to run the 'eval' command or its subcommand",
            "ERR unknown command 'EVAL', with args beginning with: 'return 1' '0' ",
            "ERR unknown command `EVALSHA`, with args beginning with: `0a9f`, ",
        ] {
            let error = ServerError::classify(text);
            assert_eq!(error.class, ErrorClass::Refused, "{text}");
            assert!(
                error.text.ends_with(" (locks are Lua scripts: allow EVAL and EVALSHA; a Sentinel runs none)"),
                "{}",
                error.text
            );
        }
        for text in ["NOPERM this user has no permissions to run the 'info' command", "ERR wrong arguments for 'eval'"]
        {
            assert_eq!(&*ServerError::classify(text).text, text);
        }
    }

    /// The words of servers, services and proxies that run no scripts.
    #[test]
    fn every_text_that_says_no_scripts_refuses() {
        // P2
        for text in [
            // Valkey 9.1 without its Lua module.
            "ERR Could not find scripting engine 'lua'",
            // A Valkey built without Lua.
            "ERR Lua scripting disabled",
            // Garnet without `--lua`.
            "ERR This instance has Lua scripting support disabled",
            // Alibaba Cloud, Upstash, Codis, and other proxies.
            "ERR command eval not support for your account",
            "ERR command 'EVAL' not support for normal user",
            "ERR Command is not available: 'EVAL'. See https://upstash.com/docs/redis for details",
            "ERR handle request, command 'EVAL' is not allowed",
            "ERR unsupported command `EVALSHA`",
            "unsupported command 'eval'",
            "ERR EVAL is not implemented",
            "ERR unknown command eval",
        ] {
            let error = ServerError::classify(text);
            assert_eq!(error.class, ErrorClass::Refused, "{text}");
            assert!(error.text.starts_with(text) && error.text.ends_with(NEEDS_SCRIPTS), "{}", error.text);
        }
        // These are no refusals of scripts.
        for text in [
            "ERR Error running script (call to f_80d1): @user_script:1: Unknown global in Lua",
            "ERR value is not available",
            "ERR wrong arguments for 'eval'",
            "ERR evaluation is not allowed at this interval",
        ] {
            assert_eq!(class(text), ErrorClass::Unclear, "{text}");
        }
    }

    /// A script needs commands that the server does not have, or hides by other names.
    #[test]
    fn missing_commands_of_scripts_refuse() {
        // P2
        for text in [
            "ERR Unknown Redis command called from script script: 0a9f, on @user_script:1.",
            "@user_script: 1: Unknown Redis command called from Lua script",
            "ERR This Redis command is not allowed from script script: 0a9f, on @user_script:1.",
            "@user_script: 1: This Redis command is not allowed from scripts",
        ] {
            let error = ServerError::classify(text);
            assert_eq!(error.class, ErrorClass::Refused, "{text}");
            assert!(error.text.ends_with(NEEDS_COMMANDS), "{}", error.text);
        }
        for text in [
            "ERR Error compiling script (new function): user_script:1: unexpected symbol",
            "ERR Command is not available: 'SET'. See https://upstash.com/docs/redis for details",
            "ERR unsupported command `SET`",
            "ERR syntax error",
            "ERR wrong number of arguments for 'set' command",
        ] {
            assert_eq!(class(text), ErrorClass::Refused, "{text}");
        }
    }

    /// Proxies in front of a cluster have words instead of codes.
    #[test]
    fn keys_in_several_slots_refuse() {
        // P2
        for text in [
            "ERR Cross-slot queries are disabled. They can be enabled by using the --enable-cross-slot option",
            "ERR eval/evalsha command keys must be in same slot",
            "ERR bad lua script for redis cluster, all the keys should be passed using the KEYS array",
            "ERR Script attempted to access a non local key in a cluster node script: 0a9f",
        ] {
            let error = ServerError::classify(text);
            assert_eq!(error.class, ErrorClass::Refused, "{text}");
            assert!(error.text.ends_with(NO_CLUSTER), "{}", error.text);
        }
    }

    #[test]
    fn error_text_is_printable_and_bounded() {
        let error = ServerError::classify("ERR a\u{7}b\u{1b}[31mc\r");
        assert_eq!(&*error.text, "ERR a?b?[31mc");
        let long = ServerError::classify(&"ä".repeat(500));
        assert_eq!(long.text.len(), MAX_TEXT);
    }

    #[test]
    fn password_quoted_by_server_is_cut_off() {
        let error =
            ServerError::classify("ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'u' 'secret' ");
        assert_eq!(&*error.text, "ERR unknown command 'HELLO'");
    }
}

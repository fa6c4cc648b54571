//! The repair: a release that compares the token.

use std::time::Duration;

use lock_proto::Release;
use lock_sim::own::{Call, Context, Lost, OwnLock};
use lock_sim::redis::{RespReply, ScriptCalls, ScriptFn};

#[derive(Clone, Debug, Hash)]
pub struct Compared;

const TAKE: u64 = 1;
const FREE: u64 = 2;

/// The script as your client sends it.
pub const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// The same in Rust, for the simulated server.
pub fn compare_and_delete(redis: &mut ScriptCalls<'_>, keys: &[&[u8]], args: &[&[u8]]) -> Result<RespReply, RespReply> {
    if redis.call(&[b"GET", keys[0]])?.bytes() == Some(args[0]) {
        return redis.call(&[b"DEL", keys[0]]);
    }
    Ok(RespReply::Int(0))
}

impl OwnLock for Compared {
    fn acquire(&mut self, cx: &mut Context<'_>) {
        let ttl = cx.ttl().as_millis().to_string();
        cx.send(0, TAKE, &["SET", cx.name(), cx.token(), "NX", "PX", &ttl]);
    }

    fn release(&mut self, cx: &mut Context<'_>) {
        cx.send(0, FREE, &["EVAL", COMPARE_AND_DELETE, "1", cx.name(), cx.token()]);
    }

    fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RespReply, Lost>) {
        match (call.tag, reply) {
            (TAKE, Ok(RespReply::Ok)) => cx.grant(call.sent + cx.ttl() * 98 / 100, None),
            (TAKE, _) => cx.retry(Duration::from_millis(20)),
            (_, Ok(RespReply::Int(1))) => cx.released(Release::Released),
            (_, Ok(RespReply::Int(_))) => cx.released(Release::Expired),
            // An error, such as `-LOADING`, or no reply.
            _ => cx.released(Release::Unknown),
        }
    }

    fn scripts(&self) -> &'static [(&'static str, ScriptFn)] {
        &[(COMPARE_AND_DELETE, compare_and_delete)]
    }
}

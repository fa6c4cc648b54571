//! `SET name token NX PX ttl`, and a release by `DEL`.

use std::time::Duration;

use lock_proto::Release;
use lock_sim::own::{Call, Context, Lost, OwnLock};
use lock_sim::redis::RespReply;

#[derive(Clone, Debug, Hash)]
pub struct Naive;

const TAKE: u64 = 1;
const FREE: u64 = 2;

impl OwnLock for Naive {
    fn acquire(&mut self, cx: &mut Context<'_>) {
        let ttl = cx.ttl().as_millis().to_string();
        cx.send(0, TAKE, &["SET", cx.name(), cx.token(), "NX", "PX", &ttl]);
    }

    fn release(&mut self, cx: &mut Context<'_>) {
        cx.send(0, FREE, &["DEL", cx.name()]);
    }

    fn handle_reply(&mut self, cx: &mut Context<'_>, call: Call, reply: Result<RespReply, Lost>) {
        match (call.tag, reply) {
            // Held for a TTL from the request, less 2 % because clocks differ.
            (TAKE, Ok(RespReply::Ok)) => cx.grant(call.sent + cx.ttl() * 98 / 100, None),
            (TAKE, _) => cx.retry(Duration::from_millis(20)),
            _ => cx.released(Release::Released),
        }
    }
}

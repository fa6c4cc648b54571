//! The stock in Redis.

use lock_proto::Fence;
use lock_proto::fence::{FenceCheck, redis_eval};
use redis::{Client, Cmd, Connection, Value};

use crate::{SaleError, Stock};

const KEY: &str = "{sale}";
const FENCE_KEY: &str = "{sale}:fence";
const TAKE: &str =
    "if tonumber(redis.call('GET', KEYS[1])) <= 0 then return 0 end redis.call('DECR', KEYS[1]) return 1";

/// A connection to the key of the stock.
#[expect(missing_debug_implementations, reason = "the connection has none")]
pub struct RedisStock(Connection);

impl RedisStock {
    /// Connects.
    ///
    /// # Errors
    ///
    /// The server cannot be reached.
    pub fn connect(url: &str) -> Result<Self, SaleError> {
        Ok(Self(Client::open(url)?.get_connection()?))
    }

    /// Starts a sale of this many goods.
    ///
    /// # Errors
    ///
    /// As [`Stock::read`].
    pub fn reset(&mut self, goods: i64) -> Result<(), SaleError> {
        redis::cmd("DEL").arg(FENCE_KEY).exec(&mut self.0)?;
        self.write(goods)
    }

    fn fenced(&mut self, fence: Fence, command: &[&str]) -> Result<FenceCheck, SaleError> {
        let command: Vec<&[u8]> = command.iter().map(|arg| arg.as_bytes()).collect();
        let mut eval = Cmd::new();
        for arg in redis_eval(FENCE_KEY.as_bytes(), &[KEY.as_bytes()], fence, &command) {
            eval.arg(&*arg);
        }
        let (accepted, value): (bool, Value) = eval.query(&mut self.0)?;
        if accepted {
            return Ok(FenceCheck::Accepted);
        }
        Ok(FenceCheck::Stale { seen: Fence::new(redis::from_redis_value(value)?) })
    }
}

impl Stock for RedisStock {
    fn read(&mut self) -> Result<i64, SaleError> {
        Ok(redis::cmd("GET").arg(KEY).query(&mut self.0)?)
    }

    fn write(&mut self, left: i64) -> Result<(), SaleError> {
        Ok(redis::cmd("SET").arg(KEY).arg(left).exec(&mut self.0)?)
    }

    fn claim(&mut self, fence: Fence) -> Result<FenceCheck, SaleError> {
        self.fenced(fence, &["GET", KEY])
    }

    fn write_fenced(&mut self, left: i64, fence: Fence) -> Result<FenceCheck, SaleError> {
        self.fenced(fence, &["SET", KEY, &left.to_string()])
    }

    /// Redis locks nothing: after the work a script takes one, if one is left.
    fn sell_exclusively(&mut self, work: &mut dyn FnMut()) -> Result<bool, SaleError> {
        if self.read()? <= 0 {
            return Ok(false);
        }
        work();
        Ok(redis::cmd("EVAL").arg(TAKE).arg(1).arg(KEY).query(&mut self.0)?)
    }

    fn sell_if_unchanged(&mut self, work: &mut dyn FnMut()) -> Result<Option<bool>, SaleError> {
        redis::cmd("WATCH").arg(KEY).exec(&mut self.0)?;
        let left = self.read()?;
        if left <= 0 {
            redis::cmd("UNWATCH").exec(&mut self.0)?;
            return Ok(Some(false));
        }
        work();
        let mut transaction = redis::pipe();
        transaction.atomic().cmd("SET").arg(KEY).arg(left - 1).ignore();
        let done: Option<()> = transaction.query(&mut self.0)?;
        Ok(done.map(|()| true))
    }
}

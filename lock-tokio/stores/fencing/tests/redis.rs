//! Fencing on Redis. The function `fenced` is in docs/fencing.md.
#![allow(clippy::unwrap_used, reason = "tests")]

use lock_proto::Fence;
use lock_proto::fence::{FenceCheck, redis_eval};
use lock_testkit::Redis;
use redis::{Client, Cmd, Connection, FromRedisValue, RedisResult, Value};

mod kit;

/// Runs a command that uses one key.
fn fenced(db: &mut Connection, key: &str, fence: Fence, command: &[&str]) -> RedisResult<Result<Value, FenceCheck>> {
    let fence_key = format!("{{{key}}}:fence");
    let command: Vec<&[u8]> = command.iter().map(|arg| arg.as_bytes()).collect();
    let mut eval = Cmd::new();
    for arg in redis_eval(fence_key.as_bytes(), &[key.as_bytes()], fence, &command) {
        eval.arg(&*arg);
    }
    let (accepted, value): (bool, Value) = eval.query(db)?;
    if accepted {
        return Ok(Ok(value));
    }
    Ok(Err(FenceCheck::Stale { seen: Fence::new(redis::from_redis_value(value)?) }))
}

fn connect(server: &Redis) -> Connection {
    Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// Runs a command without a token.
fn run<T: FromRedisValue>(db: &mut Connection, command: &str) -> T {
    let mut parts = command.split(' ');
    redis::cmd(parts.next().unwrap()).arg(parts.collect::<Vec<_>>()).query(db).unwrap()
}

#[test]
fn stale_command_does_not_run_on_redis() {
    // F1
    let server = Redis::start();
    let mut db = connect(&server);
    let [old, new] = [7, 8].map(Fence::new);
    let text = |text: &str| Ok(Value::BulkString(text.into()));
    for (fence, command, reply) in [
        (old, &["SET", "stock", "a"][..], Ok(Value::Okay)),
        (new, &["SET", "stock", "b"], Ok(Value::Okay)),
        (new, &["APPEND", "stock", "c"], Ok(Value::Int(2))),
        (old, &["SET", "stock", "d"], Err(FenceCheck::Stale { seen: new })),
        (new, &["GET", "stock"], text("bc")),
        // Replies of every kind come through.
        (new, &["GETDEL", "stock"], text("bc")),
        (new, &["GET", "stock"], Ok(Value::Nil)),
        (new, &["MGET", "stock", "stock"], Ok(Value::Array(vec![Value::Nil, Value::Nil]))),
    ] {
        assert_eq!(fenced(&mut db, "stock", fence, command).unwrap(), reply, "{fence} {command:?}");
    }
}

/// Lua's numbers are equal from 2^53 on where tokens differ by one, and texts order 9 after 10.
#[test]
fn script_orders_tokens_as_numbers() {
    // F2
    let server = Redis::start();
    let mut db = connect(&server);
    let edges = [0, 1, 9, 10, 99, 100, 1 << 53, (1 << 53) + 1, (1 << 53) + 2, i64::MAX as u64, u64::MAX - 1, u64::MAX];
    for (number, seen) in edges.iter().flat_map(|a| edges.map(|b| (*a, b))) {
        let (fence, seen) = (Fence::new(number), Fence::new(seen));
        run::<()>(&mut db, &format!("SET {{stock}}:fence {seen}"));
        let check = fenced(&mut db, "stock", fence, &["INCR", "stock"]).unwrap().err().unwrap_or(FenceCheck::Accepted);
        assert_eq!(check, fence.check(seen), "{fence} after {seen}");
        assert_eq!(run::<u64>(&mut db, "GET {stock}:fence"), fence.max(seen).get());
    }
}

#[test]
fn failed_command_keeps_its_token_on_redis() {
    // F1
    let server = Redis::start();
    let mut db = connect(&server);
    let [old, new] = [7, 8].map(Fence::new);
    fenced(&mut db, "stock", old, &["SET", "stock", "many"]).unwrap().unwrap();
    let error = fenced(&mut db, "stock", new, &["INCR", "stock"]).unwrap_err().to_string();
    assert!(error.contains("not an integer"), "{error}");
    assert_eq!(fenced(&mut db, "stock", old, &["GET", "stock"]).unwrap(), Err(FenceCheck::Stale { seen: new }));
}

#[test]
fn foreign_value_in_place_of_a_token_is_an_error_on_redis() {
    // F2
    let server = Redis::start();
    let mut db = connect(&server);
    for command in ["SET {stock}:fence -5", "SET {stock}:fence 1e3", "SET {stock}:fence ", "LPUSH {stock}:fence 1"] {
        run::<()>(&mut db, "DEL {stock}:fence");
        run::<()>(&mut db, command);
        assert!(fenced(&mut db, "stock", Fence::new(9), &["SET", "stock", "a"]).is_err(), "{command}");
        assert_eq!(run::<Value>(&mut db, "GET stock"), Value::Nil);
    }
}

#[test]
fn concurrent_commands_keep_order_on_redis() {
    // F1
    let server = Redis::start();
    kit::storm(|| {
        let mut db = connect(&server);
        move |fence| match fenced(&mut db, "stock", fence, &["INCR", "stock"]).unwrap() {
            Ok(Value::Int(order)) => (FenceCheck::Accepted, order as u64),
            Ok(other) => panic!("{other:?}"),
            Err(check) => (check, 0),
        }
    });
}

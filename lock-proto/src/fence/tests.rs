//! What the builders make. That databases and servers agree is tested in `lock-tokio/stores/fencing`.

use alloc::format;
use alloc::string::ToString as _;
use alloc::vec::Vec;

use super::*;

const DIALECTS: [SqlDialect; 3] = [SqlDialect::Postgres, SqlDialect::Sqlite, SqlDialect::MariaDb];

#[test]
fn equal_token_passes_and_smaller_is_stale() {
    // F1
    let [one, two, greatest] = [1, 2, u64::MAX].map(Fence::new);
    for (fence, seen) in [(one, one), (two, one), (greatest, greatest), (greatest, one)] {
        assert_eq!(fence.check(seen), FenceCheck::Accepted);
    }
    for (fence, seen) in [(one, two), (Fence::new(0), one), (Fence::new(u64::MAX - 1), greatest)] {
        assert_eq!(fence.check(seen), FenceCheck::Stale { seen });
    }
}

#[test]
fn tokens_are_parsed_strictly() {
    // F2
    for number in [0, 1, (1 << 53) + 1, u64::MAX] {
        let fence = Fence::new(number);
        assert_eq!(fence.to_string().parse(), Ok(fence));
        assert_eq!(parse_header(fence.to_string().as_bytes()), Ok(fence));
    }
    for text in ["", "+1", "-1", " 1", "1 ", "1,2", "0x10", "1e3", "18446744073709551616", "१"] {
        assert_eq!(text.parse::<Fence>(), Err(InvalidFence), "{text:?}");
    }
    assert_eq!(parse_header(b"\xff1"), Err(InvalidFence));
}

#[test]
fn columns_of_64_bits_keep_tokens() {
    for number in [0, 1, (1 << 53) + 1, i64::MAX as u64] {
        assert_eq!(Fence::from_i64(Fence::new(number).as_i64()), Fence::new(number));
    }
    assert_eq!(Fence::from_i64(-1), Fence::new(0));
}

#[test]
fn names_are_quoted() {
    // F3
    let name = "a\"b`c'd;--";
    let quoted = DIALECTS.map(|dialect| FenceColumn::new(dialect, name).name());
    assert_eq!(quoted, ["\"a\"\"b`c'd;--\"", "`a\"b``c'd;--`", "`a\"b``c'd;--`"]);
    for dialect in DIALECTS {
        let table = FenceTable::new(dialect, name).schema("s\"`");
        let [schema, name] = ["s\"`", name].map(|name| FenceColumn::new(dialect, name).name());
        for statement in [table.create(), table.raise(), table.seen()] {
            assert!(statement.contains(&format!(" {schema}.{name} ")), "{statement}");
        }
    }
}

#[test]
fn rows_affected_read_differently_by_dialect() {
    // F1
    let [old, own, new] = [4, 5, 6].map(Fence::new);
    for dialect in DIALECTS {
        let check = |affected, seen| FenceColumn::new(dialect, "fence").check(own, affected, seen);
        assert_eq!(check(1, None), Some(FenceCheck::Accepted));
        assert_eq!(check(0, Some(new)), Some(FenceCheck::Stale { seen: new }));
        // There is no such row, or the rest of the condition did not hold.
        assert_eq!((check(0, None), check(0, Some(old))), (None, None));
        // MariaDB counts no row that is as it was.
        let unchanged = (dialect == SqlDialect::MariaDb).then_some(FenceCheck::Accepted);
        assert_eq!(check(0, Some(own)), unchanged);
        // What such a column holds of a token that does not fit is the greatest that does.
        let check = |fence, seen| FenceColumn::new(dialect, "fence").check(Fence::new(fence), 0, Some(seen));
        assert_eq!(check(u64::MAX, Fence::from_i64(i64::MAX)), unchanged);
    }
}

#[test]
fn redis_command_follows_keys_and_token() {
    let args = redis_eval(b"f", &[b"a", b"b"], Fence::new(u64::MAX), &[b"MSET", b"a", b"1", b"b", b"2"]);
    let texts: Vec<&[u8]> = args.iter().map(|arg| &arg[..]).collect();
    let script = REDIS_SCRIPT.as_bytes();
    let expected: [&[u8]; 12] =
        [b"EVAL", script, b"3", b"f", b"a", b"b", b"18446744073709551615", b"MSET", b"a", b"1", b"b", b"2"];
    assert_eq!(texts, expected);
}

#[test]
fn changed_object_is_read_again() {
    // F1
    for (status, answer) in [
        (200, PutAnswer::Accepted),
        (204, PutAnswer::Accepted),
        (404, PutAnswer::ReadAgain),
        (409, PutAnswer::ReadAgain),
        (412, PutAnswer::ReadAgain),
        (304, PutAnswer::Unknown),
        (403, PutAnswer::Unknown),
        (500, PutAnswer::Unknown),
        (503, PutAnswer::Unknown),
    ] {
        assert_eq!(put_answer(status), answer, "{status}");
    }
}

#[test]
fn dynamo_names_are_parameters() {
    // F1, F3
    let condition = DynamoCondition::new("size", Fence::new(u64::MAX));
    assert_eq!(condition.condition, "attribute_not_exists(#fence) OR #fence <= :fence");
    assert_eq!(condition.set, "#fence = :fence");
    assert_eq!(condition.name, ("#fence", "size".into()));
    assert_eq!(condition.value, (":fence", "18446744073709551615".into()));
}

//! The command line.

use core::num::NonZero;
use core::ops::Range;
use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;
use std::{fs, thread};

use lexopt::Arg::{Long, Short, Value};
use lock_proto::sim::scenario::Origin;
use lock_proto::sim::{Rule, Scenario, scenarios};

use super::search::Search;
use crate::cli::{Usage, text, time, usage};

const HELP: &str = "\
Looks for broken promises in simulated worlds, and draws them.

usage: explore --scenario NAME|all [--seeds FROM..TO] [--find RULE] [--jobs N] [--out DIR]
       explore --scenario NAME --seed N  [--shrink | --find RULE] [--from TIME] [--to TIME] [--out FILE.html]
       explore --scenario NAME --bytes HEX|@FILE  (the same from a byte string, as a fuzzer finds it)
       explore --list

The first form runs every seed and stops at the first that breaks a promise. That run is made as small as it gets while it still
fails; it is printed with the end of its log, and drawn as a page for the browser. The second form runs and draws one seed.

  --scenario NAME  what goes wrong; `all` takes every scenario for each seed
  --seeds A..B     from A, up to but without B [0..1000]
  --find RULE      look for a run in which this rule is broken though the scenario cannot promise it: a lock held twice, say
  --jobs N         so many threads [one a processor]
  --shrink         make the run smaller first, as long as it breaks the same rule
  --from, --to     draw this part of a long run in detail, like 1s500ms [the first 600 messages, or those around the finding]
  --out PATH       where the page goes [SCENARIO-SEED.html]

exit code: 0 nothing is broken, or --find has found   1 a promise is broken   2 --find has found nothing   64 usage
           74 the page cannot be written
";

/// So many seeds without `--seeds`.
const SEEDS: Range<u64> = 0..1_000;

/// What the command line asks for.
#[derive(Clone, Debug)]
pub(super) enum Parsed {
    /// Print this and end well.
    Print(String),
    /// Show the scenarios.
    List,
    /// Run many seeds; the page goes there.
    Search(Search, Option<PathBuf>),
    /// Run one and draw it.
    Draw(Draw),
}

/// One run.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    /// Of which scenario.
    pub(super) scenario: &'static Scenario,
    /// Drawn from what.
    pub(super) origin: Origin,
    /// Make it smaller while it breaks the same rule.
    pub(super) shrink: bool,
    /// This rule, even where it cannot be promised; else the first one that it breaks.
    pub(super) find: Option<Rule>,
    /// Which part of it is drawn in detail.
    pub(super) window: (Option<Duration>, Option<Duration>),
    /// Where the picture goes.
    pub(super) out: Option<PathBuf>,
}

/// Reads the command line (without the program's name).
pub(super) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Parsed, Usage> {
    let mut parser = lexopt::Parser::from_args(args);
    let mut given = Given::default();
    while let Some(arg) = parser.next()? {
        match arg {
            Long("scenario") => given.scenario = Some(text(&mut parser)?),
            Long("seeds") => given.seeds = Some(seeds(&text(&mut parser)?)?),
            Long("seed") => given.origin(Origin::Seed(number("--seed", &text(&mut parser)?)?))?,
            Long("bytes") => given.origin(Origin::Bytes(bytes(&text(&mut parser)?)?))?,
            Long("find") => given.find = Some(rule(&text(&mut parser)?)?),
            Long("jobs") => {
                let jobs = text(&mut parser)?.parse();
                given.jobs = Some(jobs.map_err(|_| Usage("--jobs: at least 1, and a whole number".into()))?);
            }
            Long("shrink") => given.shrink = true,
            Long("from") => given.window.0 = Some(time("--from", &text(&mut parser)?)?),
            Long("to") => given.window.1 = Some(time("--to", &text(&mut parser)?)?),
            Long("out") => given.out = Some(PathBuf::from(parser.value()?)),
            Long("list") => return Ok(Parsed::List),
            Long("help") | Short('h') => return Ok(Parsed::Print(HELP.to_owned())),
            Long("version") | Short('V') => {
                return Ok(Parsed::Print(format!("explore {}\n", env!("CARGO_PKG_VERSION"))));
            }
            Long(_) | Short(_) | Value(_) => return Err(arg.unexpected().into()),
        }
    }
    given.understood()
}

/// Everything that was on the line.
#[derive(Default)]
struct Given {
    scenario: Option<String>,
    seeds: Option<Range<u64>>,
    origin: Option<Origin>,
    find: Option<Rule>,
    jobs: Option<NonZero<usize>>,
    shrink: bool,
    window: (Option<Duration>, Option<Duration>),
    out: Option<PathBuf>,
}

impl Given {
    fn origin(&mut self, origin: Origin) -> Result<(), Usage> {
        match self.origin.replace(origin) {
            None => Ok(()),
            Some(_) => usage("--seed and --bytes: one run at a time; --seeds A..B runs many"),
        }
    }

    fn understood(self) -> Result<Parsed, Usage> {
        let Some(name) = &self.scenario else {
            return usage("--scenario is missing: --list shows what there is");
        };
        if let Some(origin) = self.origin.clone() {
            return self.draw(name, origin);
        }
        if self.shrink || self.window != (None, None) {
            return usage("--shrink, --from and --to are for one run: say which with --seed or --bytes");
        }
        let scenarios = if name == "all" { scenarios().iter().collect() } else { vec![named(name)?] };
        let jobs = self.jobs.unwrap_or_else(|| thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN));
        let search = Search { scenarios, seeds: self.seeds.unwrap_or(SEEDS), find: self.find, jobs };
        Ok(Parsed::Search(search, self.out))
    }

    fn draw(&self, name: &str, origin: Origin) -> Result<Parsed, Usage> {
        if self.seeds.is_some() || self.jobs.is_some() {
            return usage("--seeds and --jobs are for many runs, --seed and --bytes for one");
        }
        if let (Some(from), Some(to)) = self.window
            && from >= to
        {
            return usage("--from must be before --to");
        }
        let (scenario, find) = (named(name)?, self.find);
        let shrink = self.shrink || find.is_some();
        Ok(Parsed::Draw(Draw { scenario, origin, shrink, find, window: self.window, out: self.out.clone() }))
    }
}

fn named(name: &str) -> Result<&'static Scenario, Usage> {
    Scenario::named(name).ok_or_else(|| Usage(format!("--scenario: {name:?} is none: --list shows what there is")))
}

fn number(option: &str, text: &str) -> Result<u64, Usage> {
    text.parse().map_err(|_| Usage(format!("{option}: {text:?} is no whole number below 2^64")))
}

fn seeds(text: &str) -> Result<Range<u64>, Usage> {
    let Some((from, to)) = text.split_once("..") else {
        return usage(format!("--seeds: {text:?} is no range: write it like 0..1000"));
    };
    let range = number("--seeds", from)?..number("--seeds", to)?;
    if range.is_empty() { usage(format!("--seeds: {text:?} is empty")) } else { Ok(range) }
}

fn rule(text: &str) -> Result<Rule, Usage> {
    let same = |rule: &Rule| rule.to_string().eq_ignore_ascii_case(text);
    Rule::ALL.into_iter().find(same).ok_or_else(|| {
        let all: Vec<String> = Rule::ALL.iter().map(ToString::to_string).collect();
        Usage(format!("--find: {text:?} is no rule; there are {}", all.join(", ")))
    })
}

/// A byte string: in hexadecimal digits, or the content of a file.
fn bytes(text: &str) -> Result<Vec<u8>, Usage> {
    if let Some(path) = text.strip_prefix('@') {
        return fs::read(path).map_err(|error| Usage(format!("--bytes: {path}: {error}")));
    }
    let pair = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok();
    let digits = text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes = digits.then(|| text.as_bytes().chunks(2).map(pair).collect::<Option<Vec<u8>>>()).flatten();
    bytes.ok_or_else(|| Usage("--bytes: an even number of hexadecimal digits, or @FILE".into()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;

    fn read(line: &[&str]) -> Result<Parsed, Usage> {
        parse(line.iter().map(OsString::from))
    }

    #[test]
    fn many_runs() {
        let Ok(Parsed::Search(search, _)) = read(&["--scenario", "all", "--seeds", "5..7", "--jobs", "3"]) else {
            panic!()
        };
        assert_eq!((search.seeds, search.jobs.get(), search.scenarios.len()), (5..7, 3, scenarios().len()));
        let Ok(Parsed::Search(search, _)) = read(&["--scenario", "redis-wake", "--find", "mutualexclusion"]) else {
            panic!()
        };
        assert_eq!((search.seeds, search.find), (SEEDS, Some(Rule::MutualExclusion)));
        assert_eq!(search.scenarios[0].name, "redis-wake");
    }

    #[test]
    fn one_run() {
        let Ok(Parsed::Draw(draw)) = read(&["--scenario", "redis-wake", "--bytes", "00fF", "--to", "3s"]) else {
            panic!()
        };
        assert_eq!((draw.origin, draw.shrink), (Origin::Bytes(vec![0, 255]), false));
        assert_eq!(draw.window, (None, Some(Duration::from_secs(3))));
        let Ok(Parsed::Draw(draw)) = read(&["--scenario", "redis-wake", "--seed", "9", "--find", "StaleWrite"]) else {
            panic!()
        };
        assert_eq!((draw.origin, draw.shrink, draw.find), (Origin::Seed(9), true, Some(Rule::StaleWrite)));
    }

    #[test]
    fn a_bad_line_says_what_is_wrong() {
        for (line, part) in [
            (&[][..], "--list"),
            (&["--scenario", "redis-nothing"], "redis-nothing"),
            (&["--scenario", "all", "--seed", "1"], "\"all\""),
            (&["--scenario", "all", "--seeds", "7"], "0..1000"),
            (&["--scenario", "all", "--seeds", "7..7"], "empty"),
            (&["--scenario", "all", "--seeds", "a..7"], "\"a\""),
            (&["--scenario", "all", "--jobs", "0"], "at least 1"),
            (&["--scenario", "all", "--find", "Luck"], "MutualExclusion"),
            (&["--scenario", "all", "--shrink"], "--seed"),
            (&["--scenario", "redis-wake", "--seed", "-1"], "-1"),
            (&["--scenario", "redis-wake", "--seed", "1", "--bytes", "00"], "one run"),
            (&["--scenario", "redis-wake", "--seed", "1", "--jobs", "2"], "many runs"),
            (&["--scenario", "redis-wake", "--seed", "1", "--from", "2s", "--to", "1s"], "before"),
            (&["--scenario", "redis-wake", "--seed", "1", "--from", "2"], "no time"),
            (&["--scenario", "redis-wake", "--bytes", "0"], "hexadecimal"),
            (&["--scenario", "redis-wake", "--bytes", "+1"], "hexadecimal"),
            (&["--scenario", "redis-wake", "--bytes", "@/nowhere/at/all"], "nowhere"),
            (&["redis-wake"], "redis-wake"),
        ] {
            let Err(Usage(message)) = read(line) else { panic!("{line:?} was understood") };
            assert!(message.contains(part), "{line:?}: {message}");
        }
    }
}

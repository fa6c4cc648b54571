//! Command line of `explore`.

use core::iter;
use core::num::NonZero;
use core::ops::Range;
use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;
use std::{fs, thread};

use clap::Parser;
use lock_sim::scenario::{Flaw, Origin};
use lock_sim::{Plan, Rule, Scenario, scenarios};

use super::search::Search;
use crate::cli::args::{self, Line, count, time};
use crate::cli::{Usage, usage};

/// Searches simulated worlds for broken rules, and draws them.
#[derive(Debug, Parser)]
#[command(name = "explore", version, override_usage = USAGE, after_help = AFTER_HELP)]
struct Options {
    /// Scenario to run; `all` runs every scenario for each seed, and those that rarely show what
    /// they alone can show with several.
    #[arg(long, value_name = "NAME")]
    scenario: Option<String>,

    /// Run the seeds from A up to but excluding B [default: 0..1000]
    #[arg(long, value_name = "A..B", value_parser = read_seeds)]
    seeds: Option<Range<u64>>,

    /// Run and draw a single seed.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Vec<u64>,

    /// Run and draw the input of a fuzzer: hexadecimal digits, or @FILE.
    #[arg(long, value_name = "HEX", value_parser = read_bytes)]
    bytes: Vec<Bytes>,

    /// Run the naive reference model beside the clients, on one Redis node within the bounds.
    #[arg(long)]
    model: bool,

    /// Plant a flaw in every client, such as `redis-deletes-anything`.
    #[arg(long, value_name = "NAME", value_parser = read_flaw)]
    flaw: Option<Flaw>,

    /// Search for a run that breaks this rule although the scenario does not promise it.
    #[arg(long, value_name = "RULE", value_parser = read_rule)]
    find: Option<Rule>,

    /// Number of threads [default: one per processor]
    #[arg(long, value_name = "N", value_parser = count(MAX_JOBS))]
    jobs: Option<NonZero<usize>>,

    /// Shrink the run first, as long as it breaks the same rule.
    #[arg(long)]
    shrink: bool,

    /// Draw the run in detail from this time [default: the first 600 messages, or those around the
    /// finding]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    from: Option<Duration>,

    /// Draw the run in detail up to this time, like 1s500ms.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = time)]
    to: Option<Duration>,

    /// Where to write the page [default: SCENARIO-SEED.html]
    #[arg(long, value_name = "PATH", allow_hyphen_values = true)]
    out: Option<PathBuf>,

    /// List the scenarios.
    #[arg(long)]
    list: bool,
}

const USAGE: &str = "\
explore --scenario NAME|all [--seeds A..B] [--find RULE] [--jobs N] [--out DIR]
       explore --scenario NAME --seed N [--shrink | --find RULE] [--from TIME] [--to TIME] [--out FILE.html]
       explore --scenario NAME --bytes HEX|@FILE ...
       explore ... [--model] [--flaw NAME]
       explore --list";

const AFTER_HELP: &str = "\
The first form runs every seed and stops at the first one that breaks a rule. It shrinks that
run while it still fails, prints it with the end of its log, and draws it as an HTML page. The
second form runs and draws one seed.

Exit code:
  0   nothing is broken, or --find found a run
  1   a rule is broken
  2   --find found nothing
  64  usage error
  74  the page could not be written";

/// The value of `--bytes`.
#[derive(Clone, Debug)]
struct Bytes(Vec<u8>);

const SEEDS: Range<u64> = 0..1_000;
/// More threads may fail to start.
const MAX_JOBS: u64 = 1_024;
/// How many runs are looked at for one that the naive model supports.
const SAMPLE: usize = 100;

/// What the command line requests.
#[derive(Clone, Debug)]
pub(super) enum Parsed {
    Print(String),
    /// List the scenarios.
    List,
    /// Run many seeds, and write the page to this path.
    Search(Search, Option<PathBuf>),
    /// Run one seed or byte string and draw it.
    Draw(Box<Draw>),
}

/// What to change in a drawn plan.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Changes {
    pub(super) model: bool,
    pub(super) flaw: Option<Flaw>,
}

impl Changes {
    /// Makes the changes that have an effect on this plan.
    pub(super) fn apply(self, mut plan: Plan) -> Plan {
        plan.model = self.model && plan.supports_model();
        plan.flaw = self.flaw.filter(|flaw| flaw.backend() == plan.scenario.backend);
        plan
    }

    /// Fails if a change has an effect on none of these plans of a scenario.
    fn check(self, scenario: &Scenario, mut plans: impl Iterator<Item = Plan>) -> Result<(), Usage> {
        if let Some(flaw) = self.flaw
            && flaw.backend() != scenario.backend
        {
            return usage(format!("--flaw {flaw} is for another store than that of {}", scenario.name));
        }
        if self.model && !plans.any(|plan| plan.supports_model()) {
            return usage("--model needs a run of one Redis node within the bounds");
        }
        Ok(())
    }
}

/// A single run to draw.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    pub(super) plan: Plan,
    /// Shrink the run while it breaks the same rule.
    pub(super) shrink: bool,
    /// The rule to look for, even if the scenario does not promise it; otherwise the first broken
    /// rule.
    pub(super) find: Option<Rule>,
    /// The part of the run to draw in detail.
    pub(super) window: (Option<Duration>, Option<Duration>),
    pub(super) out: Option<PathBuf>,
}

/// Parses the command line without the program's name.
pub(super) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Parsed, Usage> {
    match args::parse(args)? {
        Line::Run(Options { list: true, .. }) => Ok(Parsed::List),
        Line::Run(options) => options.validate(),
        Line::Print(text) => Ok(Parsed::Print(text)),
    }
}

impl Options {
    fn validate(mut self) -> Result<Parsed, Usage> {
        let changes = Changes { model: self.model, flaw: self.flaw };
        let Some(name) = self.scenario.take() else {
            return usage("--scenario is missing: --list shows what there is");
        };
        let seeds = self.seed.drain(..).map(Origin::Seed);
        let mut origins = seeds.chain(self.bytes.drain(..).map(|Bytes(bytes)| Origin::Bytes(bytes)));
        match (origins.next(), origins.next()) {
            (None, _) => {}
            (Some(_), Some(_)) => return usage("--seed and --bytes: one run at a time; --seeds A..B runs many"),
            (Some(origin), None) => {
                drop(origins);
                return self.draw(&name, origin, changes);
            }
        }
        drop(origins);
        if self.shrink || (self.from, self.to) != (None, None) {
            return usage("--shrink, --from and --to are for one run: say which with --seed or --bytes");
        }
        let seeds = self.seeds.unwrap_or(SEEDS);
        let scenarios = if name == "all" {
            scenarios().iter().collect()
        } else {
            let scenario = named(&name)?;
            // A scenario whose runs may have one node soon has one.
            let plans = seeds.clone().take(SAMPLE).map(|seed| Plan::from_seed(scenario, seed));
            changes.check(scenario, plans)?;
            vec![scenario]
        };
        let jobs = self.jobs.unwrap_or_else(|| thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN));
        let search = Search { scenarios, seeds, changes, find: self.find, jobs };
        Ok(Parsed::Search(search, self.out))
    }

    fn draw(self, name: &str, origin: Origin, changes: Changes) -> Result<Parsed, Usage> {
        if self.seeds.is_some() || self.jobs.is_some() {
            return usage("--seeds and --jobs are for many runs, --seed and --bytes for one");
        }
        if let (Some(from), Some(to)) = (self.from, self.to)
            && from >= to
        {
            return usage("--from must be before --to");
        }
        let (scenario, find) = (named(name)?, self.find);
        let plan = match origin {
            Origin::Seed(seed) => Plan::from_seed(scenario, seed),
            Origin::Bytes(bytes) => Plan::from_bytes(scenario, &bytes),
        };
        changes.check(scenario, iter::once(plan.clone()))?;
        let (shrink, window) = (self.shrink || find.is_some(), (self.from, self.to));
        let plan = changes.apply(plan);
        Ok(Parsed::Draw(Box::new(Draw { plan, shrink, find, window, out: self.out })))
    }
}

fn named(name: &str) -> Result<&'static Scenario, Usage> {
    Scenario::named(name).ok_or_else(|| Usage(format!("--scenario: unknown scenario {name:?}; see --list")))
}

fn read_seeds(text: &str) -> Result<Range<u64>, String> {
    let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is not a whole number below 2^64"));
    let Some((from, to)) = text.split_once("..") else {
        return Err("expected a range such as 0..1000".to_owned());
    };
    let range = number(from)?..number(to)?;
    if range.is_empty() { Err("the range is empty".to_owned()) } else { Ok(range) }
}

fn read_rule(text: &str) -> Result<Rule, String> {
    let same = |rule: &Rule| rule.to_string().eq_ignore_ascii_case(text);
    Rule::ALL.into_iter().find(same).ok_or_else(|| {
        let all: Vec<String> = Rule::ALL.iter().map(ToString::to_string).collect();
        format!("expected one of {}", all.join(", "))
    })
}

fn read_flaw(text: &str) -> Result<Flaw, String> {
    Flaw::named(text).ok_or_else(|| {
        let all: Vec<String> = Flaw::all().map(|flaw| flaw.to_string()).collect();
        format!("expected one of {}", all.join(", "))
    })
}

fn read_bytes(text: &str) -> Result<Bytes, String> {
    if let Some(path) = text.strip_prefix('@') {
        return fs::read(path).map(Bytes).map_err(|error| error.to_string());
    }
    let pair = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok();
    let digits = text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes = digits.then(|| text.as_bytes().chunks(2).map(pair).collect::<Option<Vec<u8>>>()).flatten();
    bytes.map(Bytes).ok_or_else(|| "expected an even number of hexadecimal digits, or @FILE".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;

    fn read(line: &[&str]) -> Result<Parsed, Usage> {
        parse(line.iter().map(OsString::from))
    }

    #[test]
    fn search_options_are_parsed() {
        let Ok(Parsed::Search(search, _)) = read(&["--scenario", "all", "--seeds", "5..7", "--jobs", "3"]) else {
            panic!()
        };
        assert_eq!((search.seeds, search.jobs.get(), search.scenarios.len()), (5..7, 3, scenarios().len()));
        let Ok(Parsed::Search(search, _)) = read(&["--scenario", "redis-wake", "--find", "mutualexclusion"]) else {
            panic!()
        };
        assert_eq!((search.seeds, search.find), (SEEDS, Some(Rule::MutualExclusion)));
        assert_eq!(search.scenarios[0].name, "redis-wake");
        assert!(!search.changes.model && search.changes.flaw.is_none());
        let line = ["--scenario", "redis-wake", "--model", "--flaw", "redis-hides-loss"];
        let Ok(Parsed::Search(search, _)) = read(&line) else { panic!() };
        assert!(search.changes.model && search.changes.flaw.is_some());
    }

    #[test]
    fn single_run_options_are_parsed() {
        let Ok(Parsed::Draw(draw)) = read(&["--scenario", "redis-wake", "--bytes", "00fF", "--to", "3s"]) else {
            panic!()
        };
        assert_eq!((draw.plan.origin, draw.shrink), (Origin::Bytes(vec![0, 255]), false));
        assert_eq!(draw.window, (None, Some(Duration::from_secs(3))));
        let Ok(Parsed::Draw(draw)) = read(&["--scenario", "redis-wake", "--seed", "9", "--find", "StaleWrite"]) else {
            panic!()
        };
        assert_eq!((draw.plan.origin, draw.shrink, draw.find), (Origin::Seed(9), true, Some(Rule::StaleWrite)));
    }

    #[test]
    fn changes_apply_where_they_have_effect() {
        let line = ["--scenario", "all", "--model", "--flaw", "redis-hides-loss"];
        let Ok(Parsed::Search(search, _)) = read(&line) else { panic!() };
        let changed = |name| search.changes.apply(Plan::from_seed(Scenario::named(name).unwrap(), 1));
        let one = |name| (changed(name).model, changed(name).flaw.is_some());
        let names = ["redis-calm", "redis-quorum", "redis-beyond", "etcd-calm", "zookeeper-calm"];
        assert_eq!(names.map(one), [(true, true), (false, true), (false, true), (false, false), (false, false)]);
    }

    #[test]
    fn usage_error_names_cause() {
        for (line, part) in [
            (&[][..], "--list"),
            (&["--scenario", "redis-nothing"], "redis-nothing"),
            (&["--scenario", "all", "--seed", "1"], "\"all\""),
            (&["--scenario", "all", "--seeds", "7"], "0..1000"),
            (&["--scenario", "all", "--seeds", "7..7"], "empty"),
            (&["--scenario", "all", "--seeds", "a..7"], "\"a\""),
            (&["--scenario", "all", "--jobs", "0"], "1..=1024"),
            (&["--scenario", "all", "--jobs", "1025"], "1..=1024"),
            (&["--scenario", "all", "--find", "Luck"], "MutualExclusion"),
            (&["--scenario", "all", "--flaw", "none"], "redis-deletes-anything"),
            (&["--scenario", "etcd-calm", "--flaw", "redis-deletes-anything"], "another store"),
            (&["--scenario", "redis-calm", "--seed", "1", "--flaw", "etcd-sends-twice"], "another store"),
            (&["--scenario", "zookeeper-calm", "--flaw", "redis-deletes-anything"], "another store"),
            (&["--scenario", "etcd-calm", "--model"], "one Redis node"),
            (&["--scenario", "redis-quorum", "--model"], "one Redis node"),
            (&["--scenario", "redis-beyond", "--seed", "1", "--model"], "within the bounds"),
            (&["--scenario", "all", "--shrink"], "--seed"),
            (&["--scenario", "redis-wake", "--seed", "-1"], "-1"),
            (&["--scenario", "redis-wake", "--seed", "1", "--bytes", "00"], "one run"),
            (&["--scenario", "redis-wake", "--seed", "1", "--jobs", "2"], "many runs"),
            (&["--scenario", "redis-wake", "--seed", "1", "--from", "2s", "--to", "1s"], "before"),
            (&["--scenario", "redis-wake", "--seed", "1", "--from", "2"], "such as 500ms"),
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

//! `explore`: runs simulated scenarios over many seeds, shrinks failing runs, and draws them.

mod args;
mod panic_hook;
mod progress;
mod search;

use core::fmt;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use lock_sim::picture::Picture;
use lock_sim::scenario::{Bounds, Origin};
use lock_sim::trace::Trace;
use lock_sim::{Outcome, Plan, scenarios};

use args::{Draw, Parsed, parse};
use panic_hook::without_panic_messages;
use progress::{Progress, rate};
use search::{Found, Search, find_violation};

use crate::cli::output::print_text;
use crate::cli::{exit, print};

/// Exit code: a rule is broken.
const BROKEN: u8 = 1;
/// Exit code: `--find` found nothing.
const NOT_FOUND: u8 = 2;
/// Number of printed log lines; the page shows more.
const LOG_LINES: usize = 60;

/// Runs the program and returns its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> u8 {
    match parse(args) {
        Ok(Parsed::Print(text)) => print_text("explore", &text),
        Ok(Parsed::List) => {
            list();
            0
        }
        Ok(Parsed::Search(search, out)) => search_and_draw(&search, out.as_deref()),
        Ok(Parsed::Draw(draw)) => draw_one(&draw),
        Err(error) => {
            print_error(&error);
            exit::USAGE
        }
    }
}

fn print_error(what: &dyn fmt::Display) {
    let _ = writeln!(io::stderr(), "explore: {what}");
}

fn list() {
    for scenario in scenarios() {
        let bounds = match scenario.bounds {
            Bounds::Within => "within the bounds: everything is promised".to_owned(),
            Bounds::Beyond(what) => {
                let excused: Vec<String> = scenario.excused.iter().map(ToString::to_string).collect();
                format!("beyond the bounds ({what}): {} cannot be promised", excused.join(", "))
            }
        };
        let faults: Vec<String> = scenario.faults().map(|(name, weight)| format!("{name} {weight}")).collect();
        let (name, about, faults) = (scenario.name, scenario.about, faults.join(", "));
        print(&format_args!("{name:<20} {about}\n{:<20}   {bounds}\n{:<20}   faults: {faults}", "", ""));
    }
}

fn search_and_draw(search: &Search, out: Option<&Path>) -> u8 {
    let mut progress = Progress::new(search.runs());
    let (found, tally) = search.run(|tally| progress.show(tally));
    progress.clear();
    let elapsed = progress.elapsed();
    let summary = format!(
        "{} runs in {:.1} s ({}/min on {} threads): {} grants, {} calls of machines, {:.0} s of simulated time, {} findings excused",
        tally.runs,
        elapsed.as_secs_f64(),
        rate(tally.runs, elapsed),
        search.jobs,
        tally.grants,
        tally.steps,
        tally.time.as_secs_f64(),
        tally.excused,
    );
    let Some(found) = found else {
        let nothing = search.find.map_or_else(|| "nothing is broken".to_owned(), |rule| format!("no {rule} found"));
        print(&format_args!("{nothing}: {summary}"));
        return if search.find.is_some() { NOT_FOUND } else { 0 };
    };
    let verdict = if found.promised { "BROKEN" } else { "found, though not promised:" };
    print(&format_args!("{summary}\n{verdict} {} ({})", found.rule, found.rule.about()));
    print(&replay(&found.plan, None));
    progress.spin("shrinking the run");
    let shrunk = found.shrink();
    progress.clear();
    print(&format_args!("made smaller: {} steps of {}\n", shrunk.len(), found.plan.len()));
    let replay_command = replay(&found.plan, Some(&found));
    let (outcome, trace) = without_panic_messages(|| shrunk.run_traced());
    print(&Summary { plan: &shrunk, outcome: &outcome });
    let page = Picture::of_plan(&shrunk, &outcome, &trace).replay(&replay_command).page();
    let path = out.unwrap_or_else(|| Path::new("")).join(file_name(&shrunk));
    let written = write(&path, &page);
    print(&format_args!("again, as small as this: {replay_command}"));
    match written {
        Err(code) => code,
        Ok(()) if found.promised => BROKEN,
        Ok(()) => 0,
    }
}

fn draw_one(draw: &Draw) -> u8 {
    let mut plan = draw.plan.clone();
    let (mut outcome, mut trace): (Outcome, Trace) = without_panic_messages(|| plan.run_traced());
    let found = find_violation(plan.clone(), &outcome, draw.find);
    let mut replay_command = replay(&plan, None);
    if let Some(found) = found.as_ref().filter(|_| draw.shrink) {
        replay_command = replay(&plan, Some(found));
        plan = found.shrink();
        (outcome, trace) = without_panic_messages(|| plan.run_traced());
    }
    print(&Summary { plan: &plan, outcome: &outcome });
    let (from, to) = draw.window;
    let page = Picture::of_plan(&plan, &outcome, &trace).replay(&replay_command).window(from, to).page();
    let path = match &draw.out {
        Some(path) if path.is_dir() => path.join(file_name(&plan)),
        Some(path) => path.clone(),
        None => PathBuf::from(file_name(&plan)),
    };
    match (write(&path, &page), draw.find) {
        (Err(code), _) => code,
        (Ok(()), _) if !outcome.violations.is_empty() => BROKEN,
        (Ok(()), Some(rule)) if found.is_none() => {
            print_error(&format_args!("no {rule} found"));
            NOT_FOUND
        }
        (Ok(()), _) => 0,
    }
}

/// Returns the command that repeats a plan: as it was drawn, or shrunk as by `found`.
fn replay(plan: &Plan, found: Option<&Found>) -> String {
    let from = match &plan.origin {
        Origin::Seed(seed) => format!("--seed {seed}"),
        Origin::Bytes(bytes) => {
            format!("--bytes={}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        }
    };
    let shrunk = match found {
        None => String::new(),
        Some(Found { promised: true, .. }) => " --shrink".to_owned(),
        Some(Found { promised: false, rule, .. }) => format!(" --find {rule}"),
    };
    let model = if plan.model { " --model" } else { "" };
    let flaw = plan.flaw.map(|flaw| format!(" --flaw {flaw}")).unwrap_or_default();
    format!("explore --scenario {}{model}{flaw} {from}{shrunk}", plan.scenario.name)
}

fn file_name(plan: &Plan) -> String {
    let name = plan.scenario.name;
    match &plan.origin {
        Origin::Seed(seed) => format!("{name}-{seed}.html"),
        Origin::Bytes(_) => format!("{name}-bytes.html"),
    }
}

/// Writes a page. Creates its directory if necessary.
fn write(path: &Path, page: &str) -> Result<(), u8> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(path, page)) {
        Ok(()) => {
            print(&format_args!("timeline: {}", path.display()));
            Ok(())
        }
        Err(error) => {
            print_error(&format_args!("{}: {error}", path.display()));
            Err(exit::NOT_WRITTEN)
        }
    }
}

/// A run as text: the plan, the findings, and the end of the log if there are any.
struct Summary<'a> {
    plan: &'a Plan,
    outcome: &'a Outcome,
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { violations, excused, grants, steps, time, .. } = self.outcome;
        writeln!(f, "{}", self.plan)?;
        if !(violations.is_empty() && excused.is_empty()) {
            let lines: Vec<&str> = self.outcome.log.lines().collect();
            writeln!(f, "the end of its log:")?;
            for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
                writeln!(f, "  {line}")?;
            }
        }
        for violation in violations {
            writeln!(f, "BROKEN {violation}")?;
        }
        for violation in excused {
            writeln!(f, "not promised: {violation}")?;
        }
        write!(f, "{grants} grants, {steps} calls of machines, {:.1} s of simulated time", time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use core::num::NonZero;

    use lock_sim::{Rule, Scenario};

    use super::args::Changes;
    use super::*;

    /// A scenario that promises too much, as if a machine were faulty.
    fn overpromising() -> &'static Scenario {
        let mut scenario = *Scenario::named("redis-promotion").unwrap();
        scenario.excused = &[];
        Box::leak(Box::new(scenario))
    }

    fn search(scenario: &'static Scenario, jobs: usize) -> Search {
        Search {
            scenarios: vec![scenario],
            seeds: 0..500,
            changes: Changes::default(),
            find: None,
            jobs: NonZero::new(jobs).unwrap(),
        }
    }

    #[test]
    fn violation_is_found_shrunk_and_drawn() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(search_and_draw(&search(overpromising(), 2), Some(folder.path())), BROKEN);
        let page = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap();
        let text = fs::read_to_string(page.path()).unwrap();
        assert!(text.contains("Broken: one holder at a time") && text.contains("class=\"violation\""));
        assert!(text.contains(" --shrink</code>"));
    }

    #[test]
    fn first_failing_seed_is_found_with_any_number_of_jobs() {
        let overpromising = overpromising();
        let (one, tally) = search(overpromising, 1).run(|_| {});
        let one = one.unwrap();
        assert!(one.promised && one.rule == Rule::MutualExclusion && tally.grants > 0);
        let Origin::Seed(seed) = one.plan.origin else { panic!("drawn from a seed") };
        assert_eq!(tally.runs, seed + 1, "it stops there");
        let (many, tally) = search(overpromising, 5).run(|_| {});
        assert_eq!(many.unwrap().plan.origin, one.plan.origin);
        assert!(tally.runs > seed, "all before it were run");
    }

    #[test]
    fn replay_command_of_any_input_is_understood() {
        let scenario = Scenario::named("redis-calm").unwrap();
        for plan in
            [Plan::from_bytes(scenario, &[]), Plan::from_bytes(scenario, &[0, 255]), Plan::from_seed(scenario, 7)]
        {
            // `make replay` appends where to draw it.
            let line = replay(&plan, None) + " --out page.html";
            let Ok(Parsed::Draw(draw)) = parse(line.split_whitespace().skip(1).map(OsString::from)) else {
                panic!("{line}")
            };
            assert_eq!(draw.plan.origin, plan.origin, "{line}");
        }
    }

    #[test]
    fn shrunk_run_violates_same_rule() {
        let (found, _) = search(overpromising(), 2).run(|_| {});
        let found = found.unwrap();
        let shrunk = found.shrink();
        assert!(shrunk.len() <= found.plan.len());
        assert!(shrunk.run().violations.iter().any(|violation| violation.rule == found.rule));
    }

    #[test]
    fn violation_in_single_run_sets_exit_code() {
        let folder = tempfile::tempdir().unwrap();
        let (found, _) = search(overpromising(), 2).run(|_| {});
        let plan = found.unwrap().plan;
        let out = folder.path().join("new").join("page.html");
        let mut draw = Draw { plan, shrink: false, find: None, window: (None, None), out: Some(out.clone()) };
        assert_eq!(draw_one(&draw), BROKEN);
        let whole = fs::read_to_string(&out).unwrap();
        draw.shrink = true;
        assert_eq!(draw_one(&draw), BROKEN);
        let shrunk = fs::read_to_string(&out).unwrap();
        assert!(whole != shrunk && shrunk.contains("then shrunk"));
    }
}

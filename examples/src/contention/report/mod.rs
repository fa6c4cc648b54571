//! `contention report`: compares polling and watching. Measures every available method to lock in
//! all scenarios, on servers that it starts, and draws one page.

mod axis;
mod charts;
mod findings;
mod machine;
mod page;
mod plan;
mod progress;
mod text;

use core::num::NonZeroUsize;
use core::time::Duration;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, io};

use plan::{Cell, Method, Plan, Servers};

use super::contender::Peers;
use super::outcome::Outcome;
use super::{Failed, process};
use crate::cli::{exit, print};

#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) span: Duration,
    /// The smallest number of clients; there are also runs with 10 and 100 times as many.
    pub(super) clients: NonZeroUsize,
    pub(super) out: PathBuf,
}

struct Report {
    plan: Plan,
    cells: Vec<Cell>,
    /// Names and values of the environment.
    facts: Vec<(&'static str, String)>,
}

impl Report {
    /// Returns the result of a method, or why it failed; `None` if it was not measured.
    fn result(&self, method: usize, scenario: usize) -> Option<Result<&Outcome, &str>> {
        let cell = self.cells.iter().find(|cell| (cell.method, cell.scenario) == (method, scenario))?;
        Some(cell.outcome.as_ref().map_err(|failed| &*failed.why))
    }

    fn cell(&self, method: usize, scenario: usize) -> Option<&Outcome> {
        self.result(method, scenario)?.ok()
    }

    /// Returns the methods of a scenario with their results, in the order of the plan.
    fn rows(&self, scenario: usize) -> impl Iterator<Item = (&Method, Result<&Outcome, &str>)> {
        let of = self.cells.iter().filter(move |cell| cell.scenario == scenario);
        of.filter_map(|cell| {
            Some((self.plan.methods.get(cell.method)?, cell.outcome.as_ref().map_err(|failed| &*failed.why)))
        })
    }

    fn named(&self, key: &str, scenario: usize) -> Option<&Outcome> {
        self.cell(self.plan.methods.iter().position(|method| method.key == key)?, scenario)
    }
}

/// Uses ZooKeeper for a while. The JVM compiles the server's code during use, and the first method
/// would pay for it.
fn warm_up(plan: &Plan, span: Duration, servers: &Servers) {
    let method = plan.methods.iter().find(|method| method.key == "zookeeper");
    if let (Some(method), Some(scenario)) = (method, plan.scenarios.first()) {
        // An error occurs again when the method is measured.
        let _not_counted = super::ours::run(&method.job(scenario, span * 3, servers));
    }
}

/// Measures everything, and writes `report.html` and `report.md`.
pub(super) fn run(settings: &Wanted, args: &[OsString], peers: &dyn Peers) -> Result<(), Failed> {
    let at = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| Failed::usage(format_args!("--out: {path}: {error}"))
    };
    let not_written = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| Failed { code: exit::NOT_WRITTEN, why: format!("{path}: {error}") }
    };
    fs::create_dir_all(&settings.out).map_err(at(&settings.out))?;
    let servers = Servers::programs()?;
    process::raise_limits();
    let mut facts = machine::facts(args, &servers);
    let servers = Servers::start();
    facts.push(("ZooKeeper", servers.zookeeper_version()));
    let plan = Plan::new(settings.clients, peers);
    let of_scenario = |scenario| plan.methods.iter().filter(move |method| method.fits(scenario)).count();
    let mut progress = progress::Progress::new(plan.scenarios.iter().map(of_scenario).sum());
    warm_up(&plan, settings.span, &servers);
    let mut cells = Vec::new();
    for (s, scenario) in plan.scenarios.iter().enumerate() {
        for (w, method) in plan.methods.iter().enumerate().filter(|(_, method)| method.fits(scenario)) {
            progress.begins(&format!("{}, {}", method.title, scenario.title));
            let job = method.job(scenario, settings.span, &servers);
            let outcome = match &method.peer {
                Some(peer) => peers.measure(peer, &job),
                None => super::ours::run(&job),
            };
            cells.push(Cell { method: w, scenario: s, outcome });
        }
    }
    progress.ends();
    let report = Report { plan, cells, facts };
    for (name, text) in [("report.html", page::html(&report)), ("report.md", text::markdown(&report))] {
        let path = settings.out.join(name);
        fs::write(&path, text).map_err(not_written(&path))?;
        print(&path.display());
    }
    match report.cells.iter().find_map(|cell| cell.outcome.as_ref().err()) {
        Some(failed) => Err(Failed { why: format!("the report is incomplete: {failed}"), ..*failed }),
        None => Ok(()),
    }
}

//! Plays one input of a fuzz target on stable Rust: `replay TARGET FILE`.
//!
//! Runs of worlds are printed with the end of their log, and with the command that draws them.
//! `LOCK_FLAW` plants a flaw in the clients of such a run, `LOCK_SHRINK=1` makes a failing one
//! smaller first.

use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use lock_fuzz::{TARGETS, plan, plays_worlds};
use lock_sim::scenario::{Flaw, Origin};
use lock_sim::{Keep, Plan};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match run(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("replay: {error}");
            ExitCode::from(64)
        }
    }
}

fn run(args: &[String]) -> Result<ExitCode, String> {
    let (target, file) = match args {
        [file] => (folder(file)?, file.as_str()),
        [target, file] => (target.as_str(), file.as_str()),
        _ => return Err(format!("usage: replay [TARGET] FILE; targets: {}", names())),
    };
    let Some((_, play)) = TARGETS.into_iter().find(|(name, _)| *name == target) else {
        return Err(format!("no target is called {target:?}; there are {}", names()));
    };
    let data = fs::read(file).map_err(|error| format!("{file}: {error}"))?;
    println!("{target}: {} bytes of {file}", data.len());
    let Some(mut plan) = plan(target, &data) else {
        play(&data);
        println!("{}", if plays_worlds(target) { "makes no run" } else { "nothing is broken" });
        return Ok(ExitCode::SUCCESS);
    };
    if let Ok(name) = env::var("LOCK_FLAW") {
        let fitting = || Flaw::all().filter(|flaw| flaw.backend() == plan.scenario.backend);
        let flaw = fitting().find(|flaw| flaw.to_string() == name);
        plan.flaw = Some(flaw.ok_or_else(|| {
            let all: Vec<String> = fitting().map(|flaw| flaw.to_string()).collect();
            format!("LOCK_FLAW={name}: none of the flaws for this store: {}", all.join(", "))
        })?);
    }
    let small = if env::var_os("LOCK_SHRINK").is_some() { shrink(&plan) } else { plan.clone() };
    let outcome = small.run_keeping(Keep::Lines(60));
    println!("{small}\nthe end of its log:\n{}", outcome.log);
    if outcome.violations.is_empty() {
        println!("nothing is broken");
    }
    for found in &outcome.violations {
        println!("BROKEN {found}");
    }
    println!("draw it: {}", explore(&plan));
    Ok(if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the smallest run that breaks the same rule.
fn shrink(plan: &Plan) -> Plan {
    let breaks = |plan: &Plan| plan.run_keeping(Keep::Nothing).violations.first().map(|found| found.rule);
    match breaks(plan) {
        Some(rule) => plan.shrink(|plan| breaks(plan) == Some(rule)),
        None => plan.clone(),
    }
}

/// Returns the command that draws a run.
fn explore(plan: &Plan) -> String {
    let hex = match &plan.origin {
        Origin::Bytes(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        Origin::Seed(_) => String::new(),
    };
    let model = if plan.model { " --model" } else { "" };
    let flaw = plan.flaw.map(|flaw| format!(" --flaw {flaw}")).unwrap_or_default();
    let shrink = if env::var_os("LOCK_SHRINK").is_some() { " --shrink" } else { "" };
    format!("cargo run --bin explore -- --scenario {}{model}{flaw}{shrink} --bytes={hex}", plan.scenario.name)
}

/// Returns the target in whose folder of `corpus` or `artifacts` the file is.
fn folder(file: &str) -> Result<&str, String> {
    let folder = Path::new(file).parent().and_then(Path::file_name).and_then(|name| name.to_str());
    folder.ok_or_else(|| format!("{file} is in no target's folder: name the target first"))
}

fn names() -> String {
    TARGETS.map(|(name, _)| name).join(", ")
}

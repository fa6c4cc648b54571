//! Runs this program again under callgrind, and reads the counts.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

/// Counts the instructions of this program, called with `run` and `work`, in the function that
/// matches `section` and its callees. System libraries are not counted.
///
/// # Errors
///
/// A message for the user if valgrind is missing or failed.
pub fn instructions(work: &str, section: &str) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let out = program.with_file_name(format!("callgrind.{work}.out"));
    // A stale file would be mistaken for this run's counts.
    let _ = std::fs::remove_file(&out);
    let ran = Command::new("valgrind")
        .args(["--quiet", "--tool=callgrind", "--dump-instr=no", "--compress-pos=no", "--compress-strings=no"])
        .arg(format!("--toggle-collect={section}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(&program)
        .args(["run", work])
        // Gives the process the same memory layout everywhere.
        .env_clear()
        .output()
        .map_err(|error| format!("valgrind cannot be run ({error}): install the package valgrind"))?;
    if !ran.status.success() {
        return Err(format!("valgrind: {}\n{}", ran.status, String::from_utf8_lossy(&ran.stderr)));
    }
    let text = std::fs::read_to_string(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let costs = costs_of_objects(&text);
    let own = costs.iter().filter(|(object, _)| Path::new(object) == program).map(|(_, cost)| cost).sum();
    if own == 0 { Err(format!("nothing was counted in {}: {costs:?}", program.display())) } else { Ok(own) }
}

/// Sums the costs by object file, in the format of callgrind
/// (<https://valgrind.org/docs/manual/cl-format.html>). `ob=` names the object of the cost lines
/// that follow. The line after `calls=` has the inclusive cost of the callee, which is listed
/// elsewhere too.
fn costs_of_objects(text: &str) -> HashMap<&str, u64> {
    let mut costs = HashMap::new();
    let mut object = "";
    let mut called = false;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = name;
        } else if line.starts_with("calls=") {
            called = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok());
            if !core::mem::take(&mut called) {
                *costs.entry(object).or_default() += cost.unwrap_or_default();
            }
        }
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callee_cost_counts_once_for_its_own_object() {
        let text = "events: Ir\n\nob=/program\nfl=a.rs\nfn=outer\n10 7\ncob=/lib/libc.so\ncfn=malloc\ncalls=2 0\n11 100\n12 5\n\n\
                    ob=/lib/libc.so\nfn=malloc\n0 100\nob=/program\nfn=inner\n3 1\n\ntotals: 113\n";
        let costs = costs_of_objects(text);
        assert_eq!((costs["/program"], costs["/lib/libc.so"]), (13, 100));
    }
}

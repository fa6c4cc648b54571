//! Where the programs of a server are, and how the short ones run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Returns the program `name` in the folder that the environment variable `variable` names, or
/// the newest in these folders, or that of the path.
pub(crate) fn find(variable: &str, folders: &[PathBuf], name: &str) -> PathBuf {
    if let Some(folder) = env::var_os(variable) {
        return Path::new(&folder).join(name);
    }
    folders.iter().map(|folder| folder.join(name)).rfind(|path| path.exists()).unwrap_or_else(|| name.into())
}

/// The folders `PARENT/VERSION/bin`, the newest version last.
pub(crate) fn versions(parent: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut folders: Vec<_> = entries.map(|entry| entry.path()).collect();
    folders.sort_by_key(|path| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()));
    folders.iter().map(|path| path.join("bin")).collect()
}

/// Runs a program to its end, and returns what it printed.
///
/// # Errors
///
/// What it printed to stderr, if it failed.
///
/// # Panics
///
/// If it is not installed.
pub(crate) fn run(command: &mut Command, package: &str) -> Result<String, String> {
    let output = command.output().unwrap_or_else(|e| {
        let program = command.get_program().display();
        panic!("{program} does not run: {e}. Run `make stores`, or install the package {package}")
    });
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

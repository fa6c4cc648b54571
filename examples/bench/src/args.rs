//! Command lines of the benchmarks.

use std::fmt::Display;
use std::process::exit;
use std::str::FromStr;
use std::time::Duration;

/// The longest span that is measured.
const MAX_SECONDS: f64 = 86_400.0;

/// The arguments of a benchmark, in their order. Wrong ones end the program with an error that
/// names them.
#[derive(Debug)]
pub struct Args {
    usage: &'static str,
    left: std::iter::Skip<std::env::Args>,
}

impl Args {
    /// Reads the command line. `--help` prints the usage, and ends the program.
    #[must_use]
    pub fn new(usage: &'static str) -> Self {
        if std::env::args().skip(1).any(|arg| ["--help", "-h"].contains(&arg.as_str())) {
            println!("Usage: {usage}");
            exit(0);
        }
        Self { usage, left: std::env::args().skip(1) }
    }

    /// Ends the program, because of a wrong argument.
    pub fn refuse(&self, problem: impl Display) -> ! {
        eprintln!("error: {problem}\nUsage: {}", self.usage);
        exit(2)
    }

    /// Returns the next argument, which must be one of `choices`.
    pub fn choice(&mut self, name: &str, choices: &[&str]) -> Option<String> {
        let text = self.left.next()?;
        if !choices.contains(&text.as_str()) {
            self.refuse(format_args!("{name} must be one of {}, not {text:?}", choices.join(", ")));
        }
        Some(text)
    }

    /// Returns the next argument, a whole number.
    pub fn number<T: FromStr>(&mut self, name: &str, default: T) -> T {
        let Some(text) = self.left.next() else { return default };
        text.parse().unwrap_or_else(|_| self.refuse(format_args!("{name} must be a whole number, not {text:?}")))
    }

    /// Returns the next argument, a time in seconds.
    pub fn seconds(&mut self, default: f64) -> Duration {
        let Some(text) = self.left.next() else { return Duration::from_secs_f64(default) };
        match text.parse() {
            Ok(seconds) if seconds > 0.0 && seconds <= MAX_SECONDS => Duration::from_secs_f64(seconds),
            _ => self.refuse(format_args!("SECONDS must be between 0 and {MAX_SECONDS}, not {text:?}")),
        }
    }

    /// Returns all other arguments.
    pub fn rest(&mut self) -> impl Iterator<Item = String> {
        self.left.by_ref()
    }

    /// Ends the program if there are more arguments.
    pub fn end(&mut self) {
        if let Some(text) = self.left.next() {
            self.refuse(format_args!("unexpected argument {text:?}"));
        }
    }
}

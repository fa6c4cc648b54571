//! Command lines, parsed by clap.
//!
//! Every tool reports a usage error as one line on stderr. Beside its own options it has `--help`,
//! `--version`, `--completions SHELL` and `--man`, which print to stdout.

use core::error::Error;
use core::num::NonZeroUsize;
use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches, ValueEnum, value_parser};
use clap_complete::Shell;
use clap_mangen::Man;
use lock_driver::{Settings, StoreSettings};
use lock_proto::redis::Wake;
use lock_proto::{ConfigError, UrlError};

use super::output::print_text;
use super::{Usage, usage};

/// A command line that was understood.
#[derive(Debug)]
pub enum Line<T> {
    /// The arguments of the tool.
    Run(T),
    /// Text to print before exiting with code 0.
    Print(String),
}

/// Parses the arguments of `T`, without the program's name.
///
/// # Errors
///
/// [`Usage`] names the argument that was rejected.
pub fn parse<T: CommandFactory + FromArgMatches>(args: impl IntoIterator<Item = OsString>) -> Result<Line<T>, Usage> {
    parse_as(T::command(), args)
}

/// Parses the arguments of `T` by a command that was made from it.
pub(crate) fn parse_as<T: FromArgMatches>(
    command: Command,
    args: impl IntoIterator<Item = OsString>,
) -> Result<Line<T>, Usage> {
    let mut command = with_common_options(command);
    let matches = match command.try_get_matches_from_mut(args) {
        Ok(matches) => matches,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            return Ok(Line::Print(error.render().to_string()));
        }
        Err(error) => return Err(rejected(&command, error)),
    };
    let mut text = Vec::new();
    if let Some(shell) = matches.get_one::<Shell>("completions") {
        let name = command.get_name().to_owned();
        clap_complete::generate(*shell, &mut command, name, &mut text);
    } else if matches.get_flag("man") {
        Man::new(command).render(&mut text).map_err(|error| Usage(format!("--man: {error}")))?;
    } else {
        return Ok(Line::Run(T::from_arg_matches(&matches)?));
    }
    Ok(Line::Print(String::from_utf8_lossy(&text).into_owned()))
}

fn rejected(command: &Command, error: clap::Error) -> Usage {
    let takes_command = command.get_positionals().any(Arg::is_last_set);
    let is_option = |word: &ContextValue| matches!(word, ContextValue::String(word) if word.starts_with('-'));
    let hint = match (error.kind(), error.get(ContextKind::InvalidArg).map(is_option)) {
        _ if !takes_command || error.get(ContextKind::SuggestedArg).is_some() => "",
        (ErrorKind::UnknownArgument, Some(false)) => "; the command comes after `--`",
        // After `--` it would be the command.
        (ErrorKind::UnknownArgument, Some(true)) | (ErrorKind::MissingRequiredArgument, _) => {
            "; <NAME> comes before `--`, which begins the command, and cannot begin with a dash"
        }
        _ => "",
    };
    let Usage(message) = error.into();
    Usage(message + hint)
}

fn with_common_options(command: Command) -> Command {
    let completions = Arg::new("completions")
        .long("completions")
        .value_name("SHELL")
        .value_parser(value_parser!(Shell))
        .hide_possible_values(true)
        .help("Print a completion script for bash, elvish, fish, powershell or zsh");
    let man = Arg::new("man").long("man").action(ArgAction::SetTrue).help("Print the manual page, in roff");
    // An option that is given twice has its last value.
    let command =
        command.no_binary_name(true).args_override_self(true).disable_help_subcommand(true).max_term_width(100);
    command.args([completions, man].map(|arg| arg.exclusive(true).display_order(1_000)))
}

/// Parses the arguments of a small program. It ends here, with this exit code, if there is nothing
/// to run.
///
/// # Errors
///
/// The exit code: 0 if the requested text was printed, 74 if it could not be written, `bad_usage`
/// for a usage error.
pub fn parse_or_exit<T: CommandFactory + FromArgMatches>(
    args: impl IntoIterator<Item = OsString>,
    bad_usage: u8,
) -> Result<T, u8> {
    match parse(args) {
        Ok(Line::Run(args)) => Ok(args),
        Ok(Line::Print(text)) => Err(print_text(T::command().get_name(), &text)),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{}: {error}", T::command().get_name());
            Err(bad_usage)
        }
    }
}

/// The `main` of an example: parses its arguments and runs it. The exit code is 1 after any error,
/// which is printed.
pub fn run_example<T: CommandFactory + FromArgMatches>(run: impl FnOnce(T) -> Result<(), Box<dyn Error>>) -> ExitCode {
    let result = match parse_or_exit(std::env::args_os().skip(1), 1) {
        Ok(options) => run(options),
        Err(code) => return ExitCode::from(code),
    };
    let Err(error) = result else { return ExitCode::SUCCESS };
    let _ = writeln!(std::io::stderr(), "{}: {error}", T::command().get_name());
    ExitCode::FAILURE
}

/// Parses a duration such as `500ms`, `1m30s` or a bare `0`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    // humantime panics if the sum of the parts overflows, which a text of this length cannot reach.
    const LONGEST: usize = 20;
    let parsed = (text.len() <= LONGEST).then(|| humantime::parse_duration(text).ok()).flatten();
    parsed.ok_or_else(|| "expected a duration such as 500ms, 10s or 1m30s".to_owned())
}

/// Parses a whole number from 1 to `max`.
pub(crate) fn count(max: u64) -> impl TypedValueParser<Value = NonZeroUsize> {
    RangedU64ValueParser::<usize>::new().range(1..=max).try_map(NonZeroUsize::try_from)
}

/// Parses `on` or `off`.
pub(crate) fn switch() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|word| word == "on")
}

/// The value of `--wake`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum WakeMode {
    /// A release wakes one waiter.
    Notify,
    /// Waiters rely on polling only.
    Poll,
}

impl From<WakeMode> for Wake {
    fn from(mode: WakeMode) -> Self {
        match mode {
            WakeMode::Notify => Self::Notify,
            WakeMode::Poll => Self::Poll,
        }
    }
}

/// Variable with the password for URLs that name none, so that it is on no command line. An empty
/// value counts as unset.
const PASSWORD_VARIABLE: &str = "LOCK_PASSWORD";

/// The settings for these URLs, with the password of the environment.
///
/// # Errors
///
/// A URL is invalid, or the password not UTF-8. The error shows no password.
pub(crate) fn parse_backends(urls: &[String]) -> Result<StoreSettings, Usage> {
    let settings = Settings::parse(urls).map_err(|error| Usage(format!("--backend: {error}")))?;
    let Some(password) = password()? else { return with_password(settings.store) };
    Ok(settings.default_password(&password).store)
}

/// The password of the environment.
///
/// # Errors
///
/// It is not UTF-8.
pub(crate) fn password() -> Result<Option<String>, Usage> {
    let password = std::env::var_os(PASSWORD_VARIABLE).filter(|password| !password.is_empty());
    password.map(|password| text(PASSWORD_VARIABLE, &password).map(str::to_owned)).transpose()
}

/// Checks that a login of the URL has a password.
fn with_password(settings: StoreSettings) -> Result<StoreSettings, Usage> {
    let checked = match &settings {
        StoreSettings::Redis(config) => config.check(),
        StoreSettings::Etcd(config) => config.check(),
        StoreSettings::ZooKeeper(config) => config.check(),
        StoreSettings::File(_) | _ => Ok(()),
    };
    match checked {
        Err(error @ ConfigError::Url(UrlError::NoPassword | UrlError::NoUser)) => {
            usage(format!("--backend: {error}, here by the variable {PASSWORD_VARIABLE}"))
        }
        Ok(()) | Err(_) => Ok(settings),
    }
}

/// Gives the sessions of a client the TTL of its locks, so that a killed process leaves nothing
/// behind for longer. etcd counts in whole seconds, and ZooKeeper has a shortest TTL. Returns the
/// TTL of the locks as well.
///
/// # Errors
///
/// The store has no such sessions.
pub(crate) fn with_ttl(settings: StoreSettings, ttl: Duration) -> Result<(StoreSettings, Duration), Usage> {
    Ok(match settings {
        StoreSettings::Etcd(config) => {
            let ttl = Duration::from_secs(ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0)));
            let config = config.session_ttl(ttl);
            config.check().map_err(invalid_option)?;
            (StoreSettings::Etcd(config), ttl)
        }
        StoreSettings::ZooKeeper(config) => {
            // Zero is an error.
            let ttl = if ttl.is_zero() { ttl } else { ttl.max(config.min_ttl()) };
            let config = config.session_ttl(ttl);
            config.check().map_err(invalid_option)?;
            (StoreSettings::ZooKeeper(config), ttl)
        }
        other @ (StoreSettings::Redis(_) | _) => (other, ttl),
    })
}

/// Says that `--ttl` became longer, and why.
pub(crate) fn raised_ttl(requested: Option<Duration>, ttl: Duration, why: impl FnOnce() -> String) -> Option<String> {
    let requested = requested.filter(|requested| *requested < ttl)?;
    Some(format!("--ttl {requested:?} became {ttl:?}: {}", why()))
}

/// Why [`with_ttl`] makes a TTL longer.
pub(crate) fn why_raised(settings: &StoreSettings) -> String {
    match settings {
        StoreSettings::ZooKeeper(config) => format!(
            "on ZooKeeper a TTL has at least five ticks of the servers, {:?}; set tick_ms in the URL to their tickTime",
            config.min_ttl()
        ),
        StoreSettings::Etcd(_) | StoreSettings::Redis(_) | _ => "etcd counts whole seconds".to_owned(),
    }
}

/// Names the option whose value the library rejects as a setting.
pub(crate) fn invalid_option(error: ConfigError) -> Usage {
    let ConfigError::Duration { setting, .. } = error else { return Usage(error.to_string()) };
    let option = match setting {
        "session_ttl" => "--ttl: ",
        "poll.every" => "--poll: ",
        "quarantine" => "--quarantine: ",
        _ => "",
    };
    Usage(format!("{option}{error}"))
}

/// The usual default of `--backend`: a Redis server on this machine.
pub(crate) const DEFAULT_BACKEND: &str = "redis://127.0.0.1:6379";

/// Name of the variable with another default.
const BACKEND_VARIABLE: &str = "LOCK_BACKEND";

/// The value of an environment variable as text.
fn text<'a>(name: &str, value: &'a OsStr) -> Result<&'a str, Usage> {
    value.to_str().ok_or_else(|| Usage(format!("{name} is not UTF-8; a URL has other bytes as %XX")))
}

/// The backends that were given, else those of `LOCK_BACKEND`, else `default`.
///
/// # Errors
///
/// `LOCK_BACKEND` is not UTF-8, or has an invalid URL.
pub(crate) fn backends_or_default(
    given: Vec<String>,
    environment: Option<&OsStr>,
    default: &str,
) -> Result<Vec<String>, Usage> {
    Ok(backends(given, environment, check_urls)?.unwrap_or_else(|| vec![default.to_owned()]))
}

/// The backends that were given, else those of `LOCK_BACKEND`, which are checked here, as later
/// errors name `--backend`.
///
/// # Errors
///
/// `LOCK_BACKEND` is not UTF-8, or has an invalid URL.
pub(crate) fn backends(
    given: Vec<String>,
    environment: Option<&OsStr>,
    check: impl FnOnce(&[String]) -> Result<(), String>,
) -> Result<Option<Vec<String>>, Usage> {
    if !given.is_empty() {
        return Ok(Some(given));
    }
    let list = environment.map(|list| text(BACKEND_VARIABLE, list)).transpose()?.unwrap_or_default();
    let urls: Vec<String> = list.split_whitespace().map(str::to_owned).collect();
    if urls.is_empty() {
        return Ok(None);
    }
    check(&urls).map_err(|error| Usage(format!("{BACKEND_VARIABLE}: {error}")))?;
    Ok(Some(urls))
}

/// Checks URLs of the library's stores.
///
/// # Errors
///
/// What is wrong with them.
pub(crate) fn check_urls(urls: &[String]) -> Result<(), String> {
    Settings::parse(urls).map(drop).map_err(|error| error.to_string())
}

impl From<clap::Error> for Usage {
    /// Joins clap's message and its tips to one line, without the usage summary.
    fn from(error: clap::Error) -> Self {
        let rendered = error.render().to_string();
        let mut text = String::new();
        for line in rendered.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:")) {
            // No tool takes arguments with leading dashes after `--`, except those of a command.
            if line.is_empty() || line.starts_with("tip: to pass") || line.starts_with("For more information") {
                continue;
            }
            if !text.is_empty() {
                text.push_str(if line.starts_with("tip:") { "; " } else { " " });
            }
            text.push_str(line.strip_prefix("error: ").unwrap_or(line));
        }
        // The message repeats what was typed.
        Self(text.chars().filter(|c| !c.is_control()).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use clap::Parser;

    use super::*;

    #[test]
    fn durations_are_parsed() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("500ms", 500),
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("1m 30s", 90_000),
            ("1.5s", 1_500),
            ("2h5ms", 7_200_005),
            ("90s", 90_000),
        ] {
            assert_eq!(time(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn invalid_durations_are_rejected() {
        for text in [
            "",
            "5",
            "10",
            "s",
            "ms",
            "-1s",
            "+1s",
            "1,5s",
            "s1",
            "1ss",
            "99999999999999999999s",
            "١s",
            "forever",
            "18446744073709551615s 1000000000ns",
        ] {
            assert!(time(text).is_err(), "{text:?}");
        }
    }

    /// Shows the options.
    #[derive(Debug, Parser)]
    #[command(name = "tool", version)]
    struct Tool {
        /// Required.
        name: String,
        #[arg(long, value_enum, default_value = "notify")]
        wake: WakeMode,
        #[arg(long, value_parser = switch(), action = ArgAction::Set, default_value = "off")]
        fence: bool,
    }

    fn read(line: &[&str]) -> Result<Line<Tool>, Usage> {
        parse(line.iter().map(OsString::from))
    }

    #[test]
    fn last_value_of_option_wins() {
        let Ok(Line::Run(tool)) = read(&["n", "--wake=poll", "--fence", "off", "--fence", "on"]) else { panic!() };
        assert!(tool.fence && tool.name == "n" && matches!(tool.wake.into(), Wake::Poll));
    }

    #[test]
    fn completions_and_man_page_need_no_other_argument() {
        for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
            let Ok(Line::Print(script)) = read(&["--completions", shell]) else { panic!("{shell}") };
            assert!(script.contains("--fence") || script.contains("fence"), "{script}");
        }
        let Ok(Line::Print(page)) = read(&["--man"]) else { panic!() };
        assert!(page.contains(".TH tool 1"), "{page}");
        assert!(read(&["--man", "n"]).is_err());
    }

    #[test]
    fn usage_error_is_one_line_naming_argument() {
        for (line, part) in [
            (&[][..], "<NAME>"),
            (&["--completions", "dosh"], "'dosh'"),
            (&["n", "--wake", "shout"], "[possible values: notify, poll]"),
            (&["n", "--wak", "poll"], "'--wake'"),
            (&["n", "--bad\n\n\x1b[2J\x07"], "--bad"),
        ] {
            let Err(Usage(message)) = read(line) else { panic!("{line:?} was understood") };
            assert!(message.contains(part) && !message.contains(char::is_control), "{line:?}: {message}");
            assert!(!message.contains("Usage:") && !message.contains("--help"), "{message}");
        }
    }
}

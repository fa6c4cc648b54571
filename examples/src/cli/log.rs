//! The library's log on stderr.

use core::fmt;

use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, layer};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;

use super::stdio::Stderr;
use super::{Usage, usage};

/// Variable with the least severe level that is shown.
const LEVEL_VARIABLE: &str = "LOCK_LOG";

/// Shows the library's log on stderr from now on: warnings and errors, or what `LOCK_LOG` says.
///
/// # Errors
///
/// The variable names no level.
pub(crate) fn show_log(tool: &'static str) -> Result<(), Usage> {
    let level = match std::env::var_os(LEVEL_VARIABLE).filter(|level| !level.is_empty()) {
        None => LevelFilter::WARN,
        Some(level) => match level.to_str().and_then(|level| level.parse().ok()) {
            Some(level) => level,
            None => return usage(format!("{LEVEL_VARIABLE} must be off, error, warn, info, debug or trace")),
        },
    };
    // An event that cannot be formatted is dropped: the message about it would be written at once.
    let lines = layer().event_format(Line(tool)).with_writer(|| Stderr).with_ansi(false);
    let shown = tracing_subscriber::registry()
        .with(Targets::new().with_target("lock_driver", level))
        .with(lines.log_internal_errors(false));
    // Fails if there is a subscriber already.
    let _ = tracing::subscriber::set_global_default(shown);
    Ok(())
}

/// An event as one line, like the tool's own.
struct Line(&'static str);

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        write!(writer, "{}: {}: ", self.0, event.metadata().level())?;
        ctx.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

//! The page around the pictures.

use alloc::format;
use alloc::string::{String, ToString as _};

use super::axis::seconds;
use super::svg::{Escaped, Svg};
use super::timeline::{Span, Timeline};
use super::{COLOURS, Finding, Picture};
use crate::check::Rule;

const STYLE: &str = include_str!("style.css");
/// Definitions that every picture refers to.
const PATTERNS: &str = "\
<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs>
<pattern id=\"hatch\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect width=\"7\" height=\"7\" class=\"hatch-ground\"/><line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"7\" class=\"hatch-line\"/></pattern>
<pattern id=\"cross\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" class=\"cross-ground\"/><path d=\"M0 0V6M0 0H6\" class=\"cross-line\"/></pattern>
</defs></svg>
";

pub(super) struct Page<'a> {
    pub(super) picture: &'a Picture<'a>,
    pub(super) timeline: &'a Timeline,
    pub(super) findings: &'a [Finding],
    /// The part that is drawn in detail.
    pub(super) window: Span,
    pub(super) overview: &'a str,
    pub(super) drawn: &'a str,
}

impl Page<'_> {
    /// Assembles the page. `focus` is the position to scroll to.
    pub(super) fn write(&self, focus: Option<f64>) -> String {
        let mut out = Svg::new();
        out.put(format_args!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width\"/>\n<meta name=\"color-scheme\" content=\"light dark\"/>\n\
             <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{PATTERNS}",
            Escaped(&self.picture.title)
        ));
        head(&mut out, self.picture);
        verdict(&mut out, self.findings);
        legend(&mut out, self.timeline);
        out.put(format_args!("<h2>The whole run, to scale</h2>\n{}<h2>Drawn out", self.overview));
        let Span { from, to } = self.window;
        if from > lock_proto::Instant::ZERO || to < self.picture.trace.end {
            let (from, to) = (seconds(from), seconds(to));
            out.put(format_args!(": from {from} to {to} (other parts: <code>--from</code>, <code>--to</code>)"));
        }
        out.put(format_args!(
            "</h2>\n{}<p class=\"note\">Idle time is left out; a grey stripe shows how much. Everything else is to one scale. \
             Hover over a mark for details.</p>\n",
            self.drawn
        ));
        if let Some(plan) = self.picture.plan {
            details(&mut out, "The plan", &plan.to_string(), true);
        }
        let log = self.picture.log;
        details(&mut out, "The end of the log", if log.is_empty() { "empty" } else { log }, false);
        if let Some(x) = focus {
            // The only script: it scrolls to the finding. The page is readable without it.
            out.put(format_args!(
                "<script>const lanes = document.querySelector(\".scroll\"); lanes.scrollLeft = {x:.0} - lanes.clientWidth * 0.6;</script>\n"
            ));
        }
        out.put(format_args!("</body>\n</html>\n"));
        out.into_text()
    }
}

fn head(out: &mut Svg, picture: &Picture<'_>) {
    out.put(format_args!("<h1>{}</h1>\n<p>{}", Escaped(&picture.title), Escaped(&picture.about)));
    if let Some(what) = picture.beyond {
        out.put(format_args!(" <strong>Beyond the bounds of the promises:</strong> {}.", Escaped(what)));
    }
    out.put(format_args!(
        "<br/>{}, {} messages.<br/><code>{}</code></p>\n",
        Escaped(&picture.summary),
        picture.trace.messages.len(),
        Escaped(picture.replay)
    ));
}

fn verdict(out: &mut Svg, findings: &[Finding]) {
    if findings.is_empty() {
        out.put(format_args!("<p class=\"good\">Nothing is broken.</p>\n"));
        return;
    }
    out.put(format_args!("<ul class=\"findings\">\n"));
    for (number, finding) in findings.iter().enumerate() {
        let class = if finding.promised { "broken" } else { "not-promised" };
        let (word, rule) = (if finding.promised { "Broken" } else { "Not promised here" }, finding.violation.rule);
        out.put(format_args!(
            "<li class=\"{class}\"><strong>{word}: {}</strong> ({rule}) at <a href=\"#finding-{number}\">{}</a>: {}</li>\n",
            Rule::about(rule),
            finding.violation.at,
            Escaped(&finding.violation.text)
        ));
    }
    out.put(format_args!("</ul>\n"));
}

fn details(out: &mut Svg, what: &str, text: &str, open: bool) {
    let open = if open { " open=\"open\"" } else { "" };
    out.put(format_args!("<details{open}><summary>{what}</summary><pre>{}</pre></details>\n", Escaped(text)));
}

/// The legend: each kind of mark with its meaning.
fn legend(out: &mut Svg, timeline: &Timeline) {
    out.put(format_args!("<div class=\"legend\">\n"));
    for (number, name) in timeline.names.iter().enumerate() {
        let again = if number >= COLOURS { " again" } else { "" };
        let class = format!("held n{}{again}", number % COLOURS);
        entry(out, &format!("lock {name}"), |svg| svg.rect(&class, (1.0, 3.0), (32.0, 10.0), ""));
    }
    entry(out, "waiting, offered, held, releasing", |svg| {
        svg.circle("requested n0", (3.0, 8.0), 2.4, "");
        svg.line("wait n0", (3.0, 8.0), (9.0, 8.0), "");
        svg.rect("offer n0", (9.0, 3.0), (6.0, 10.0), "");
        svg.rect("held n0", (15.0, 3.0), (12.0, 10.0), "");
        svg.line("back n0", (27.0, 8.0), (33.0, 8.0), "");
        svg.line("end", (33.0, 3.0), (33.0, 13.0), "");
    });
    entry(out, "renewed; the end of validity", |svg| {
        svg.rect("held n0", (1.0, 3.0), (31.0, 10.0), "");
        svg.line("tick", (13.0, 3.0), (13.0, 13.0), "");
        svg.path("until", &[(28.0, 1.0), (32.0, 1.0), (32.0, 15.0), (28.0, 15.0)], "");
    });
    entry(out, "expired, holder not notified yet", |svg| svg.rect("unreported n0", (1.0, 4.0), (32.0, 8.0), ""));
    entry(out, "notified of the loss", |svg| svg.cross("loss", (17.0, 8.0), 4.5, ""));
    entry(out, "stopped", |svg| svg.rect("paused", (1.0, 1.0), (32.0, 14.0), ""));
    entry(out, "dead", |svg| svg.rect("down", (1.0, 1.0), (32.0, 14.0), ""));
    entry(out, "request, reply, connection", |svg| {
        svg.path("m request", &[(2.0, 1.0), (11.0, 15.0)], "");
        svg.path("m reply", &[(13.0, 15.0), (22.0, 1.0)], "");
        svg.path("m conn", &[(24.0, 1.0), (33.0, 15.0)], "");
    });
    entry(out, "lost; in flight at the end", |svg| {
        svg.path("m request lost", &[(2.0, 1.0), (10.0, 9.0)], "");
        svg.cross("lost", (10.0, 9.0), 4.0, "");
        svg.path("m request under-way", &[(20.0, 1.0), (32.0, 14.0)], "");
    });
    entry(out, "cut", |svg| svg.rect("cut", (1.0, 4.0), (32.0, 8.0), ""));
    entry(out, "note; clock set", |svg| {
        svg.path("flag", &[(8.0, 14.0), (8.0, 3.0), (15.0, 6.0), (8.0, 9.0)], "");
        svg.path("flag clock", &[(22.0, 14.0), (22.0, 3.0), (29.0, 6.0), (22.0, 9.0)], "");
    });
    entry(out, "write accepted, rejected", |svg| {
        svg.circle("write n0", (9.0, 8.0), 4.5, "");
        svg.circle("refused n0", (25.0, 8.0), 4.5, "");
        svg.cross("loss", (25.0, 8.0), 5.5, "");
    });
    entry(out, "the faults end", |svg| svg.line("calm", (17.0, 0.0), (17.0, 16.0), ""));
    entry(out, "violated rule; one that is not promised", |svg| {
        svg.line("violation", (10.0, 0.0), (10.0, 16.0), "");
        svg.line("violation excused", (24.0, 0.0), (24.0, 16.0), "");
    });
    entry(out, "idle time, left out", |svg| {
        svg.rect("gap", (1.0, 0.0), (32.0, 16.0), "");
        for x in [13.0, 18.0] {
            svg.path("zigzag", &[(x, 2.0), (x + 3.0, 5.0), (x, 8.0), (x + 3.0, 11.0), (x, 14.0)], "");
        }
    });
    out.put(format_args!("</div>\n"));
}

fn entry(out: &mut Svg, text: &str, mark: impl FnOnce(&mut Svg)) {
    out.put(format_args!("<span><svg width=\"34\" height=\"16\" viewBox=\"0 0 34 16\" aria-hidden=\"true\">"));
    mark(out);
    out.put(format_args!("</svg>{}</span>\n", Escaped(text)));
}

//! `report.html`: one file without scripts, light and dark.

use core::fmt::Write as _;

use super::Report;
use super::charts::{self, COMMANDS, CPU, FAIRNESS};
use super::findings::{findings, headlines};
use super::text::{COLUMNS, heading, remark, row};
use lock_sim::picture::svg::Escaped;

const STYLE: &str = include_str!("style.css");

pub(super) fn html(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <meta name=\"color-scheme\" content=\"light dark\"/>\
         <title>Distributed locks under contention</title><style>{STYLE}</style></head><body><main>\n\
         <header><h1>Polling, wake-up, local hand-over</h1><p class=\"lead\">Distributed locks under contention, measured on real servers: \
         waiting times, throughput, fairness and cost.</p></header>\n"
    );
    page += "<section class=\"cards\">";
    for headline in headlines(report) {
        let (figure, text) = (Escaped(&headline.figure), Escaped(&headline.text));
        let _ = write!(page, "<div class=\"card\"><b>{figure}</b><span>{text}</span></div>");
    }
    page += "</section>\n";
    legend(&mut page, report);
    page += "<section><h2>Time to acquire the lock</h2><p>All clients compete for one lock. Each ridge is the distribution of the time from the \
             request to the grant, on a logarithmic axis. Its lines are the median and the 99th percentile; the ring is the longest wait, \
             including unfinished ones.</p>\n";
    for (s, scenario) in report.plan.scenarios.iter().enumerate() {
        figure(&mut page, &heading(scenario), &charts::waits(report, s));
    }
    page += "</section>\n<section><h2>Locks a second</h2><p>Each client holds the lock for a millisecond, by the timer of its runtime, \
             which takes longer. The dotted line is the limit for hand-overs that take no time.</p>\n";
    figure(&mut page, "Locks a second over the number of clients", &charts::rates(report));
    page += "</section>\n<section><h2>Fairness</h2><p>Jain’s index over the number of locks that each client acquired: 1 if all acquired \
             the same number, near 0 if few acquired them all. A lock that is fast because few clients keep it is on the left.</p>\n";
    figure(&mut page, "Jain’s index of fairness", &charts::dots(report, &FAIRNESS));
    page += "</section>\n<section><h2>Cost</h2><p>Processor time for each lock, user and system: of all clients together (full), and \
             of the servers (ring). Commands for each lock, as counted by the servers: those that clients sent (full), and those \
             executed, including those of scripts (ring). For etcd and ZooKeeper, the messages that they received.</p>\n";
    figure(&mut page, "Processor time for each lock: ● clients, ○ servers", &charts::dots(report, &CPU));
    figure(&mut page, "Commands for each lock: ● sent, ○ executed", &charts::dots(report, &COMMANDS));
    page += "</section>\n<section><h2>Claims and measurements</h2>\
             <div class=\"wide\"><table class=\"words\"><thead><tr><th>claim</th><th>measured</th></tr></thead><tbody>";
    for finding in findings(report) {
        let measured = Escaped(&finding.measured).to_string().replace("; ", "<br/>");
        let _ = write!(page, "<tr><td>{}</td><td>{measured}</td></tr>", Escaped(finding.claim));
    }
    page += "</tbody></table></div></section>\n<section><h2>All figures</h2>\n";
    for (s, scenario) in report.plan.scenarios.iter().enumerate() {
        let _ = write!(page, "<h3>{}</h3>", Escaped(&heading(scenario)));
        table(&mut page, report, s);
    }
    page += "</section>\n<section><h2>Environment</h2><dl>";
    for (name, value) in &report.facts {
        let _ = write!(page, "<dt>{name}</dt><dd>{}</dd>", Escaped(value));
    }
    page += "</dl></section>\n</main></body></html>\n";
    page
}

fn legend(page: &mut String, report: &Report) {
    page.push_str("<section><dl class=\"legend\">");
    for method in &report.plan.methods {
        let (key, title, about) = (method.key, method.title, Escaped(&method.about));
        let _ = write!(page, "<div><dt><i class=\"c-{key}\"></i>{title}</dt><dd>{about}</dd></div>");
    }
    page.push_str("</dl></section>\n");
}

fn figure(page: &mut String, caption: &str, picture: &str) {
    let caption = Escaped(caption);
    let _ = writeln!(page, "<figure><figcaption>{caption}</figcaption><div class=\"wide\">{picture}</div></figure>");
}

fn table(page: &mut String, report: &Report, scenario: usize) {
    page.push_str("<div class=\"wide\"><table class=\"figures\"><thead><tr>");
    for column in COLUMNS {
        let _ = write!(page, "<th>{column}</th>");
    }
    page.push_str("</tr></thead><tbody>");
    for (method, result) in report.rows(scenario) {
        page.push_str("<tr>");
        match result {
            Ok(outcome) => {
                for cell in row(method.title, outcome) {
                    let _ = write!(page, "<td>{}</td>", Escaped(&cell));
                }
                if let Some(remark) = remark(outcome) {
                    let _ = write!(
                        page,
                        "</tr><tr><td class=\"remark\" colspan=\"{}\">{}</td>",
                        COLUMNS.len(),
                        Escaped(&remark)
                    );
                }
            }
            Err(why) => {
                let rest = COLUMNS.len() - 1;
                let _ = write!(
                    page,
                    "<td>{}</td><td class=\"remark\" colspan=\"{rest}\">{}</td>",
                    method.title,
                    Escaped(why)
                );
            }
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table></div>\n");
}

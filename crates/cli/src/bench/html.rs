//! Self-contained HTML page of a report with plots: no scripts, fonts or external images.

mod axis;
mod bars;
mod groups;
mod lines;
mod panel;
mod tables;

use super::contender::Facts;
use super::figures::{escape, figure};
use super::report::{CaseReport, Report};

pub(super) use axis::Scale;

/// Renders the page of some reports.
pub(super) fn page(reports: &[Report]) -> String {
    let title = match reports {
        [report] => format!("leno bench {}: {}", report.suite, report.title),
        _ => "leno bench".to_owned(),
    };
    let bodies: String = reports.iter().map(body).collect();
    let links = reports.iter().map(|report| {
        let suite = escape(report.suite);
        format!("<li><a href=\"#{suite}\">{suite}</a></li>")
    });
    let links = match reports.len() {
        0 | 1 => String::new(),
        _ => format!("<ul class=\"chips links\">{}</ul>", links.collect::<String>()),
    };
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{}</title><style>{STYLE}</style></head><body><main>{links}{bodies}<footer>Made by \
         leno {}: the same work, every contender, one run.</footer></main></body></html>",
        escape(&title),
        env!("CARGO_PKG_VERSION")
    )
}

fn body(report: &Report) -> String {
    [
        format!("<section id=\"{}\">", escape(report.suite)),
        head(report),
        headline(report),
        tables_and_plots(report),
        cases(report),
        published(report),
        contenders(report),
        remarks(report),
        "</section>".to_owned(),
    ]
    .concat()
}

fn head(report: &Report) -> String {
    let machine = &report.machine;
    let mut chips = vec![
        ("processor", machine.processor.clone()),
        ("cores", machine.cores.to_string()),
        ("memory", format!("{} MiB", figure(machine.memory_mib as f64))),
        ("Linux", machine.kernel.clone()),
        ("took", format!("{} s", figure(report.elapsed_s))),
    ];
    if machine.virtual_machine {
        chips.push(("machine", "virtual".to_owned()));
    }
    if let Some(settings) = &report.settings {
        chips.push(("each run", format!("{} s", figure(settings.duration_s))));
        chips.push(("repeats", settings.repeats.to_string()));
        if !report.cases.is_empty() {
            chips.push(("load", settings.driver_version.clone()));
        }
    }
    let chips: String = chips
        .iter()
        .map(|(name, value)| format!("<li>{name} <b>{}</b></li>", escape(value)))
        .collect();
    let caution =
        report.caution().map(|text| format!("<p class=\"caution\">{}</p>", escape(&text)));
    format!(
        "<header class=\"top\"><span class=\"mark\">leno bench {}</span>\
         <span class=\"when\">{}</span></header><h1>{}</h1><p>{}</p><ul class=\"chips\">{chips}</ul>{}",
        escape(report.suite),
        escape(&report.began),
        escape(report.title),
        escape(report.about),
        caution.unwrap_or_default()
    )
}

/// Returns the headline: the relative cost of the other contenders, if known.
fn headline(report: &Report) -> String {
    let Some(case) = report.cases.first() else {
        return String::new();
    };
    let Some(ours) = case.contenders.get("leno") else {
        return String::new();
    };
    let own = ours.cpu_us_per_request.sum;
    let mut cards = format!(
        "<div><strong>{} µs</strong><span>of CPU for each request, all leno sidecars \
         together<br>{}</span></div>",
        figure(own),
        escape(&case.name)
    );
    for facts in report.contenders.iter().filter(|facts| facts.name != "leno") {
        let ratio = case
            .contenders
            .get(&facts.name)
            .filter(|outcome| outcome.cpu_us_per_request.processes.len() > 1)
            .and_then(|outcome| outcome.ratio_to_leno.as_ref()?.get("cpu_us_per_request"));
        if let Some(ratio) = ratio {
            cards.push_str(&format!(
                "<div><strong>{ratio:.1} ×</strong><span>that much CPU for {}</span></div>",
                escape(&facts.name)
            ));
        }
    }
    format!("<div class=\"headline\">{cards}</div>")
}

fn tables_and_plots(report: &Report) -> String {
    let plots: String = report.plots.iter().map(|plot| panel::of_plot(report, plot)).collect();
    let plots = match plots.is_empty() {
        true => plots,
        false => format!("<h2>At a glance</h2><div class=\"grid\">{plots}</div>"),
    };
    let tables: String = report.tables.iter().map(tables::of_figures).collect();
    match tables.is_empty() {
        true => plots,
        false => format!("{plots}<h2>Figures</h2>{tables}"),
    }
}

/// Renders the first case open; with many cases the others are collapsed.
fn cases(report: &Report) -> String {
    let many = report.cases.len() > CASES_OPEN;
    let mut text = String::new();
    for (index, case) in report.cases.iter().enumerate() {
        let panel = panel::of_case(report, case);
        let table = tables::of_case(report, case);
        let title = escape(&case.name);
        let cores = cores(case);
        let shown = !many || (index == 0 && report.plots.is_empty());
        text.push_str(&match shown {
            true => format!("<h2>{title}</h2>{cores}{panel}<p></p>{table}"),
            false => format!("<details><summary>{title}</summary>{cores}{panel}{table}</details>"),
        });
    }
    text
}

fn cores(case: &CaseReport) -> String {
    match (&case.proxy_cores, &case.load_cores) {
        (Some(proxies), Some(load)) => format!(
            "<p class=\"soft small\">Proxies ran on cores {proxies}, load and applications on \
             {load}.</p>"
        ),
        _ => String::new(),
    }
}

fn published(report: &Report) -> String {
    let tables: String = report.published.iter().map(tables::of_published).collect();
    match tables.is_empty() {
        true => tables,
        false => format!("<h2>Published figures of others</h2>{tables}"),
    }
}

fn contenders(report: &Report) -> String {
    let list: String = report.contenders.iter().map(contender).collect();
    let skipped: String = report
        .skipped
        .iter()
        .map(|skipped| {
            let (name, reason) = (escape(&skipped.name), escape(&skipped.reason));
            format!("<li><b>{name}</b> was skipped: {reason}</li>")
        })
        .collect();
    let skipped = match skipped.is_empty() {
        true => skipped,
        false => format!("<ul class=\"plain\">{skipped}</ul>"),
    };
    format!("<h2>Contenders, exactly as they ran</h2>{skipped}{list}")
}

fn contender(facts: &Facts) -> String {
    let processes = facts.configuration.iter().map(|process| {
        let command = escape(&process.command.join(" "));
        let files = process
            .files
            .iter()
            .map(|(name, text)| format!("<h3>{}</h3><pre>{}</pre>", escape(name), escape(text)));
        format!(
            "<h3>{} ({})</h3><pre>{command}</pre>{}",
            escape(&process.process),
            process.layout,
            files.collect::<String>()
        )
    });
    format!(
        "<details><summary>{} <span class=\"soft\">{}</span></summary><p>{}</p>{}</details>",
        escape(&facts.name),
        escape(&facts.version),
        escape(&facts.about),
        processes.collect::<String>()
    )
}

fn remarks(report: &Report) -> String {
    let list = |texts: &[String]| -> String {
        texts.iter().map(|text| format!("<li>{}</li>", escape(text))).collect()
    };
    let mut method = String::new();
    if let Some(settings) = report.settings.as_ref().filter(|_| !report.cases.is_empty()) {
        method = format!(
            "<li>Figures are medians of {} repeats; contenders took turns in an order drawn anew \
             for each repeat (seed {}). Ratios are medians of ratios within a repeat.</li>\
             <li>CPU is what the kernel counted for the proxies between two moments inside the \
             measured time, divided by the requests that the server answered between them.</li>\
             <li><i>noisy</i>: repeats differ by more than {:.0} % of their median, 99th \
             percentiles by {:.0} %. <i>load-bound</i>: load and server could do no more, the \
             proxies could have. <i>disturbed</i>: programs that have no part in this kept more \
             than {:.0} % of a core busy.</li>",
            settings.repeats,
            settings.seed,
            settings.noisy_above * 100.0,
            settings.tail_noisy_above * 100.0,
            settings.disturbed_above * 100.0,
        );
    }
    format!(
        "<h2>How to read this</h2><ul class=\"plain\">{method}{}</ul>\
         <h2>Limitations</h2><ul class=\"plain\">{}</ul>\
         <p class=\"soft small\">Command: <code>{}</code></p>",
        list(&report.notes),
        list(&report.not_shown),
        escape(&report.command.join(" "))
    )
}

/// With more, cases are collapsed.
const CASES_OPEN: usize = 3;
const STYLE: &str = include_str!("html/style.css");

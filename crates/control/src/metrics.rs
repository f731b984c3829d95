//! What the control plane counts, in the Prometheus text format 0.0.4.

use std::fmt::{Display, Write};

use crate::report::Report;
use crate::server::Gauges;

/// Writes all metrics of the control plane.
pub(crate) fn expose(report: &Report<'_>, gauges: &Gauges) -> String {
    let status = report.status();
    let tally = report.audience.tally;
    let certifier = report.certifier;
    let mut page = Page::default();
    let one = |page: &mut Page, (name, kind, help): (&str, &str, &str), value: &dyn Display| {
        page.header(name, kind, help);
        page.line(name, value);
    };
    one(&mut page, WORKLOADS, &status.workloads);
    one(&mut page, SERVICES, &status.services);
    one(&mut page, PROXIES, &status.proxies);
    one(&mut page, PROXIES_BEHIND, &status.behind);
    one(&mut page, REJECTED, &status.rejected);
    one(&mut page, CHANGES, &tally.changes);
    one(&mut page, COMPILED, &tally.compiled);
    one(&mut page, OFFERED, &tally.offered);
    one(&mut page, APPLIED, &tally.applied);
    one(&mut page, REFUSED, &tally.refused);
    one(&mut page, SENT, &gauges.sent());
    one(&mut page, RECEIVED, &gauges.received());
    one(&mut page, CERTIFICATES, &certifier.issued);
    one(&mut page, CERTIFICATES_REFUSED, &certifier.refused);
    let (name, kind, help) = CONNECTIONS_REFUSED;
    page.header(name, kind, help);
    for (reason, count) in gauges.refused() {
        page.line(&format!("{name}{{reason=\"{reason}\"}}"), &count);
    }
    let convergence = report.audience.rounds.convergence();
    let (name, kind, help) = CONVERGENCE;
    page.header(name, kind, help);
    for quantile in [0.5, 0.9, 0.99, 1.0] {
        let value = convergence.quantile(quantile).as_secs_f64();
        page.line(&format!("{name}{{quantile=\"{quantile}\"}}"), &value);
    }
    page.line(&format!("{name}_sum"), &convergence.sum().as_secs_f64());
    page.line(&format!("{name}_count"), &convergence.count());
    page.out
}

#[derive(Default)]
struct Page {
    out: String,
}

impl Page {
    fn header(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a `String` cannot fail.
        writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}").unwrap_or_default();
    }

    fn line(&mut self, name: &str, value: &dyn Display) {
        writeln!(self.out, "{name} {value}").unwrap_or_default();
    }
}

const WORKLOADS: (&str, &str, &str) = ("leno_control_workloads", "gauge", "Workloads in force.");
const SERVICES: (&str, &str, &str) = ("leno_control_services", "gauge", "Services in force.");
const PROXIES: (&str, &str, &str) = ("leno_control_proxies", "gauge", "Proxies connected now.");
const PROXIES_BEHIND: (&str, &str, &str) = (
    "leno_control_proxies_behind",
    "gauge",
    "Connected proxies that have not applied all they were told.",
);
const REJECTED: (&str, &str, &str) =
    ("leno_control_rejected", "gauge", "Documents refused as things stand.");
const CHANGES: (&str, &str, &str) =
    ("leno_control_changes_total", "counter", "Changes that were taken in.");
const COMPILED: (&str, &str, &str) = (
    "leno_control_compiled_total",
    "counter",
    "Snapshots compiled because something that the proxy uses may have changed.",
);
const OFFERED: (&str, &str, &str) = (
    "leno_control_offered_total",
    "counter",
    "Snapshots sent because they differed from what the proxy knew.",
);
const APPLIED: (&str, &str, &str) =
    ("leno_control_applied_total", "counter", "Reports of proxies that they are up to date.");
const REFUSED: (&str, &str, &str) =
    ("leno_control_refused_total", "counter", "Deltas that proxies refused.");
const SENT: (&str, &str, &str) =
    ("leno_control_sent_bytes_total", "counter", "Bytes sent to proxies, before encryption.");
const RECEIVED: (&str, &str, &str) = (
    "leno_control_received_bytes_total",
    "counter",
    "Bytes received from proxies, after decryption.",
);
const CERTIFICATES: (&str, &str, &str) =
    ("leno_control_certificates_total", "counter", "Certificates signed.");
const CERTIFICATES_REFUSED: (&str, &str, &str) =
    ("leno_control_certificates_refused_total", "counter", "Joins and renewals that were refused.");
const CONNECTIONS_REFUSED: (&str, &str, &str) = (
    "leno_control_connections_refused_total",
    "counter",
    "Connections that ended badly, by reason.",
);
const CONVERGENCE: (&str, &str, &str) = (
    "leno_control_convergence_seconds",
    "summary",
    "From seeing a change until the last proxy that it concerns has applied it.",
);

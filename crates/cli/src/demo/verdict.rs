//! Evaluates the findings of the demo: figures per service, and the results of the checks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leno_load::LoadReport;

use super::observe::Observation;
use super::report::{DemoCheck, DemoReport, ServiceReport, SplitShare};

/// The observations and measurements of a demo run.
#[derive(Debug)]
pub(super) struct DemoFindings {
    /// The observations of the sidecars before the traffic.
    pub(super) before_traffic: Vec<Observation>,
    /// The observations of the sidecars after the traffic.
    pub(super) after_traffic: Vec<Observation>,
    /// The measurements of the load generator, the demo's client.
    pub(super) load_report: LoadReport,
    /// The status for the client without permission, or the error.
    pub(super) denial_outcome: Result<u16, String>,
    /// The listeners that responded to a client without TLS.
    pub(super) plaintext_accepted: Vec<String>,
}

impl DemoFindings {
    /// Evaluates the findings: figures per service, and the result of each check.
    pub(super) fn evaluate(&self) -> DemoReport {
        let services: Vec<ServiceReport> = self
            .after_traffic
            .iter()
            .filter(|observation| observation.has_application)
            .map(|after| service_report(self.observation_before(after), after))
            .collect();
        let split = reviews_split(&services);
        let mtls_result = self.check_mtls();
        let checks = vec![
            self.check_success(),
            check_participation(&services),
            check_result("split", check_split(&split)),
            check_result("mutual TLS", mtls_result.clone()),
            self.check_denial(),
        ];
        DemoReport {
            duration: self.load_report.elapsed,
            mtls: mtls_result.is_ok(),
            denied_status: self.denial_outcome.as_ref().ok().copied(),
            split,
            services,
            checks,
        }
    }

    /// Returns the first observation of the same sidecar; `None` if the sidecar started later.
    fn observation_before(&self, after: &Observation) -> Option<&Observation> {
        self.before_traffic.iter().find(|before| before.workload == after.workload)
    }

    fn check_success(&self) -> DemoCheck {
        let total = self.load_report.sum_targets();
        let failed_count = total.request_count() - total.success_count();
        let ok = failed_count == 0 && total.request_count() > 0;
        let to_milliseconds =
            |latency: Option<Duration>| latency.map_or(0.0, |latency| latency.as_secs_f64() * 1e3);
        let mut detail = format!(
            "{} requests, {:.0} per second, p50 {:.1} ms, p99 {:.1} ms, {failed_count} failed",
            total.request_count(),
            self.load_report.responses_per_second(),
            to_milliseconds(total.latency.p50()),
            to_milliseconds(total.latency.p99()),
        );
        for (status, count) in total.status_counts().filter(|(status, _)| *status >= 300) {
            detail.push_str(&format!(", {count} with status {status}"));
        }
        for (kind, count) in total.error_counts() {
            detail.push_str(&format!(", {count} {}", kind.label()));
        }
        DemoCheck { name: "every request succeeded".to_owned(), ok, detail }
    }

    /// Describes encryption and identity between sidecars, or returns the first violation.
    fn check_mtls(&self) -> Result<String, String> {
        // A link is an inbound connection of another sidecar.
        let mut link_count = 0;
        let mut request_count = 0;
        let mut peers = BTreeSet::new();
        for sidecar in &self.after_traffic {
            for connection in
                sidecar.connections.iter().filter(|connection| connection.direction == "inbound")
            {
                if !connection.identity.starts_with(IDENTITY_PREFIX) {
                    return Err(format!(
                        "{} has an inbound connection of `{}`",
                        sidecar.workload, connection.identity
                    ));
                }
                link_count += 1;
            }
            for series in sidecar.inbound_series() {
                if series.peer.is_empty() {
                    return Err(format!("{} served a peer without identity", sidecar.workload));
                }
                request_count += series.requests;
                peers.insert(series.peer.as_str());
            }
        }
        if let Some(listener) = self.plaintext_accepted.first() {
            return Err(format!("{listener} accepted a client without TLS"));
        }
        match link_count > 0 && request_count > 0 {
            true => Ok(format!(
                "{request_count} requests over {link_count} links from {} verified identities; plaintext is \
                 rejected at every listener",
                peers.len()
            )),
            false => Err("no connection between sidecars observed".to_owned()),
        }
    }

    fn check_denial(&self) -> DemoCheck {
        let (ok, detail) = match &self.denial_outcome {
            Ok(403) => (true, "403".to_owned()),
            Ok(status) => (false, format!("got {status}")),
            Err(error) => (false, error.clone()),
        };
        DemoCheck { name: "a client without permission is denied".to_owned(), ok, detail }
    }
}

fn check_result(name: &str, result: Result<String, String>) -> DemoCheck {
    DemoCheck {
        name: name.to_owned(),
        ok: result.is_ok(),
        detail: result.unwrap_or_else(|problem| problem),
    }
}

fn service_report(before: Option<&Observation>, after: &Observation) -> ServiceReport {
    let requests: u64 = after.inbound_series().map(|series| series.requests).sum();
    let success_count: u64 = after.inbound_series().map(|series| series.success).sum();
    // The maximum quantile of several series is an upper bound of their combined quantile.
    let highest_quantile = |quantile: fn(&super::observe::RequestSeries) -> f64| {
        let counted_series = after.inbound_series().filter(|series| series.requests > 0);
        let highest_ms = counted_series.map(quantile).reduce(f64::max)?;
        Duration::try_from_secs_f64(highest_ms / 1e3).ok()
    };
    // The sidecar's CPU time covers requests in both directions. The counters of a restarted sidecar begin at zero,
    // so they may be lower than before.
    let passed_requests = after.request_count()
        - before.map_or(0, Observation::request_count).min(after.request_count());
    let usages = after.usage.zip(before.and_then(|before| before.usage));
    let cpu_time = usages.map(|(after, before)| after.cpu.saturating_sub(before.cpu));
    ServiceReport {
        name: parse_service_name(&after.workload),
        requests,
        success_rate: (requests > 0).then(|| success_count as f64 / requests as f64),
        p50: highest_quantile(|series| series.p50_ms),
        p90: highest_quantile(|series| series.p90_ms),
        p99: highest_quantile(|series| series.p99_ms),
        sidecar_cpu_us_per_request: cpu_time
            .filter(|_| passed_requests > 0)
            .map(|cpu_time| cpu_time.as_secs_f64() * 1e6 / passed_requests as f64),
        sidecar_private_kib: after.usage.map(|usage| usage.private_kib),
        sidecar_pss_kib: after.usage.map(|usage| usage.pss_kib),
    }
}

/// Removes the number from the name of a workload: `reviews-v1` for `reviews-v1-1`.
fn parse_service_name(workload: &str) -> String {
    let name = workload.rsplit_once('-').map_or(workload, |(name, _)| name);
    name.to_owned()
}

fn check_participation(services: &[ServiceReport]) -> DemoCheck {
    let idle_services: Vec<&str> = services
        .iter()
        .filter(|service| service.requests == 0)
        .map(|service| service.name.as_str())
        .collect();
    DemoCheck {
        name: "every service received requests".to_owned(),
        ok: idle_services.is_empty() && !services.is_empty(),
        detail: match idle_services.is_empty() {
            true => format!("{} services", services.len()),
            false => format!("without requests: {}", idle_services.join(", ")),
        },
    }
}

/// Returns the split of the requests for reviews, except those that a header routes to version 2.
fn reviews_split(services: &[ServiceReport]) -> BTreeMap<String, SplitShare> {
    let request_count = |name: &str| {
        let service = services.iter().find(|service| service.name == name);
        service.map_or(0, |service| service.requests)
    };
    let total_count: u64 = EXPECTED_SPLIT.iter().map(|(name, _)| request_count(name)).sum();
    let to_entry = |(name, expected): &(&str, f64)| {
        let requests = request_count(name);
        let share = match total_count {
            0 => 0.0,
            total_count => requests as f64 / total_count as f64,
        };
        ((*name).to_owned(), SplitShare { requests, share, expected: *expected })
    };
    EXPECTED_SPLIT.iter().map(to_entry).collect()
}

fn check_split(split: &BTreeMap<String, SplitShare>) -> Result<String, String> {
    let total_count: u64 = split.values().map(|share| share.requests).sum();
    let share_texts =
        split.iter().map(|(name, share)| format!("{name} {:.1} %", share.share * 100.0));
    let detail = format!("{} of {total_count}", share_texts.collect::<Vec<_>>().join(", "));
    let is_plausible = split.values().all(|share| {
        let deviation =
            (share.expected * (1.0 - share.expected) / total_count.max(1) as f64).sqrt();
        (share.share - share.expected).abs() <= MAX_DEVIATIONS * deviation
    });
    match is_plausible && total_count > 0 {
        true => Ok(detail),
        false => Err(detail),
    }
}

/// The expected shares of requests for reviews: the weights in the manifest.
const EXPECTED_SPLIT: [(&str, f64); 2] = [("reviews-v1", 0.9), ("reviews-v3", 0.1)];
/// The maximum deviation from an expected share, in standard deviations; chance exceeds it in fewer than one of a
/// million runs.
const MAX_DEVIATIONS: f64 = 5.0;
/// The prefix of all identities in the demo.
const IDENTITY_PREFIX: &str = "spiffe://cluster.local/ns/bookinfo/sa/";

#[cfg(test)]
mod tests;

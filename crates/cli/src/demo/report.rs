//! Formats the report of the demo: tables for people, one JSON object for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Serialize, Serializer};

/// The results of a demo run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DemoReport {
    /// The duration of the measurement.
    #[serde(rename = "duration_s", serialize_with = "serialize_seconds")]
    pub(crate) duration: Duration,
    /// True if all observed traffic between sidecars used mutual TLS.
    pub(crate) mtls: bool,
    /// The response status for the client without permission; `None` if it got no response.
    pub(crate) denied_status: Option<u16>,
    /// Requests to a service with a traffic split, by backend.
    pub(crate) split: BTreeMap<String, SplitShare>,
    /// Results per service.
    pub(crate) services: Vec<ServiceReport>,
    /// The checks of the demo, with their results.
    pub(crate) checks: Vec<DemoCheck>,
}

/// Requests to one backend of a split.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct SplitShare {
    /// The number of requests.
    pub(crate) requests: u64,
    /// The backend's share of all requests, 0 to 1.
    pub(crate) share: f64,
    /// The configured share, 0 to 1.
    pub(crate) expected: f64,
}

/// Requests of one service and the cost of its sidecars. Values that could not be measured are `None`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ServiceReport {
    /// The name of the service; for reviews with the version.
    pub(crate) name: String,
    /// Completed requests, including failures.
    pub(crate) requests: u64,
    /// The share of successful requests, 0 to 1; `None` without requests.
    pub(crate) success_rate: Option<f64>,
    /// The median latency.
    #[serde(rename = "p50_ms", serialize_with = "serialize_milliseconds")]
    pub(crate) p50: Option<Duration>,
    /// The 90th percentile latency.
    #[serde(rename = "p90_ms", serialize_with = "serialize_milliseconds")]
    pub(crate) p90: Option<Duration>,
    /// The 99th percentile latency.
    #[serde(rename = "p99_ms", serialize_with = "serialize_milliseconds")]
    pub(crate) p99: Option<Duration>,
    /// CPU time of the service's sidecars per request that passed them, in microseconds.
    pub(crate) sidecar_cpu_us_per_request: Option<f64>,
    /// Private memory of the service's sidecars, in KiB.
    pub(crate) sidecar_private_kib: Option<u64>,
    /// Proportional set size of the service's sidecars, in KiB.
    pub(crate) sidecar_pss_kib: Option<u64>,
}

/// One check of the demo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct DemoCheck {
    /// The expectation.
    pub(crate) name: String,
    /// True if the expectation held.
    pub(crate) ok: bool,
    /// The observation.
    pub(crate) detail: String,
}

impl DemoReport {
    /// True if all checks passed; a report without checks fails.
    pub(crate) fn has_passed(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|check| check.ok)
    }

    /// Formats the report as one JSON object.
    pub(crate) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// Formats the report for a terminal.
    pub(crate) fn to_text(&self) -> String {
        let mut text = services_table(&self.services).to_string();
        text.push('\n');
        if !self.split.is_empty() {
            text.push('\n');
            text.push_str(&split_table(&self.split).to_string());
            text.push('\n');
        }
        text.push('\n');
        for DemoCheck { name, ok, detail } in &self.checks {
            let symbol = if *ok { "✓" } else { "✗" };
            writeln!(text, "{symbol} {name}: {detail}").expect("writing to a String never fails");
        }
        text
    }
}

fn services_table(services: &[ServiceReport]) -> Table {
    let mut table = new_table(&[
        "service",
        "requests",
        "success",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "sidecar CPU µs/request",
        "sidecar private KiB",
        "sidecar PSS KiB",
    ]);
    for service in services {
        let format_latency = |duration: Option<Duration>| {
            or_dash(duration.map(|duration| format!("{:.2}", to_milliseconds(duration))))
        };
        table.add_row([
            service.name.clone(),
            service.requests.to_string(),
            or_dash(service.success_rate.map(format_percent)),
            format_latency(service.p50),
            format_latency(service.p90),
            format_latency(service.p99),
            or_dash(service.sidecar_cpu_us_per_request.map(|cpu| format!("{cpu:.1}"))),
            or_dash(service.sidecar_private_kib.map(|kib| kib.to_string())),
            or_dash(service.sidecar_pss_kib.map(|kib| kib.to_string())),
        ]);
    }
    table
}

fn split_table(split: &BTreeMap<String, SplitShare>) -> Table {
    let mut table = new_table(&["split to", "requests", "share", "expected"]);
    for (backend, split_share) in split {
        table.add_row([
            backend.clone(),
            split_share.requests.to_string(),
            format_percent(split_share.share),
            format_percent(split_share.expected),
        ]);
    }
    table
}

/// Creates a table with text in the first column and figures in the others.
fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".to_owned())
}

/// Rounds down, so that 100 % means all requests.
fn format_percent(share: f64) -> String {
    format!("{:.2} %", (share * 10_000.0).floor() / 100.0)
}

fn to_milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

fn serialize_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

fn serialize_milliseconds<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    // Whole microseconds, the resolution of the histograms.
    duration.map(|duration| (duration.as_secs_f64() * 1e6).round() / 1e3).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_json_report_has_all_fields() {
        let text = report().to_json().unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value,
            json!({
                "duration_s": 10.5,
                "mtls": true,
                "denied_status": 403,
                "split": {
                    "reviews-v1": {"requests": 897, "share": 0.897, "expected": 0.9},
                    "reviews-v3": {"requests": 103, "share": 0.103, "expected": 0.1},
                },
                "services": [
                    {
                        "name": "ratings",
                        "requests": 100_000,
                        "success_rate": 0.99999,
                        "p50_ms": 0.812,
                        "p90_ms": 1.5,
                        "p99_ms": 12.0,
                        "sidecar_cpu_us_per_request": 7.25,
                        "sidecar_private_kib": 2048,
                        "sidecar_pss_kib": 3000,
                    },
                    {
                        "name": "idle",
                        "requests": 0,
                        "success_rate": null,
                        "p50_ms": null,
                        "p90_ms": null,
                        "p99_ms": null,
                        "sidecar_cpu_us_per_request": null,
                        "sidecar_private_kib": null,
                        "sidecar_pss_kib": null,
                    },
                ],
                "checks": [{"name": "mutual TLS", "ok": true, "detail": "12 of 12 links"}],
            })
        );
    }

    #[test]
    fn success_rates_below_one_are_not_rounded_to_100_percent() {
        let text = report().to_text();
        let row = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
        let ratings = row(" ratings ");
        for figure in ["100000", "99.99 %", "0.81", "1.50", "12.00", "7.2", "2048", "3000"] {
            assert!(ratings.contains(figure), "{figure} in {ratings}");
        }
        assert_eq!(row(" idle ").matches('–').count(), 7);
        assert!(row("reviews-v3").contains("10.30 %"));
        assert!(text.contains("✓ mutual TLS: 12 of 12 links"));
    }

    #[test]
    fn a_report_with_a_failed_check_or_without_checks_fails() {
        let mut report = report();
        assert!(report.has_passed());
        report.checks.push(DemoCheck {
            name: "denied client".to_owned(),
            ok: false,
            detail: "got 200".to_owned(),
        });
        assert!(!report.has_passed());
        assert!(report.to_text().contains("✗ denied client: got 200"));
        report.checks.clear();
        assert!(!report.has_passed());
    }

    fn report() -> DemoReport {
        let idle = ServiceReport {
            name: "idle".to_owned(),
            requests: 0,
            success_rate: None,
            p50: None,
            p90: None,
            p99: None,
            sidecar_cpu_us_per_request: None,
            sidecar_private_kib: None,
            sidecar_pss_kib: None,
        };
        let ratings = ServiceReport {
            name: "ratings".to_owned(),
            requests: 100_000,
            success_rate: Some(0.99999),
            p50: Some(Duration::from_micros(812)),
            p90: Some(Duration::from_micros(1_500)),
            p99: Some(Duration::from_millis(12)),
            sidecar_cpu_us_per_request: Some(7.25),
            sidecar_private_kib: Some(2048),
            sidecar_pss_kib: Some(3000),
        };
        let share = |requests, share, expected| SplitShare { requests, share, expected };
        DemoReport {
            duration: Duration::from_millis(10_500),
            mtls: true,
            denied_status: Some(403),
            split: BTreeMap::from([
                ("reviews-v1".to_owned(), share(897, 0.897, 0.9)),
                ("reviews-v3".to_owned(), share(103, 0.103, 0.1)),
            ]),
            services: vec![ratings, idle],
            checks: vec![DemoCheck {
                name: "mutual TLS".to_owned(),
                ok: true,
                detail: "12 of 12 links".to_owned(),
            }],
        }
    }
}

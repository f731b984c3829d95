//! JMeter's sample file, and the figures derived from it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

use crate::bench::driver::{LoadLatency, LoadResult};

/// The sample file, and the measured period.
#[derive(Debug)]
pub(in crate::bench::driver) struct Samples {
    pub(super) file: PathBuf,
    pub(super) measured_from: SystemTime,
    pub(super) measured_duration: Duration,
}

impl Samples {
    /// Returns the figures of the requests in the measured period.
    ///
    /// # Errors
    /// If the file cannot be read or parsed.
    pub(in crate::bench::driver) fn read(&self) -> anyhow::Result<LoadResult> {
        let file = File::open(&self.file).context("JMeter wrote no samples")?;
        let from = self.measured_from.duration_since(UNIX_EPOCH).context("the clock")?;
        let from = u64::try_from(from.as_millis())?;
        let mut counts = SampleCounts::new(from, self.measured_duration);
        counts.read(BufReader::new(file)).context("the samples of JMeter")?;
        Ok(counts.into_results())
    }
}

/// Counted requests. As in `leno load`, requests that started in the measured period are measured, but the
/// throughput counts responses within it.
#[derive(Debug)]
struct SampleCounts {
    /// The measured period, in milliseconds since the Unix epoch.
    from: u64,
    until: u64,
    responses: u64,
    requests: u64,
    statuses: BTreeMap<String, u64>,
    errors_by_kind: BTreeMap<String, u64>,
    /// The number of successful requests by latency in milliseconds.
    latencies_ms: BTreeMap<u64, u64>,
}

/// One line of the file: one request.
struct Sample<'a> {
    /// The start, in milliseconds since the Unix epoch.
    started: u64,
    latency_ms: u64,
    /// A status, or the reason why there is none.
    code: &'a str,
}

impl SampleCounts {
    fn new(from: u64, length: Duration) -> Self {
        Self {
            from,
            until: from + u64::try_from(length.as_millis()).unwrap_or(u64::MAX / 2),
            responses: 0,
            requests: 0,
            statuses: BTreeMap::new(),
            errors_by_kind: BTreeMap::new(),
            latencies_ms: BTreeMap::new(),
        }
    }

    fn read(&mut self, mut lines: impl BufRead) -> anyhow::Result<()> {
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let names: Vec<&str> = line.trim_end().split(',').collect();
        let find_column = |name: &str| {
            let position = names.iter().position(|header| *header == name);
            position.with_context(|| format!("there is no column {name} in `{}`", line.trim_end()))
        };
        let columns =
            [find_column("timeStamp")?, find_column("elapsed")?, find_column("responseCode")?];
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end();
            self.add_sample(
                &Sample::parse(line, columns).with_context(|| format!("the line `{line}`"))?,
            );
        }
    }

    fn add_sample(&mut self, sample: &Sample<'_>) {
        let measured = self.from..self.until;
        let status = sample.code.parse::<u16>().ok();
        if status.is_some() && measured.contains(&(sample.started + sample.latency_ms)) {
            self.responses += 1;
        }
        if !measured.contains(&sample.started) {
            return;
        }
        self.requests += 1;
        if let Some(status) = status {
            *self.statuses.entry(status.to_string()).or_default() += 1;
        }
        match status {
            Some(200..300) => *self.latencies_ms.entry(sample.latency_ms).or_default() += 1,
            Some(status) => {
                *self.errors_by_kind.entry(format!("status-{status}")).or_default() += 1
            }
            None => {
                // Such as `Non HTTP response code: java.net.SocketTimeoutException`.
                let kind = sample.code.rsplit(['.', ' ']).next().unwrap_or(sample.code);
                *self.errors_by_kind.entry(kind.to_owned()).or_default() += 1;
            }
        }
    }

    fn into_results(self) -> LoadResult {
        let seconds = (self.until - self.from) as f64 / 1e3;
        let successes: u64 = self.latencies_ms.values().sum();
        let sum: u64 = self.latencies_ms.iter().map(|(ms, count)| ms * count).sum();
        let us = |ms: u64| ms as f64 * 1e3;
        let percentile = |fraction: f64| {
            self.latency_of_fastest((fraction * successes as f64).ceil() as u64).map(us)
        };
        LoadResult {
            requests: self.requests,
            errors: self.errors_by_kind.values().sum(),
            rps: self.responses as f64 / seconds,
            latency_us: LoadLatency {
                mean: (successes > 0).then(|| us(sum) / successes as f64),
                p50: percentile(0.5),
                p90: percentile(0.9),
                p95: percentile(0.95),
                p99: percentile(0.99),
                p999: percentile(0.999),
                max: self.latencies_ms.keys().next_back().copied().map(us),
            },
            errors_by_kind: self.errors_by_kind,
            statuses: self.statuses,
        }
    }

    /// Returns the maximum latency of the fastest `count` successful requests; `None` without any.
    fn latency_of_fastest(&self, count: u64) -> Option<u64> {
        let mut sum = 0;
        let mut latencies = self.latencies_ms.iter();
        latencies.find_map(|(ms, requests)| {
            sum += requests;
            (sum >= count).then_some(*ms)
        })
    }
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str, [started, latency_ms, code]: [usize; 3]) -> anyhow::Result<Self> {
        let fields: Vec<&str> = line.split(',').collect();
        let field = |index: usize| fields.get(index).copied().context("a field is missing");
        Ok(Self {
            started: field(started)?.parse().context("a moment")?,
            latency_ms: field(latency_ms)?.parse().context("a duration")?,
            code: field(code)?.trim_matches('"'),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_results(text: &str) -> anyhow::Result<LoadResult> {
        let mut counts = SampleCounts::new(1000, Duration::from_secs(2));
        counts.read(text.as_bytes())?;
        Ok(counts.into_results())
    }

    #[test]
    fn requests_count_by_their_start_and_responses_by_their_end() {
        let text = "timeStamp,elapsed,responseCode\n\
                    900,50,200\n\
                    990,20,200\n\
                    1000,10,200\n\
                    2990,30,200\n\
                    1500,20,503\n\
                    1600,5000,Non HTTP response code: java.net.SocketTimeoutException\n\
                    3000,10,200\n";
        let results = parse_results(text).unwrap();
        assert_eq!((results.requests, results.errors), (4, 2));
        let kinds: Vec<&str> = results.errors_by_kind.keys().map(String::as_str).collect();
        assert_eq!(kinds, ["SocketTimeoutException", "status-503"]);
        assert_eq!(results.statuses["200"], 2);
        assert!((results.rps - 1.5).abs() < 1e-9, "{}", results.rps);
        assert_eq!(results.latency_us.max, Some(30_000.0));
        assert_eq!(results.latency_us.mean, Some(20_000.0));
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_figures() {
        let mut text = "elapsed,responseCode,timeStamp\n".to_owned();
        for ms in (1..=1000).rev() {
            text.push_str(&format!("{ms},200,1000\n"));
        }
        let latency = parse_results(&text).unwrap().latency_us;
        let ms = |us: Option<f64>| us.unwrap() / 1e3;
        let figures = [latency.p50, latency.p90, latency.p95, latency.p99, latency.p999];
        assert_eq!(figures.map(ms), [500.0, 900.0, 950.0, 990.0, 999.0]);
    }

    #[test]
    fn unreadable_samples_are_errors() {
        assert_eq!(parse_results("timeStamp,elapsed,responseCode\n").unwrap().latency_us.p50, None);
        for text in ["", "timeStamp,elapsed\n", "timeStamp,elapsed,responseCode\n1000,x,200\n"] {
            assert!(parse_results(text).is_err(), "{text}");
        }
    }
}

//! Reads JMeter's sample file, which has a line per request, and computes the figures of the load from it.

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
        let since_epoch = self.measured_from.duration_since(UNIX_EPOCH).context("the clock")?;
        let measured_from_ms = u64::try_from(since_epoch.as_millis())?;
        let mut counts = SampleCounts::new(measured_from_ms, self.measured_duration);
        counts.read(BufReader::new(file)).context("the samples of JMeter")?;
        Ok(counts.into_results())
    }
}

/// Statistics of the samples. As in `leno load`, `request_count` and the latencies are those of requests that started in the
/// measured period; `response_count` is that of responses that arrived in the measured period, for the throughput.
#[derive(Debug)]
struct SampleCounts {
    /// The start of the measured period, in milliseconds since the Unix epoch.
    measured_from_ms: u64,
    /// The exclusive end of the measured period, in milliseconds since the Unix epoch.
    measured_until_ms: u64,
    response_count: u64,
    request_count: u64,
    statuses: BTreeMap<String, u64>,
    errors_by_kind: BTreeMap<String, u64>,
    /// The number of successful requests by latency in milliseconds.
    counts_by_latency_ms: BTreeMap<u64, u64>,
}

/// One line of the file: one request.
struct Sample<'a> {
    /// The start, in milliseconds since the Unix epoch.
    start_ms: u64,
    latency_ms: u64,
    /// The HTTP status, or JMeter's error text if there was no response.
    response_code: &'a str,
}

/// The positions of the fields in the lines of the file, from 0.
#[derive(Debug, Clone, Copy)]
struct SampleColumns {
    start: usize,
    latency: usize,
    response_code: usize,
}

impl SampleColumns {
    fn from_header(header: &str) -> anyhow::Result<Self> {
        let names: Vec<&str> = header.split(',').collect();
        let find_column = |name: &str| {
            let position = names.iter().position(|candidate| *candidate == name);
            position.with_context(|| format!("there is no column {name} in `{header}`"))
        };
        Ok(Self {
            start: find_column("timeStamp")?,
            latency: find_column("elapsed")?,
            response_code: find_column("responseCode")?,
        })
    }
}

impl SampleCounts {
    fn new(measured_from_ms: u64, measured_duration: Duration) -> Self {
        Self {
            measured_from_ms,
            // Half of the maximum, so that the sum does not overflow.
            measured_until_ms: measured_from_ms
                + u64::try_from(measured_duration.as_millis()).unwrap_or(u64::MAX / 2),
            response_count: 0,
            request_count: 0,
            statuses: BTreeMap::new(),
            errors_by_kind: BTreeMap::new(),
            counts_by_latency_ms: BTreeMap::new(),
        }
    }

    /// Adds all samples of the file, whose first line names the columns.
    fn read(&mut self, mut file: impl BufRead) -> anyhow::Result<()> {
        let mut header = String::new();
        file.read_line(&mut header)?;
        let columns = SampleColumns::from_header(header.trim_end())?;
        loop {
            let mut line = String::new();
            if file.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let sample_line = line.trim_end();
            self.add_sample(
                &Sample::parse(sample_line, columns)
                    .with_context(|| format!("the line `{sample_line}`"))?,
            );
        }
    }

    fn add_sample(&mut self, sample: &Sample<'_>) {
        let measured_period = self.measured_from_ms..self.measured_until_ms;
        let status = sample.response_code.parse::<u16>().ok();
        if status.is_some() && measured_period.contains(&(sample.start_ms + sample.latency_ms)) {
            self.response_count += 1;
        }
        if !measured_period.contains(&sample.start_ms) {
            return;
        }
        self.request_count += 1;
        if let Some(status) = status {
            *self.statuses.entry(status.to_string()).or_default() += 1;
        }
        match status {
            Some(200..300) => *self.counts_by_latency_ms.entry(sample.latency_ms).or_default() += 1,
            Some(status) => {
                *self.errors_by_kind.entry(format!("status-{status}")).or_default() += 1
            }
            None => {
                // The last word of a text such as `Non HTTP response code: java.net.SocketTimeoutException` is the
                // kind.
                let kind =
                    sample.response_code.rsplit(['.', ' ']).next().unwrap_or(sample.response_code);
                *self.errors_by_kind.entry(kind.to_owned()).or_default() += 1;
            }
        }
    }

    fn into_results(self) -> LoadResult {
        let seconds = (self.measured_until_ms - self.measured_from_ms) as f64 / 1e3;
        let successes: u64 = self.counts_by_latency_ms.values().sum();
        let latency_sum_ms: u64 =
            self.counts_by_latency_ms.iter().map(|(ms, count)| ms * count).sum();
        let to_micros = |ms: u64| ms as f64 * 1e3;
        let percentile = |fraction: f64| {
            self.latency_of_fastest((fraction * successes as f64).ceil() as u64).map(to_micros)
        };
        LoadResult {
            requests: self.request_count,
            errors: self.errors_by_kind.values().sum(),
            rps: self.response_count as f64 / seconds,
            latency_us: LoadLatency {
                mean: (successes > 0).then(|| to_micros(latency_sum_ms) / successes as f64),
                p50: percentile(0.5),
                p90: percentile(0.9),
                p95: percentile(0.95),
                p99: percentile(0.99),
                p999: percentile(0.999),
                max: self.counts_by_latency_ms.keys().next_back().copied().map(to_micros),
            },
            errors_by_kind: self.errors_by_kind,
            statuses: self.statuses,
        }
    }

    /// Returns the maximum latency in milliseconds of the `count` fastest successful requests; `None` if no request
    /// succeeded.
    fn latency_of_fastest(&self, count: u64) -> Option<u64> {
        let mut counted_requests = 0;
        let mut latencies = self.counts_by_latency_ms.iter();
        latencies.find_map(|(ms, requests)| {
            counted_requests += requests;
            (counted_requests >= count).then_some(*ms)
        })
    }
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str, columns: SampleColumns) -> anyhow::Result<Self> {
        let fields: Vec<&str> = line.split(',').collect();
        let field = |index: usize| fields.get(index).copied().context("a field is missing");
        Ok(Self {
            start_ms: field(columns.start)?.parse().context("a moment")?,
            latency_ms: field(columns.latency)?.parse().context("a duration")?,
            response_code: field(columns.response_code)?.trim_matches('"'),
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

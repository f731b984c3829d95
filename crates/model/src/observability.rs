//! Observability settings: tracing, access log, metrics push, and their collectors.

use std::fmt;
use std::time::Duration;

use crate::collector::{Collector, Logs, Metrics, OtlpCollector, Traces, ZipkinCollector};
use crate::definition::{
    Definition, ManifestBuilder, ManifestValue, Remedy, Schema, TextForm, TextProblem, TextSchema,
};
use crate::log_template::LogTemplate;

/// The observability settings of a sidecar. The default disables tracing and metrics push.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Definition)]
pub struct Observability {
    /// Traces: the traced requests, and the destination of their spans.
    #[field(absent = "no traces")]
    pub tracing: Option<Tracing>,
    /// Access log: the logged requests, the format, and the destination of the lines.
    #[field(absent = "the start options of each sidecar, which log nothing by default")]
    pub access_log: Option<AccessLog>,
    /// Push of the metrics of sidecars and the control plane, in addition to `/metrics`.
    #[field(absent = "no push")]
    pub metrics: Option<Box<MetricsPush>>,
}

/// The tracing settings: the sampled requests, and the collector of their spans.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tracing {
    /// The share of sampled traces, among those that begin in the mesh.
    pub sampling: Sampling,
    /// True if every failed request produces a span, even if its trace is not sampled.
    pub errors: bool,
    /// The propagation format of traces that begin in the mesh.
    pub propagation: PropagationFormat,
    /// The collector of spans.
    pub collector: Collector,
}

/// The fields of the tracing settings.
#[derive(Definition)]
#[definition(builds = Tracing)]
struct TracingFields {
    /// Sampled share of the traces that begin in the mesh, `0%` to `100%` with at most four decimals.
    #[field(default = "1%")]
    sampling: Sampling,
    /// Export of a span for every failed request, even if its trace is not sampled.
    #[field(default = "true")]
    errors: bool,
    /// Format of the trace contexts that begin in the mesh: the header `traceparent`, the single header `b3`, or the several
    /// headers of B3.
    #[field(default = "w3c")]
    propagation: PropagationFormat,
    /// Collector of spans.
    export: SpanExport,
}

/// The collector of spans.
#[derive(Definition)]
#[definition(noun = "collector")]
enum SpanExport {
    /// Collector for OTLP.
    Otlp(OtlpCollector<Traces>),
    /// Collector for Zipkin v2 JSON.
    Zipkin(ZipkinCollector),
}

impl TracingFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> Tracing {
        let TracingFields { sampling, errors, propagation, export } = self;
        let collector = match export {
            SpanExport::Otlp(collector) => collector.0,
            SpanExport::Zipkin(collector) => collector.0,
        };
        Tracing { sampling, errors, propagation, collector }
    }
}

/// The collector of metrics, and the push interval.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MetricsPush {
    /// The collector; never Zipkin.
    pub collector: Collector,
    /// The time between two pushes.
    pub interval: Duration,
}

impl MetricsPush {
    /// The default interval, that of OpenTelemetry's periodic exporting metric reader.
    pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(60);
    /// The minimum interval, to limit the load on sidecars.
    pub const MIN_INTERVAL: Duration = Duration::from_secs(1);
    /// The maximum interval: collectors consider a source stale when it sends no metrics for longer.
    pub const MAX_INTERVAL: Duration = Duration::from_secs(3600);
}

/// The fields of metrics push.
#[derive(Definition)]
#[definition(builds = MetricsPush)]
struct MetricsPushFields {
    /// Collector of metrics.
    export: MetricsExport,
}

/// The kinds of collectors of metrics.
#[derive(Definition)]
struct MetricsExport {
    /// Collector for OTLP.
    otlp: MetricsCollector,
}

/// A collector of metrics, and the push interval.
#[derive(Definition)]
struct MetricsCollector {
    /// The collector.
    #[field(include)]
    collector: OtlpCollector<Metrics>,
    /// Time between two pushes. The first push comes after a part of it, which differs between sidecars.
    #[field(duration(MetricsPush::MIN_INTERVAL, MetricsPush::MAX_INTERVAL), default = "60s")]
    interval: Duration,
}

impl MetricsPushFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> MetricsPush {
        let MetricsCollector { collector, interval } = self.export.otlp;
        MetricsPush { collector: collector.0, interval }
    }
}

/// The access log settings: the logged requests, the format of the lines, and their destination.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccessLog {
    /// The share of successful requests that are logged.
    pub sampling: Sampling,
    /// True if all failed requests are logged, regardless of `sampling`.
    pub errors: bool,
    /// The format of a line.
    pub format: LogFormat,
    /// The collector of log lines, never Zipkin; standard output when absent.
    pub collector: Option<Collector>,
}

/// The fields of the access log settings.
#[derive(Definition)]
#[definition(builds = AccessLog)]
struct AccessLogFields {
    /// Sampled share of the requests and byte streams that did not fail, `0%` to `100%` with at most four decimals.
    #[field(default = "100%")]
    sampling: Sampling,
    /// Log of all failures. With `false`, failures are sampled like other requests.
    #[field(default = "true")]
    errors: bool,
    /// Text of a line, with names of fields in braces, such as `{method} {path}`. `{{` and `}}` are literal braces.
    #[field(absent = "a JSON object with all fields")]
    template: Option<LogTemplate>,
    /// Collector of lines.
    #[field(absent = "standard output")]
    export: Option<LogExport>,
}

/// The kinds of collectors of access log lines.
#[derive(Definition)]
struct LogExport {
    /// Collector for OTLP.
    otlp: OtlpCollector<Logs>,
}

impl AccessLogFields {
    fn build_type(self, _: &mut ManifestBuilder<'_>) -> AccessLog {
        let AccessLogFields { sampling, errors, template, export } = self;
        let format = template.map_or(LogFormat::Json, LogFormat::Template);
        let collector = export.map(|export| export.otlp.0);
        AccessLog { sampling, errors, format, collector }
    }
}

/// The format of an access log line.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LogFormat {
    /// A JSON object with all fields.
    Json,
    /// Text from a template.
    Template(LogTemplate),
}

impl AccessLog {
    /// Creates a log of all requests, as JSON.
    #[must_use]
    pub fn json() -> Self {
        Self { sampling: Sampling::ALL, errors: true, format: LogFormat::Json, collector: None }
    }
}

/// A share of requests, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sampling(u32);

impl Sampling {
    /// The share of all requests.
    pub const ALL: Self = Self(MILLION);
    /// The default share: 1 %.
    pub const DEFAULT: Self = Self(MILLION / 100);

    /// Creates a share from millionths; `None` if it exceeds one million.
    #[must_use]
    pub const fn from_millionths(millionths: u32) -> Option<Self> {
        if millionths <= MILLION { Some(Self(millionths)) } else { None }
    }

    /// Returns the share as a number of millionths.
    #[must_use]
    pub const fn millionths(self) -> u32 {
        self.0
    }

    /// Parses a percentage, such as `1%` or `0.05%`, with at most four decimals; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let percentage = text.strip_suffix('%')?;
        let (integer, decimals) = percentage.split_once('.').unwrap_or((percentage, "0"));
        let is_number = |text: &str, max_digits| {
            (1..=max_digits).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !is_number(integer, 3) || !is_number(decimals, 4) {
            return None;
        }
        let integer: u32 = integer.parse().ok()?;
        let decimals: u32 = format!("{decimals:0<4}").parse().ok()?;
        Self::from_millionths(integer.checked_mul(MILLION / 100)?.checked_add(decimals)?)
    }

    /// True if a request is sampled. `random` is a uniformly distributed random number.
    #[must_use]
    pub fn is_sampled(self, random: u64) -> bool {
        // Scales the random number to the range from 0 to 999,999.
        (u128::from(random) * u128::from(MILLION)) >> 64 < u128::from(self.0)
    }
}

impl Definition for Sampling {
    const SCHEMA: Schema = Schema::Text(&SAMPLING);

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        Self::parse(&value.into_text()?)
    }
}

/// Checks a percentage. For a number without `%`, the percentage is proposed.
fn check_sampling(text: &str) -> Result<(), TextProblem> {
    if Sampling::parse(text).is_some() {
        return Ok(());
    }
    let percentage = format!("{text}%");
    let remedy = match Sampling::parse(&percentage) {
        Some(_) => Remedy::Replacement(percentage),
        None => Remedy::Hint(
            "use one from `0%` to `100%` with at most four decimals, such as `1%`".into(),
        ),
    };
    Err(TextProblem { problem: "is not a percentage".into(), remedy })
}

/// Formats the percentage so that it can be parsed again.
impl fmt::Display for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (integer, decimals) = (self.0 / (MILLION / 100), self.0 % (MILLION / 100));
        match decimals {
            0 => write!(f, "{integer}%"),
            _ => write!(f, "{integer}.{}%", format!("{decimals:04}").trim_end_matches('0')),
        }
    }
}

/// The propagation format of a trace context in request headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Definition)]
pub enum PropagationFormat {
    /// The W3C header `traceparent`.
    #[field(name = "w3c")]
    W3c,
    /// The single header `b3`.
    #[field(name = "b3")]
    B3,
    /// The header `X-B3-TraceId` and its related headers.
    #[field(name = "b3multi")]
    B3Multi,
}

impl PropagationFormat {
    /// All values, in the order of the documentation.
    pub const ALL: &'static [Self] = &[Self::W3c, Self::B3, Self::B3Multi];
}

/// A percentage with `%`. A number is accepted as well, because its problem is the missing `%`.
const SAMPLING: TextSchema = TextSchema::new(9, check_sampling).with_form(TextForm::Literal);
/// The share of all requests: one million millionths.
const MILLION: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_trip_exactly() {
        for (text, millionths) in [
            ("0%", 0),
            ("1%", 10_000),
            ("100%", 1_000_000),
            ("0.05%", 500),
            ("12.5%", 125_000),
            ("0.0001%", 1),
        ] {
            let sampling = Sampling::parse(text).unwrap();
            assert_eq!(sampling.millionths(), millionths, "{text}");
            assert_eq!(sampling.to_string(), text);
        }
        for invalid in ["", "1", "%", "101%", "100.0001%", "-1%", "1 %", ".5%", "5.%", "0.00001%"] {
            assert_eq!(Sampling::parse(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn a_share_samples_its_proportion() {
        let one_percent = Sampling::DEFAULT;
        assert!(one_percent.is_sampled(0) && !one_percent.is_sampled(u64::MAX));
        assert!(
            one_percent.is_sampled(u64::MAX / 100 - 1)
                && !one_percent.is_sampled(u64::MAX / 100 + 1)
        );
        let zero = Sampling::from_millionths(0).unwrap();
        assert!(!zero.is_sampled(0) && Sampling::ALL.is_sampled(u64::MAX));
    }
}

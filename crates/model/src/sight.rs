//! What operators see: which requests are traced and logged, whether metrics are pushed, and where all that goes.

use std::fmt;
use std::time::Duration;

use crate::collector::Collector;
use crate::log_template::LogTemplate;

/// What operators see: of single requests, and of what is counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Sight {
    /// Which are traced; none when absent.
    pub tracing: Option<Tracing>,
    /// Which are logged; what each sidecar was started with when absent.
    pub access_log: Option<AccessLog>,
    /// Whether and where metrics are pushed; they are there to be asked for all the same.
    pub metrics: Option<Box<MetricsPush>>,
}

/// Which requests are traced, and where their spans go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tracing {
    /// How many of the traces that begin in the mesh.
    pub sampling: Sampling,
    /// Whether a request that failed leaves a span although its trace is not sampled.
    pub errors: bool,
    /// How the context of a trace is written that begins in the mesh.
    pub begins: ContextForm,
    /// Where spans go.
    pub collector: Collector,
}

/// Where metrics are pushed, and how often.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MetricsPush {
    /// Where they go; never one of Zipkin.
    pub collector: Collector,
    /// How long it is from one push to the next.
    pub interval: Duration,
}

impl MetricsPush {
    /// As OpenTelemetry has it for readers that push periodically.
    pub const INTERVAL: Duration = Duration::from_secs(60);
    /// More often is not asked of a sidecar.
    pub const INTERVAL_MIN: Duration = Duration::from_secs(1);
    /// Collectors take what is silent for longer to be gone.
    pub const INTERVAL_MAX: Duration = Duration::from_secs(3600);
}

/// Which requests are logged, and how.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AccessLog {
    /// How many of those that did not fail.
    pub sampling: Sampling,
    /// Whether all are logged that failed.
    pub errors: bool,
    /// How a line is written.
    pub form: LogForm,
    /// Where lines go, never one of Zipkin; to the standard output when absent.
    pub collector: Option<Collector>,
}

/// How a line of the access log is written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LogForm {
    /// As one object of JSON.
    Json,
    /// By a template.
    Template(LogTemplate),
}

impl AccessLog {
    /// Every request, as JSON.
    #[must_use]
    pub fn json() -> Self {
        Self { sampling: Sampling::ALL, errors: true, form: LogForm::Json, collector: None }
    }
}

/// A share of requests, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sampling(u32);

impl Sampling {
    /// All of them.
    pub const ALL: Self = Self(MILLION);
    /// One of a hundred.
    pub const DEFAULT: Self = Self(MILLION / 100);

    /// So many of a million; `None` beyond all of them.
    #[must_use]
    pub const fn of_millionths(millionths: u32) -> Option<Self> {
        if millionths <= MILLION { Some(Self(millionths)) } else { None }
    }

    /// So many of a million.
    #[must_use]
    pub const fn millionths(self) -> u32 {
        self.0
    }

    /// Reads a percentage, such as `1%` or `0.05%`, with at most four decimals.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%')?;
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str, most| {
            (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !digits(whole, 3) || !digits(decimals, 4) {
            return None;
        }
        let whole: u32 = whole.parse().ok()?;
        let decimals: u32 = format!("{decimals:0<4}").parse().ok()?;
        Self::of_millionths(whole.checked_mul(MILLION / 100)?.checked_add(decimals)?)
    }

    /// Whether a request is one of them, by a random number.
    #[must_use]
    pub fn takes(self, draw: u64) -> bool {
        (u128::from(draw) * u128::from(MILLION)) >> 64 < u128::from(self.0)
    }
}

/// As it is read.
impl fmt::Display for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, decimals) = (self.0 / (MILLION / 100), self.0 % (MILLION / 100));
        match decimals {
            0 => write!(f, "{whole}%"),
            _ => write!(f, "{whole}.{}%", format!("{decimals:04}").trim_end_matches('0')),
        }
    }
}

/// How the context of a trace is written in the headers of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContextForm {
    /// `traceparent`, as the W3C has it.
    W3c,
    /// `b3`, in one header.
    B3,
    /// `X-B3-TraceId` and its siblings.
    B3Multi,
}

impl ContextForm {
    /// All of them, with the words of manifests.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("w3c", Self::W3c), ("b3", Self::B3), ("b3multi", Self::B3Multi)];
}

const MILLION: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_read_exactly_and_written_as_they_are_read() {
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
        for bad in ["", "1", "%", "101%", "100.0001%", "-1%", "1 %", ".5%", "5.%", "0.00001%"] {
            assert_eq!(Sampling::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_share_takes_what_it_says() {
        let one = Sampling::DEFAULT;
        assert!(one.takes(0) && !one.takes(u64::MAX));
        assert!(one.takes(u64::MAX / 100 - 1) && !one.takes(u64::MAX / 100 + 1));
        let none = Sampling::of_millionths(0).unwrap();
        assert!(!none.takes(0) && Sampling::ALL.takes(u64::MAX));
    }
}

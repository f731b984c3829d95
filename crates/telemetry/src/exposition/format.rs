//! Defines the exposition formats of metrics, and selects one by the `Accept` header of a scraper.

use crate::names::{MetricFamily, MetricKind};

/// An exposition format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpositionFormat {
    /// The Prometheus text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0, which supports exemplars.
    OpenMetrics,
}

impl ExpositionFormat {
    /// Selects the format for an `Accept` header: OpenMetrics if it is listed in a supported version and not
    /// excluded by `q=0`, otherwise the Prometheus format.
    #[must_use]
    pub fn from_accept(accept: &str) -> Self {
        let accepts_openmetrics = |range: &str| {
            let mut parameters = range.split(';').map(str::trim);
            let is_openmetrics = parameters
                .next()
                .is_some_and(|kind| kind.eq_ignore_ascii_case("application/openmetrics-text"));
            let is_excluded = |parameter: &str| {
                let weight = parameter.strip_prefix("q=").map(str::parse::<f32>);
                matches!(weight, Some(Ok(weight)) if weight <= 0.0)
            };
            let has_other_version = |parameter: &str| {
                let version = parameter.strip_prefix("version=");
                version.is_some_and(|version| !matches!(version, "1.0.0" | "0.0.1"))
            };
            is_openmetrics
                && !parameters
                    .any(|parameter| is_excluded(parameter) || has_other_version(parameter))
        };
        match accept.split(',').map(str::trim).any(accepts_openmetrics) {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    /// Returns the value of the header `Content-Type` of the response.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Returns the header lines of a metric. In OpenMetrics, the header of a counter omits the suffix `_total`.
    pub(crate) fn metric_header(self, metric: &MetricFamily) -> String {
        let MetricFamily { name, kind, help, .. } = metric;
        let name = match (self, kind) {
            (Self::OpenMetrics, MetricKind::Counter) => name.strip_suffix("_total").unwrap_or(name),
            _ => name,
        };
        format!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.as_str())
    }

    /// Returns the last line of the exposition; empty if the format requires none.
    pub(crate) const fn end_line(self) -> &'static str {
        match self {
            Self::Prometheus => "",
            Self::OpenMetrics => "# EOF\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_selected_if_it_is_accepted() {
        for (accept, format) in [
            // The request header of Prometheus 2.42.
            (
                "application/openmetrics-text;version=1.0.0,\
                 application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                ExpositionFormat::OpenMetrics,
            ),
            ("application/openmetrics-text", ExpositionFormat::OpenMetrics),
            (
                "text/plain, Application/OpenMetrics-Text; version=1.0.0; q=0.1",
                ExpositionFormat::OpenMetrics,
            ),
            ("application/openmetrics-text; version=2.0.0", ExpositionFormat::Prometheus),
            ("application/openmetrics-text;q=0", ExpositionFormat::Prometheus),
            ("text/plain", ExpositionFormat::Prometheus),
            ("*/*", ExpositionFormat::Prometheus),
            ("", ExpositionFormat::Prometheus),
        ] {
            assert_eq!(ExpositionFormat::from_accept(accept), format, "{accept}");
        }
    }
}

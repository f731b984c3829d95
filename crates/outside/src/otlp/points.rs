//! Encodes metrics as OTLP 1 export requests: `opentelemetry/proto/collector/metrics/v1/metrics_service.proto` and
//! its imports.

use std::time::SystemTime;

use leno_telemetry::names::{MetricFamily, MetricKind};
use leno_telemetry::{DurationBuckets, MetricValue, MetricVisitor};
use prost::Message;

use super::{
    ELEMENT_BYTES, InstrumentationScope, KeyValue, MAX_REQUEST_BYTES, OtlpResource, key_value,
    unix_nanoseconds,
};
use crate::resource_identity::{AttributeValue, ResourceIdentity};

/// The time range of cumulative values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeRange {
    /// The start of the range: the start of the process.
    pub start: SystemTime,
    /// The end of the range: the time at which the values are read.
    pub end: SystemTime,
}

impl TimeRange {
    /// Creates a range that ends now. It never starts after its end, even if the clock was set back.
    #[must_use]
    pub fn from_start(start: SystemTime) -> Self {
        Self { start, end: SystemTime::now().max(start) }
    }
}

/// Export requests with all metrics, filled one after the other up to a size limit. A point is one value of a metric,
/// with its labels.
#[derive(Debug)]
pub struct MetricRequests {
    resource: OtlpResource,
    /// The start of the time range, in nanoseconds since 1970.
    start_time_unix_nano: u64,
    /// The end of the time range, in nanoseconds since 1970.
    time_unix_nano: u64,
    /// The size at which a request is full, in bytes.
    max_bytes: usize,
    /// The encoded requests that are full, each with the number of its points.
    completed_requests: Vec<(Vec<u8>, u64)>,
    /// The metrics of the current request.
    metrics: Vec<OtlpMetric>,
    /// The number of points in the current request.
    point_count: u64,
    /// The approximate size of the current request in bytes.
    request_bytes: usize,
    /// The family of the current metric: its name, type and help text; `None` before the first one.
    current_family: Option<&'static MetricFamily>,
    /// The points of the current metric, unless it is a histogram.
    number_points: Vec<NumberPoint>,
    /// The points of the current metric if it is a histogram.
    histogram_points: Vec<HistogramPoint>,
}

impl MetricRequests {
    /// Creates empty requests for a telemetry source and a time range.
    #[must_use]
    pub fn new(identity: &ResourceIdentity, range: TimeRange) -> Self {
        Self::with_limit(identity, range, MAX_REQUEST_BYTES)
    }

    pub(crate) fn with_limit(
        identity: &ResourceIdentity,
        range: TimeRange,
        max_bytes: usize,
    ) -> Self {
        Self {
            resource: OtlpResource::from_source(identity),
            start_time_unix_nano: unix_nanoseconds(range.start),
            time_unix_nano: unix_nanoseconds(range.end),
            max_bytes,
            completed_requests: Vec::new(),
            metrics: Vec::new(),
            point_count: 0,
            request_bytes: 0,
            current_family: None,
            number_points: Vec::new(),
            histogram_points: Vec::new(),
        }
    }

    /// Returns the requests, each with the number of its points.
    #[must_use]
    pub fn into_requests(mut self) -> Vec<(Vec<u8>, u64)> {
        self.close_metric();
        self.close_request();
        self.completed_requests
    }

    /// Counts an added point and its bytes. If the request is full, further points of the metric are added to
    /// the next one.
    fn account_point(&mut self, bytes: usize) {
        self.point_count += 1;
        self.request_bytes += bytes + ELEMENT_BYTES;
        if self.request_bytes >= self.max_bytes {
            self.close_metric();
            self.close_request();
        }
    }

    /// Moves the points of the current metric into the current request.
    fn close_metric(&mut self) {
        let Some(family) = self.current_family else { return };
        let number_points = std::mem::take(&mut self.number_points);
        let histogram_points = std::mem::take(&mut self.histogram_points);
        if number_points.is_empty() && histogram_points.is_empty() {
            return;
        }
        let data = match family.kind {
            MetricKind::Counter => MetricData::Sum(Sum {
                points: number_points,
                temporality: CUMULATIVE,
                is_monotonic: true,
            }),
            // Leno has no summary metrics.
            MetricKind::Gauge | MetricKind::Summary => {
                MetricData::Gauge(Gauge { points: number_points })
            }
            MetricKind::Histogram => MetricData::Histogram(OtlpHistogram {
                points: histogram_points,
                temporality: CUMULATIVE,
            }),
        };
        self.metrics.push(OtlpMetric {
            name: family.name.to_owned(),
            description: family.help.to_owned(),
            unit: metric_unit(family.name).to_owned(),
            data: Some(data),
        });
    }

    /// Encodes the current request, and starts an empty one.
    fn close_request(&mut self) {
        if self.metrics.is_empty() {
            return;
        }
        let metrics = std::mem::take(&mut self.metrics);
        let scope_metrics =
            ScopeMetrics { scope: Some(InstrumentationScope::own_scope()), metrics };
        let resource = Some(self.resource.clone());
        let resource_metrics = ResourceMetrics { resource, scope_metrics: vec![scope_metrics] };
        let request = ExportMetricsRequest { resource_metrics: vec![resource_metrics] };
        self.completed_requests.push((request.encode_to_vec(), self.point_count));
        (self.point_count, self.request_bytes) = (0, 0);
    }
}

impl MetricVisitor for MetricRequests {
    fn begin_metric(&mut self, metric: &'static MetricFamily) {
        self.close_metric();
        self.current_family = Some(metric);
        // The fields of a metric are the name, the description, the unit and the data.
        self.request_bytes += metric.name.len() + metric.help.len() + 4 * ELEMENT_BYTES;
    }

    fn record_number(&mut self, labels: &[(&'static str, &str)], number: MetricValue) {
        let value = match number {
            MetricValue::Whole(number) => number_point::PointValue::Int(to_i64(number)),
            MetricValue::Seconds(seconds) => number_point::PointValue::Double(seconds),
        };
        let is_gauge = self.current_family.is_some_and(|family| family.kind == MetricKind::Gauge);
        let point = NumberPoint {
            // The values of a gauge do not accumulate, so they have no start.
            start_time_unix_nano: if is_gauge { 0 } else { self.start_time_unix_nano },
            time_unix_nano: self.time_unix_nano,
            value: Some(value),
            attributes: label_attributes(labels),
        };
        let bytes = point.encoded_len();
        self.number_points.push(point);
        self.account_point(bytes);
    }

    fn record_durations(
        &mut self,
        labels: &[(&'static str, &str)],
        durations: &DurationBuckets<'_>,
    ) {
        let mut point = HistogramPoint {
            start_time_unix_nano: self.start_time_unix_nano,
            time_unix_nano: self.time_unix_nano,
            sum: Some(durations.sum().as_secs_f64()),
            attributes: label_attributes(labels),
            ..HistogramPoint::default()
        };
        for (bound, count, exemplar) in durations.buckets() {
            point.count += count;
            point.bucket_counts.push(count);
            point.explicit_bounds.extend(bound.map(|bound| bound.as_secs_f64()));
            point.exemplars.extend(exemplar.map(|exemplar| OtlpExemplar {
                time_unix_nano: unix_nanoseconds(exemplar.ended),
                seconds: Some(exemplar.duration.as_secs_f64()),
                span_id: exemplar.span.0.get().to_be_bytes().into(),
                trace_id: exemplar.trace.0.get().to_be_bytes().into(),
            }));
        }
        let bytes = point.encoded_len();
        self.histogram_points.push(point);
        self.account_point(bytes);
    }
}

/// Returns the labels as attributes, without empty ones: Prometheus treats an empty label as absent.
fn label_attributes(labels: &[(&'static str, &str)]) -> Vec<KeyValue> {
    let non_empty = labels.iter().filter(|(_, value)| !value.is_empty());
    non_empty
        .map(|(key, value)| key_value(key, AttributeValue::Text((*value).to_owned())))
        .collect()
}

/// Returns the UCUM unit from the suffix of a metric name. Counts have no unit: Prometheus bridges would append
/// it to the name.
fn metric_unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    match name {
        name if name.ends_with("_seconds") => "s",
        name if name.ends_with("_bytes") => "By",
        _ => "",
    }
}

fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExportMetricsRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    pub(crate) resource: Option<OtlpResource>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    pub(crate) scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) metrics: Vec<OtlpMetric>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OtlpMetric {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) description: String,
    #[prost(string, tag = "3")]
    pub(crate) unit: String,
    #[prost(oneof = "MetricData", tags = "5, 7, 9")]
    pub(crate) data: Option<MetricData>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum MetricData {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
    #[prost(message, tag = "9")]
    Histogram(OtlpHistogram),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Gauge {
    #[prost(message, repeated, tag = "1")]
    pub(crate) points: Vec<NumberPoint>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sum {
    #[prost(message, repeated, tag = "1")]
    pub(crate) points: Vec<NumberPoint>,
    #[prost(int32, tag = "2")]
    pub(crate) temporality: i32,
    #[prost(bool, tag = "3")]
    pub(crate) is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OtlpHistogram {
    #[prost(message, repeated, tag = "1")]
    pub(crate) points: Vec<HistogramPoint>,
    #[prost(int32, tag = "2")]
    pub(crate) temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NumberPoint {
    #[prost(fixed64, tag = "2")]
    pub(crate) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(crate) time_unix_nano: u64,
    #[prost(oneof = "number_point::PointValue", tags = "4, 6")]
    pub(crate) value: Option<number_point::PointValue>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) attributes: Vec<KeyValue>,
}

pub(crate) mod number_point {
    #[derive(Clone, Copy, PartialEq, prost::Oneof)]
    pub(crate) enum PointValue {
        #[prost(double, tag = "4")]
        Double(f64),
        #[prost(sfixed64, tag = "6")]
        Int(i64),
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HistogramPoint {
    #[prost(fixed64, tag = "2")]
    pub(crate) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(crate) time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    pub(crate) count: u64,
    #[prost(double, optional, tag = "5")]
    pub(crate) sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    pub(crate) bucket_counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    pub(crate) explicit_bounds: Vec<f64>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) exemplars: Vec<OtlpExemplar>,
    #[prost(message, repeated, tag = "9")]
    pub(crate) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OtlpExemplar {
    #[prost(fixed64, tag = "2")]
    pub(crate) time_unix_nano: u64,
    #[prost(double, optional, tag = "3")]
    pub(crate) seconds: Option<f64>,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) trace_id: Vec<u8>,
}

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: i32 = 2;

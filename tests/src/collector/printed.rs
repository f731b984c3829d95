//! Points of metrics and records of logs, read from what a collector prints of them.

/// A point of a metric as a collector saw it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CollectedPoint {
    /// `service.instance.id`.
    pub workload: String,
    /// Its name and labels, as `/metrics` has them.
    pub series: String,
    /// `Sum`, `Gauge` or `Histogram`.
    pub kind: String,
    /// Of the metric.
    pub unit: String,
    /// The value, or the count of a histogram.
    pub value: f64,
    /// All that was printed of it.
    pub text: String,
}

/// A record of a log as a collector saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CollectedRecord {
    /// `service.instance.id`.
    pub workload: String,
    /// Such as `INFO`.
    pub severity: String,
    /// The line.
    pub body: String,
    /// 32 digits, or nothing.
    pub trace: String,
    /// 16 digits, or nothing.
    pub span: String,
    /// All that was printed of it, attributes included.
    pub text: String,
}

impl CollectedRecord {
    /// The value of an attribute, as the collector prints it, such as `Str(GET)`.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let start = format!("-> {name}: ");
        self.text.lines().find_map(|line| line.trim().strip_prefix(start.as_str()))
    }
}

/// All points, in the order in which they came.
pub(super) fn points(printed: &str) -> Vec<CollectedPoint> {
    let mut points = Vec::new();
    for resource in resources(printed, "ResourceMetrics #") {
        let workload = workload(resource);
        for metric in resource.split("\nMetric #").skip(1) {
            let of = |key: &str| text(metric, &format!("-> {key}: ")).unwrap_or_default();
            let (name, unit, kind) = (of("Name"), of("Unit"), of("DataType"));
            for block in metric.split("DataPoints #").skip(1) {
                let value = text(block, "Value: ").or_else(|| text(block, "Count: "));
                points.push(CollectedPoint {
                    workload: workload.clone(),
                    series: format!("{name}{}", labels(block)),
                    kind: kind.clone(),
                    unit: unit.clone(),
                    value: value.and_then(|value| value.parse().ok()).unwrap_or(f64::NAN),
                    text: block.to_owned(),
                });
            }
        }
    }
    points
}

/// All records, in the order in which they came.
pub(super) fn records(printed: &str) -> Vec<CollectedRecord> {
    let mut records = Vec::new();
    for resource in resources(printed, "ResourceLog #") {
        let workload = workload(resource);
        for block in resource.split("\nLogRecord #").skip(1) {
            let of = |key: &str| text(block, key).unwrap_or_default();
            records.push(CollectedRecord {
                workload: workload.clone(),
                severity: of("SeverityText: "),
                body: of("Body: Str(").trim_end_matches(')').to_owned(),
                trace: of("Trace ID: "),
                span: of("Span ID: "),
                text: block.to_owned(),
            });
        }
    }
    records
}

/// What is printed of each resource of a signal, and nothing of the next one, whatever its signal.
///
/// Lines come one by one: a resource of which the end of its entry is not there yet is none.
pub(super) fn resources<'a>(printed: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    let whole = printed.rsplit_once(END).map_or("", |(whole, _)| whole);
    whole.split(start).skip(1).map(|resource| {
        let starts = ["ResourceSpans #", "ResourceMetrics #", "ResourceLog #"];
        let end = starts.iter().filter_map(|start| resource.find(start)).min();
        end.and_then(|end| resource.get(..end)).unwrap_or(resource)
    })
}

/// What an entry of a collector's own log ends with: its fields.
const END: &str = "\n\t{\"otelcol.";

fn workload(resource: &str) -> String {
    let found = text(resource, "-> service.instance.id: Str(").unwrap_or_default();
    found.trim_end_matches(')').to_owned()
}

/// What stands behind this in the first line that begins with it.
fn text(block: &str, start: &str) -> Option<String> {
    block.lines().find_map(|line| Some(line.trim_start().strip_prefix(start)?.trim().to_owned()))
}

/// The attributes of a point between braces.
fn labels(block: &str) -> String {
    let attributes = block.split("Data point attributes:").nth(1).unwrap_or_default();
    let lines = attributes.lines().skip(1).map_while(|line| line.trim().strip_prefix("-> "));
    let labels = lines.filter_map(|line| {
        let (key, value) = line.split_once(": Str(")?;
        Some(format!("{key}=\"{}\"", value.strip_suffix(')')?))
    });
    let labels: Vec<_> = labels.collect();
    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_half_printed_is_not_there_yet() {
        let record = "ResourceLog #0\n     -> service.instance.id: Str(shop/web-1)\n\
                      LogRecord #0\nSeverityText: INFO\nBody: Str(all)\nTrace ID: 07\n\
                      Attributes:\n     -> path: Str(/)\n\t{\"otelcol.component.id\": \"debug\"}\n";
        let printed = [record, record].concat();
        let mut seen = Vec::new();
        for end in 0..=printed.len() {
            let records = records(&printed[..end]);
            assert!(records.iter().all(|it| it.attribute("path") == Some("Str(/)")), "{records:?}");
            seen.push(records.len());
        }
        seen.dedup();
        assert_eq!(seen, [0, 1, 2]);
    }
}

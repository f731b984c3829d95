//! Parses the metric points and the log records that a collector prints.

/// A metric point received by a collector.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CollectedPoint {
    /// `service.instance.id`.
    pub workload: String,
    /// The name and labels, as in `/metrics`.
    pub series: String,
    /// `Sum`, `Gauge` or `Histogram`.
    pub kind: String,
    /// The unit of the metric.
    pub unit: String,
    /// The value, or the count of a histogram; NaN if none is printed.
    pub value: f64,
    /// The complete printed text.
    pub text: String,
}

/// A log record received by a collector.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CollectedRecord {
    /// `service.instance.id`.
    pub workload: String,
    /// The severity, such as `INFO`.
    pub severity: String,
    /// The log line.
    pub body: String,
    /// The trace ID: 32 hexadecimal digits, or empty.
    pub trace: String,
    /// The span ID: 16 hexadecimal digits, or empty.
    pub span: String,
    /// The complete printed text, including attributes.
    pub text: String,
}

impl CollectedRecord {
    /// Returns the value of an attribute as printed, such as `Str(GET)`.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let line_prefix = format!("-> {name}: ");
        self.text.lines().find_map(|line| line.trim().strip_prefix(line_prefix.as_str()))
    }
}

/// Returns all points in order of arrival.
pub(super) fn parse_points(printed_output: &str) -> Vec<CollectedPoint> {
    let mut points = Vec::new();
    for resource in resource_blocks(printed_output, "ResourceMetrics #") {
        let workload = workload_name(resource);
        for metric in resource.split("\nMetric #").skip(1) {
            let field = |key: &str| text_after(metric, &format!("-> {key}: ")).unwrap_or_default();
            let (name, unit, kind) = (field("Name"), field("Unit"), field("DataType"));
            for block in metric.split("DataPoints #").skip(1) {
                let value = text_after(block, "Value: ").or_else(|| text_after(block, "Count: "));
                points.push(CollectedPoint {
                    workload: workload.clone(),
                    series: format!("{name}{}", format_labels(block)),
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

/// Returns all log records in order of arrival.
pub(super) fn parse_records(printed_output: &str) -> Vec<CollectedRecord> {
    let mut records = Vec::new();
    for resource in resource_blocks(printed_output, "ResourceLog #") {
        let workload = workload_name(resource);
        for block in resource.split("\nLogRecord #").skip(1) {
            let field = |key: &str| text_after(block, key).unwrap_or_default();
            records.push(CollectedRecord {
                workload: workload.clone(),
                severity: field("SeverityText: "),
                body: field("Body: Str(").trim_end_matches(')').to_owned(),
                trace: field("Trace ID: "),
                span: field("Span ID: "),
                text: block.to_owned(),
            });
        }
    }
    records
}

/// Returns the text printed for each resource of a signal (spans, metrics or logs), up to the next resource of any signal.
/// `heading` is the text that begins a resource, such as `ResourceSpans #`.
///
/// Lines arrive one at a time: a resource is skipped until its log entry is complete.
pub(super) fn resource_blocks<'a>(
    printed_output: &'a str,
    heading: &'a str,
) -> impl Iterator<Item = &'a str> {
    let complete_output =
        printed_output.rsplit_once(ENTRY_END).map_or("", |(complete_output, _)| complete_output);
    complete_output.split(heading).skip(1).map(|resource| {
        let headings = ["ResourceSpans #", "ResourceMetrics #", "ResourceLog #"];
        let block_end = headings.iter().filter_map(|heading| resource.find(heading)).min();
        block_end.and_then(|block_end| resource.get(..block_end)).unwrap_or(resource)
    })
}

/// The start of the fields at the end of a collector's log entry.
const ENTRY_END: &str = "\n\t{\"otelcol.";

fn workload_name(resource: &str) -> String {
    let value = text_after(resource, "-> service.instance.id: Str(").unwrap_or_default();
    value.trim_end_matches(')').to_owned()
}

/// Returns the rest of the first line that begins with this prefix.
fn text_after(block: &str, line_prefix: &str) -> Option<String> {
    block
        .lines()
        .find_map(|line| Some(line.trim_start().strip_prefix(line_prefix)?.trim().to_owned()))
}

/// Returns the attributes of a point in braces.
fn format_labels(block: &str) -> String {
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
    fn partially_printed_items_are_ignored() {
        let record = "ResourceLog #0\n     -> service.instance.id: Str(shop/web-1)\n\
                      LogRecord #0\nSeverityText: INFO\nBody: Str(all)\nTrace ID: 07\n\
                      Attributes:\n     -> path: Str(/)\n\t{\"otelcol.component.id\": \"debug\"}\n";
        let printed_output = [record, record].concat();
        let mut counts = Vec::new();
        for end in 0..=printed_output.len() {
            let records = parse_records(&printed_output[..end]);
            assert!(
                records.iter().all(|record| record.attribute("path") == Some("Str(/)")),
                "{records:?}"
            );
            counts.push(records.len());
        }
        counts.dedup();
        assert_eq!(counts, [0, 1, 2]);
    }
}

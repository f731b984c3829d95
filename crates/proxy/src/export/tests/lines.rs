//! Access log entries as records: the same fields, and no secrets.

use leno_model::{AccessLog, LogFormat, LogTemplate};
use leno_outside::otlp::{AnyValue, ExportResponse, PartialSuccess, any_value};

use super::receiver::{Receiver, response_with};
use super::*;
use crate::export::otlp::records::{self, LogRecord};

fn decode_records(bytes: &[u8]) -> Vec<LogRecord> {
    let request = records::ExportRequest::decode(bytes).unwrap();
    let [resource] = &request.resource_logs[..] else { panic!("one resource") };
    assert!(resource.resource.is_some());
    resource.scope_logs[0].records.clone()
}

fn record_body(record: &LogRecord) -> &str {
    match record.body.as_ref().and_then(|body| body.value.as_ref()) {
        Some(any_value::AnyValueKind::Text(text)) => text,
        other => panic!("{other:?}"),
    }
}

fn find_attribute<'a>(record: &'a LogRecord, name: &str) -> Option<&'a any_value::AnyValueKind> {
    let attribute = record.attributes.iter().find(|attribute| attribute.key == name)?;
    let Some(AnyValue { value: Some(value) }) = &attribute.value else { panic!("{attribute:?}") };
    Some(value)
}

#[test]
fn a_log_record_has_the_line_and_its_fields() {
    let batch = [
        trace_entry("inbound", 200, None),
        trace_entry("inbound", 403, Some("denied")),
        trace_entry("outbound", 0, Some("connect-failed")),
    ];
    let requests = records::encode_requests(&source(), &batch, &LogFormat::Json);
    let [(bytes, 3)] = &requests[..] else { panic!("one request of three") };
    assert!(!String::from_utf8_lossy(bytes).contains("hunter2"));
    let records = decode_records(bytes);
    let severities: Vec<_> = records.iter().map(|record| &*record.severity_text).collect();
    assert_eq!(severities, ["INFO", "WARN", "ERROR"]);
    let record = &records[0];
    assert_eq!(record.time_unix_nano, 1_000_000_000_000);
    assert_eq!(record.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
    assert_eq!((record.span_id.as_slice(), record.flags), (&7_u64.to_be_bytes()[..], 1));
    let line: serde_json::Value = serde_json::from_str(record_body(record)).unwrap();
    assert!(!record_body(record).ends_with('\n'));
    // Every field of the line that is not null is an attribute, except the two of the trace.
    for (name, value) in line.as_object().unwrap() {
        let reported = find_attribute(record, name);
        match value {
            serde_json::Value::Null => assert_eq!(reported, None, "{name}"),
            _ if name == "trace_id" || name == "span_id" => assert_eq!(reported, None, "{name}"),
            serde_json::Value::String(text) => {
                assert_eq!(reported, Some(&any_value::AnyValueKind::Text(text.clone())), "{name}");
            }
            serde_json::Value::Number(number) => match reported.unwrap() {
                any_value::AnyValueKind::Int(reported) => {
                    assert_eq!(number.as_i64(), Some(*reported))
                }
                any_value::AnyValueKind::Double(reported) => {
                    assert_eq!(number.as_f64(), Some(*reported))
                }
                any_value::AnyValueKind::Text(reported) => panic!("{name}: {reported}"),
            },
            other => panic!("{name}: {other}"),
        }
    }
    assert_eq!(
        find_attribute(record, "path"),
        Some(&any_value::AnyValueKind::Text("/ratings/1".to_owned()))
    );
}

#[test]
fn a_template_changes_only_the_body_of_a_record() {
    let form = LogFormat::Template(LogTemplate::parse("{method} {path}").unwrap());
    let requests = records::encode_requests(&source(), &[trace_entry("inbound", 200, None)], &form);
    let record = &decode_records(&requests[0].0)[0];
    assert_eq!(record_body(record), "GET /ratings/1");
    assert!(find_attribute(record, "response_code").is_some());
}

#[test]
fn many_long_lines_are_sent_in_several_requests() {
    let mut long_entry = Arc::into_inner(trace_entry("inbound", 200, None)).unwrap();
    long_entry.path = "/".repeat(1024);
    long_entry.user_agent = "x".repeat(1024);
    let long_entry = Arc::new(long_entry);
    let batch = vec![long_entry; 1000];
    let requests = records::encode_requests(&source(), &batch, &LogFormat::Json);
    assert!(requests.len() > 1);
    assert_eq!(requests.iter().map(|(_, count)| count).sum::<u64>(), 1000);
    assert!(requests.iter().all(|(bytes, _)| bytes.len() < 4 << 20));
}

/// Sends three entries to a collector; returns the numbers of accepted and rejected records.
async fn export_entries(url: &str) -> (u64, u64) {
    let directory = tempfile::tempdir().unwrap();
    let (config_store, _requested_services) =
        ConfigStore::new(VirtualAddresses::default(), std::time::Instant::now());
    let collector = Collector::parse(Signal::Logs, CollectorProtocol::OtlpHttp, url).unwrap();
    let log = AccessLog { collector: Some(collector), ..AccessLog::json() };
    config_store
        .observability
        .apply_settings(&Observability { access_log: Some(log), ..Observability::default() });
    let telemetry = Telemetry::new();
    let domain = leno_model::TrustDomain::new("cluster.local").unwrap();
    let config = Config::for_sidecar(workload_name("a"), domain, directory.path().to_owned());
    let exporter =
        TelemetryExporter::new(Arc::new(config), config_store.clone(), telemetry.new_shard());
    let (queue, intake) = mpsc::channel(4);
    for _ in 0..3 {
        queue.try_send(trace_entry("inbound", 200, None)).unwrap();
    }
    drop(queue);
    crate::access_log::write_entries(intake, Rc::new(exporter)).await;
    (telemetry.count(Count::RecordsExported), telemetry.count(Count::RecordsRejected))
}

#[test]
fn log_lines_are_sent_to_the_configured_collector() {
    run(async {
        let partial = ExportResponse {
            partial_success: Some(PartialSuccess { rejected: 1, ..PartialSuccess::default() }),
        };
        let receiver =
            Receiver::start(vec![response_with(200, None, partial.encode_to_vec())]).await;
        assert_eq!(export_entries(&format!("http://{}", receiver.address)).await, (2, 1));
        let arrived = receiver.arrived_requests();
        let [(path, kind, bytes)] = &arrived[..] else { panic!("one request") };
        assert_eq!((&**path, &**kind), ("/v1/logs", "application/x-protobuf"));
        assert_eq!(decode_records(bytes).len(), 3);
        assert_eq!(export_entries(&format!("http://{}", closed_port())).await, (0, 3));
    });
}

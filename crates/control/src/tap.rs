//! Streams records of live requests to operators (a tap): one JSON object per line, until the client disconnects.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::{Body, Bytes, Frame};
use leno_discovery::{ActiveTap, TapRecords, Taps};
use leno_model::{
    MAX_TAP_PER_SECOND, MAX_TAP_TEXT_BYTES, ServiceAccount, ServiceName, StatusRange, Tap, TapSide,
};
use serde_json::{Value, json};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::http_server::decode_percent;

/// The lines of a tap, as a response body. Dropping it closes the tap.
#[derive(Debug)]
pub(crate) struct TapBody {
    active_tap: ActiveTap,
    /// Sends a blank line after a time without records. Only a failed write shows that the client has disconnected:
    /// a client that has only closed its sending direction still reads the response.
    keepalive: Interval,
}

impl TapBody {
    /// Opens the tap that a query describes.
    ///
    /// # Errors
    /// Returns the HTTP status and the problem if the query is invalid or too many taps are open.
    pub(crate) fn open(taps: &Arc<Taps>, query: &str) -> Result<Self, (StatusCode, String)> {
        let tap = parse_tap(query).map_err(|problem| (StatusCode::BAD_REQUEST, problem))?;
        let active_tap =
            taps.open(tap).map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
        let mut keepalive = interval(KEEPALIVE_INTERVAL);
        keepalive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Skips the immediate first tick.
        keepalive.reset();
        Ok(Self { active_tap, keepalive })
    }
}

impl Body for TapBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        while let Poll::Ready(batch) = self.active_tap.poll_next(context) {
            let Some(batch) = batch else { return Poll::Ready(None) };
            let lines = format_records(batch, self.active_tap.take_lost());
            if !lines.is_empty() {
                self.keepalive.reset();
                return Poll::Ready(Some(Ok(Frame::data(lines.into()))));
            }
        }
        self.keepalive.poll_tick(context).map(|_| Some(Ok(Frame::data(Bytes::from_static(b"\n")))))
    }
}

/// Formats one line for each record, with the workload of the reporting sidecar, and one line with the number of
/// dropped records. The workload in a record is overwritten, because a sidecar could report another one.
fn format_records(batch: TapRecords, lost: u64) -> String {
    let workload = batch.workload.to_string();
    let mut dropped = batch.dropped.saturating_add(lost);
    let mut lines = String::new();
    for record in batch.records {
        let Ok(Value::Object(mut fields)) = serde_json::from_str(&record) else {
            dropped = dropped.saturating_add(1);
            continue;
        };
        fields.insert("workload".to_owned(), workload.clone().into());
        lines.push_str(&Value::Object(fields).to_string());
        lines.push('\n');
    }
    if dropped > 0 {
        lines.push_str(&json!({ "dropped": dropped, "workload": workload }).to_string());
        lines.push('\n');
    }
    lines
}

/// Parses `service=NAMESPACE/NAME`, and optionally `path`, `method`, `status`, `from`, `side` and `per_second`,
/// percent-encoded.
fn parse_tap(query: &str) -> Result<Tap, String> {
    let mut service = None;
    // `Taps::open` sets the ID. The service is replaced below, or the query is rejected.
    let mut tap = Tap {
        id: 0,
        service: ServiceName::new("default", "none").map_err(|error| error.to_string())?,
        side: TapSide::Both,
        path: String::new(),
        method: String::new(),
        status: None,
        from: None,
        per_second: RECORDS_PER_SECOND,
    };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| format!("`{pair}` has no value"))?;
        let value =
            decode_percent(value).ok_or_else(|| format!("`{name}` is not percent-encoded"))?;
        let invalid = |hint: &str| format!("`{name}={value}`: {hint}");
        if value.len() > MAX_TAP_TEXT_BYTES {
            return Err(format!("`{name}` is longer than {MAX_TAP_TEXT_BYTES} bytes"));
        }
        match name {
            "service" => {
                let name_result = value.parse::<ServiceName>();
                service = Some(name_result.map_err(|_| invalid("use NAMESPACE/NAME"))?);
            }
            "path" => tap.path = value,
            "method" => tap.method = value,
            "status" => {
                let range = StatusRange::parse(&value);
                tap.status = Some(range.ok_or_else(|| invalid("use 503, 5xx or 400-499"))?);
            }
            "from" => {
                let account = value
                    .split_once('/')
                    .and_then(|(namespace, name)| ServiceAccount::new(namespace, name).ok());
                tap.from = Some(account.ok_or_else(|| invalid("use NAMESPACE/ACCOUNT"))?);
            }
            "side" => {
                let side = TapSide::ALL.iter().find(|(side_name, _)| *side_name == value);
                tap.side = side.ok_or_else(|| invalid("use both, client or server"))?.1;
            }
            "per_second" => {
                let record_rate = value
                    .parse()
                    .ok()
                    .filter(|record_rate| (1..=MAX_TAP_PER_SECOND).contains(record_rate));
                let hint = format!("use a number from 1 to {MAX_TAP_PER_SECOND}");
                tap.per_second = record_rate.ok_or_else(|| invalid(&hint))?;
            }
            _ => return Err(format!("`{name}` is unknown")),
        }
    }
    tap.service = service.ok_or("specify the service: /tap?service=NAMESPACE/NAME")?;
    Ok(tap)
}

/// The maximum time without a line.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// The default number of records per data thread and second.
const RECORDS_PER_SECOND: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_query_is_parsed_or_rejected_with_its_problem() {
        let tap = parse_tap(
            "service=shop%2Fstock&path=/orders%3F&method=GET&status=5xx&from=shop/web&side=client\
             &per_second=7",
        )
        .unwrap();
        assert_eq!((tap.service.to_string().as_str(), &*tap.path), ("shop/stock", "/orders?"));
        assert_eq!((tap.side, tap.per_second), (TapSide::Client, 7));
        assert_eq!(tap.status, StatusRange::parse("500-599"));
        for (query, problem) in [
            ("", "specify the service"),
            ("service", "has no value"),
            ("service=stock", "use NAMESPACE/NAME"),
            ("service=a/b&path=%2", "not percent-encoded"),
            ("service=a/b&path=%ff", "not percent-encoded"),
            ("service=a/b&status=6xx", "use 503"),
            ("service=a/b&from=web", "NAMESPACE/ACCOUNT"),
            ("service=a/b&side=left", "use both"),
            ("service=a/b&per_second=0", "from 1 to"),
            ("service=a/b&body=yes", "is unknown"),
            (&format!("service=a/b&path={}", "x".repeat(2000)), "longer than"),
        ] {
            let error = parse_tap(query).unwrap_err();
            assert!(error.contains(problem), "{query}: {error}");
        }
    }

    #[test]
    fn records_of_a_sidecar_are_validated_and_get_its_workload() {
        let batch = |records: &[&str], dropped| TapRecords {
            workload: "shop/web-1".parse().unwrap(),
            records: records.iter().map(|record| (*record).to_owned()).collect(),
            dropped,
        };
        let forged = r#"{"path":"/a","workload":"shop/other-1"}"#;
        assert_eq!(
            format_records(batch(&[forged, "[]", "{\"a\":\n1}", "x"], 2), 3),
            "{\"path\":\"/a\",\"workload\":\"shop/web-1\"}\n{\"a\":1,\"workload\":\"shop/web-1\"}\n\
             {\"dropped\":7,\"workload\":\"shop/web-1\"}\n"
        );
        assert_eq!(format_records(batch(&[], 0), 0), "");
    }
}

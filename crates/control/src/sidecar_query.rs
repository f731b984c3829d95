//! Sends operators' queries to one sidecar over its open stream, and explains why there is no response.

use hyper::StatusCode;
use leno_discovery::{Queries, QueryError, QueryResponse};
use leno_model::WorkloadName;

use crate::http_server::decode_percent;
use crate::state_task::SidecarLocation;

/// Parses `workload=NAMESPACE/NAME&path=PATH`, percent-encoded. Returns `None` if a parameter is missing, unknown or
/// invalid.
pub(crate) fn parse_query(query: &str) -> Option<(WorkloadName, String)> {
    let (mut workload, mut path) = (None, None);
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=')?;
        match name {
            "workload" => workload = Some(decode_percent(value)?.parse().ok()?),
            "path" => path = Some(decode_percent(value)?),
            _ => return None,
        }
    }
    Some((workload?, path.filter(|path| path.starts_with('/'))?))
}

/// Sends a query to the sidecar of a workload, over its open stream, and returns the response.
///
/// # Errors
/// Returns the HTTP status and the message for the operator, if the sidecar is not connected to this control plane or
/// the query fails.
pub(crate) async fn send_query(
    queries: &Queries,
    workload: &WorkloadName,
    location: SidecarLocation,
    path: String,
) -> Result<QueryResponse, (StatusCode, String)> {
    let connection = match location {
        SidecarLocation::Here(connection) => connection,
        SidecarLocation::OtherReplica(address) => {
            let address = address.map(|address| format!(" at {address}")).unwrap_or_default();
            let problem = format!(
                "the sidecar of {workload} is connected to another control plane{address}: run the command there"
            );
            return Err((StatusCode::MISDIRECTED_REQUEST, problem));
        }
        SidecarLocation::Disconnected => {
            let problem =
                format!("the sidecar of {workload} is not connected to a known control plane");
            return Err((StatusCode::NOT_FOUND, problem));
        }
        SidecarLocation::Unknown => {
            return Err((StatusCode::NOT_FOUND, format!("there is no workload {workload}")));
        }
    };
    queries
        .send_query(connection, path)
        .await
        .map_err(|error| (error_status(error), error.to_string()))
}

fn error_status(error: QueryError) -> StatusCode {
    match error {
        QueryError::PathTooLong => StatusCode::URI_TOO_LONG,
        QueryError::Disconnected | QueryError::Oversized => StatusCode::BAD_GATEWAY,
        QueryError::Unsupported => StatusCode::NOT_IMPLEMENTED,
        QueryError::Busy => StatusCode::TOO_MANY_REQUESTS,
        QueryError::Timeout => StatusCode::GATEWAY_TIMEOUT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_a_workload_and_a_path() {
        let (workload, path) =
            parse_query("workload=shop%2Fweb-1&path=%2Fconnectivity%3Fservice%3Dshop%2Fstock")
                .unwrap();
        assert_eq!(workload.to_string(), "shop/web-1");
        assert_eq!(path, "/connectivity?service=shop/stock");
        for invalid in [
            "",
            "workload=web&path=/",
            "workload=a/b",
            "path=/",
            "workload=a/b&path=x",
            "workload=a/b&path=/&more=1",
            "workload=a/b&path=%2",
        ] {
            assert_eq!(parse_query(invalid), None, "{invalid}");
        }
    }

    #[tokio::test]
    async fn the_error_names_the_control_plane_that_has_the_sidecar() {
        let (queries, workload) = (Queries::new(1), "shop/web-1".parse().unwrap());
        let address = "192.0.2.7:15012".parse().unwrap();
        for (location, status, text) in [
            (
                SidecarLocation::OtherReplica(Some(address)),
                421,
                "another control plane at 192.0.2.7:15012",
            ),
            (SidecarLocation::OtherReplica(None), 421, "another control plane: run"),
            (SidecarLocation::Disconnected, 404, "not connected to a known control plane"),
            (SidecarLocation::Unknown, 404, "no workload shop/web-1"),
            (SidecarLocation::Here(leno_discovery::ConnectionId(1)), 502, "has disconnected"),
        ] {
            let result = send_query(&queries, &workload, location, "/ready".to_owned()).await;
            let (code, problem) = result.unwrap_err();
            assert!(code == status && problem.contains(text), "{code}: {problem}");
        }
    }
}

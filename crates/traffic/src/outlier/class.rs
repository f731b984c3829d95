//! Classifies the results of requests and health checks as failures of the endpoint, successes, or neither. The failure
//! classes of the outlier detection policy decide which results of requests count as failures.

use leno_model::{FailureClasses, Reason};

/// The result of a request to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointResult {
    /// The endpoint sent a response.
    Response {
        /// The HTTP status.
        status: u16,
        /// The gRPC status, for gRPC calls.
        grpc: Option<u8>,
    },
    /// The endpoint accepted an opaque connection.
    ConnectionOpened,
    /// The endpoint sent no response or an incomplete response, for this reason.
    Failed(Reason),
}

/// The evidence that a result gives about the health of its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureEvidence {
    /// The result is a failure that counts.
    Failure,
    /// The result is not a failure that counts.
    Success,
    /// No evidence: the client or this sidecar caused the result.
    Unknown,
}

/// Classifies a result by these failure classes.
#[must_use]
pub fn classify_result(classes: &FailureClasses, result: EndpointResult) -> FailureEvidence {
    let evidence =
        |counts: bool| if counts { FailureEvidence::Failure } else { FailureEvidence::Success };
    match result {
        EndpointResult::ConnectionOpened => FailureEvidence::Success,
        EndpointResult::Response { status, grpc } => {
            let is_gateway_error = matches!(status, 502..=504);
            let is_server_error = matches!(status, 500..=599);
            let is_grpc_error = grpc.is_some_and(|code| classes.grpc.contains(&code));
            evidence(
                is_grpc_error
                    || (classes.server_errors && is_server_error)
                    || (classes.gateway_errors && is_gateway_error),
            )
        }
        EndpointResult::Failed(reason) => match failure_class(reason) {
            None => FailureEvidence::Unknown,
            Some(FailureClass::Connect) => evidence(classes.connect),
            Some(FailureClass::Timeout) => evidence(classes.timeout),
            Some(FailureClass::Reset) => evidence(classes.reset),
        },
    }
}

/// Classifies the result of a health check. Rejections by the mesh and policy rejections of a gRPC application give no
/// evidence.
#[must_use]
pub fn classify_check(result: EndpointResult) -> FailureEvidence {
    match result {
        EndpointResult::ConnectionOpened => FailureEvidence::Success,
        EndpointResult::Response { grpc: Some(0), .. } => FailureEvidence::Success,
        EndpointResult::Response { grpc: Some(code), .. } if REJECTION_STATUSES.contains(&code) => {
            FailureEvidence::Unknown
        }
        EndpointResult::Response { grpc: None, status: 200..=399 } => FailureEvidence::Success,
        EndpointResult::Response { .. } => FailureEvidence::Failure,
        EndpointResult::Failed(reason) => match failure_class(reason) {
            None => FailureEvidence::Unknown,
            Some(_) => FailureEvidence::Failure,
        },
    }
}

/// The gRPC statuses of policy rejections: `PERMISSION_DENIED`, `RESOURCE_EXHAUSTED` and `UNAUTHENTICATED`.
const REJECTION_STATUSES: [u8; 3] = [7, 8, 16];

/// A class of failures without a complete response, as in [`FailureClasses`].
enum FailureClass {
    /// No connection or TLS session was established.
    Connect,
    /// The connection or the response timed out.
    Timeout,
    /// The connection was reset, or the response was malformed.
    Reset,
}

/// Returns the failure class of a reason; `None` if the endpoint is not responsible for the failure.
fn failure_class(reason: Reason) -> Option<FailureClass> {
    match reason {
        Reason::ConnectFailed
        | Reason::PortTaken
        | Reason::ProtocolMismatch
        | Reason::UpstreamHandshakeFailed
        | Reason::WrongIdentity => Some(FailureClass::Connect),
        Reason::ConnectTimeout
        | Reason::UpstreamStalled
        | Reason::RequestTimeout
        | Reason::AttemptTimeout => Some(FailureClass::Timeout),
        Reason::UpstreamReset | Reason::UpstreamMalformed => Some(FailureClass::Reset),
        // An endpoint that drains or is at its limit rejects the request by itself. It has not failed, and a retry uses
        // another endpoint.
        Reason::UpstreamRefused => None,
        // The client or this sidecar caused the failure.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use leno_model::FailureSide;

    use super::*;

    #[test]
    fn each_class_counts_only_its_own_failures() {
        use EndpointResult::{Failed, Response};
        let no_classes = FailureClasses::default;
        let response = |status| Response { status, grpc: None };
        let call = |grpc| Response { status: 200, grpc: Some(grpc) };
        let classes = [
            (FailureClasses { connect: true, ..no_classes() }, Failed(Reason::ConnectFailed)),
            (FailureClasses { timeout: true, ..no_classes() }, Failed(Reason::ConnectTimeout)),
            (FailureClasses { reset: true, ..no_classes() }, Failed(Reason::UpstreamReset)),
            (FailureClasses { server_errors: true, ..no_classes() }, response(500)),
            (FailureClasses { grpc: vec![14], ..no_classes() }, call(14)),
        ];
        for (index, (class, _)) in classes.iter().enumerate() {
            for (other, (_, result)) in classes.iter().enumerate() {
                let expected = if index == other {
                    FailureEvidence::Failure
                } else {
                    FailureEvidence::Success
                };
                assert_eq!(classify_result(class, *result), expected, "{class:?} {result:?}");
            }
        }
        let gateway = FailureClasses { gateway_errors: true, ..no_classes() };
        for (status, expected) in
            [(500, false), (502, true), (503, true), (504, true), (429, false)]
        {
            let is_failure =
                classify_result(&gateway, response(status)) == FailureEvidence::Failure;
            assert_eq!(is_failure, expected, "{status}");
        }
        assert_eq!(
            classify_result(&gateway, EndpointResult::ConnectionOpened),
            FailureEvidence::Success
        );
    }

    #[test]
    fn health_checks_have_their_own_classification() {
        use EndpointResult::{Failed, Response};
        let response = |status| Response { status, grpc: None };
        let call = |grpc| Response { status: 200, grpc: Some(grpc) };
        for (result, expected) in [
            (response(200), FailureEvidence::Success),
            (response(204), FailureEvidence::Success),
            (response(302), FailureEvidence::Success),
            (response(101), FailureEvidence::Failure),
            (response(404), FailureEvidence::Failure),
            (response(503), FailureEvidence::Failure),
            (call(0), FailureEvidence::Success),
            (call(14), FailureEvidence::Failure),
            (call(12), FailureEvidence::Failure),
            (call(7), FailureEvidence::Unknown),
            (Failed(Reason::ConnectFailed), FailureEvidence::Failure),
            (Failed(Reason::RequestTimeout), FailureEvidence::Failure),
            (Failed(Reason::Denied), FailureEvidence::Unknown),
            (Failed(Reason::Overloaded), FailureEvidence::Unknown),
            (Failed(Reason::UpstreamRefused), FailureEvidence::Unknown),
            (Failed(Reason::Unsupported), FailureEvidence::Unknown),
        ] {
            assert_eq!(classify_check(result), expected, "{result:?}");
        }
    }

    #[test]
    fn only_upstream_reasons_count_against_an_endpoint() {
        let all_classes =
            FailureClasses { connect: true, timeout: true, reset: true, ..Default::default() };
        for reason in Reason::ALL {
            if classify_result(&all_classes, EndpointResult::Failed(*reason))
                == FailureEvidence::Failure
            {
                assert_eq!(reason.side(), FailureSide::Upstream, "{reason:?}");
            }
        }
    }
}

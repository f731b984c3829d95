//! Failure classes: request results that count against an endpoint.

use leno_model::{FailureClasses, Reason};

/// The result of a request to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointResult {
    /// A response.
    Response {
        /// The HTTP status.
        status: u16,
        /// The gRPC status, for gRPC calls.
        grpc: Option<u8>,
    },
    /// An accepted opaque connection.
    ConnectionOpened,
    /// No response, or an incomplete one.
    Failed(Reason),
}

/// The evidence of a result about the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureEvidence {
    /// A failure that counts.
    Yes,
    /// No failure.
    No,
    /// No evidence: the client or this sidecar caused the result.
    Unknown,
}

/// Classifies a result by these failure classes.
#[must_use]
pub fn classify_ending(classes: &FailureClasses, ending: EndpointResult) -> FailureEvidence {
    let counts = |counts: bool| if counts { FailureEvidence::Yes } else { FailureEvidence::No };
    match ending {
        EndpointResult::ConnectionOpened => FailureEvidence::No,
        EndpointResult::Response { status, grpc } => {
            let gateway = matches!(status, 502..=504);
            let server = matches!(status, 500..=599);
            let call = grpc.is_some_and(|code| classes.grpc.contains(&code));
            counts(call || (classes.server_errors && server) || (classes.gateway_errors && gateway))
        }
        EndpointResult::Failed(reason) => match class_of(reason) {
            None => FailureEvidence::Unknown,
            Some(Class::Connect) => counts(classes.connect),
            Some(Class::Timeout) => counts(classes.timeout),
            Some(Class::Reset) => counts(classes.reset),
        },
    }
}

/// Classifies the result of a health check. Rejections by the mesh are no evidence, nor are policy rejections
/// of a gRPC application.
#[must_use]
pub fn classify_check(ending: EndpointResult) -> FailureEvidence {
    match ending {
        EndpointResult::ConnectionOpened => FailureEvidence::No,
        EndpointResult::Response { grpc: Some(0), .. } => FailureEvidence::No,
        EndpointResult::Response { grpc: Some(code), .. } if REFUSALS.contains(&code) => {
            FailureEvidence::Unknown
        }
        EndpointResult::Response { grpc: None, status: 200..=399 } => FailureEvidence::No,
        EndpointResult::Response { .. } => FailureEvidence::Yes,
        EndpointResult::Failed(reason) => match class_of(reason) {
            None => FailureEvidence::Unknown,
            Some(_) => FailureEvidence::Yes,
        },
    }
}

/// `PERMISSION_DENIED`, `RESOURCE_EXHAUSTED` and `UNAUTHENTICATED`.
const REFUSALS: [u8; 3] = [7, 8, 16];

enum Class {
    Connect,
    Timeout,
    Reset,
}

/// Returns the class of a reason that the endpoint is responsible for.
fn class_of(reason: Reason) -> Option<Class> {
    match reason {
        Reason::ConnectFailed
        | Reason::PortTaken
        | Reason::ProtocolMismatch
        | Reason::UpstreamHandshakeFailed
        | Reason::WrongIdentity => Some(Class::Connect),
        Reason::ConnectTimeout
        | Reason::UpstreamStalled
        | Reason::RequestTimeout
        | Reason::AttemptTimeout => Some(Class::Timeout),
        Reason::UpstreamReset | Reason::UpstreamMalformed => Some(Class::Reset),
        // It drains or is full, and reports this itself; a retry uses another endpoint.
        Reason::UpstreamRefused => None,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use leno_model::FailureSide;

    use super::*;

    #[test]
    fn every_class_counts_what_is_its_own() {
        use EndpointResult::{Failed, Response};
        let none = FailureClasses::default;
        let answered = |status| Response { status, grpc: None };
        let call = |grpc| Response { status: 200, grpc: Some(grpc) };
        let classes = [
            (FailureClasses { connect: true, ..none() }, Failed(Reason::ConnectFailed)),
            (FailureClasses { timeout: true, ..none() }, Failed(Reason::ConnectTimeout)),
            (FailureClasses { reset: true, ..none() }, Failed(Reason::UpstreamReset)),
            (FailureClasses { server_errors: true, ..none() }, answered(500)),
            (FailureClasses { grpc: vec![14], ..none() }, call(14)),
        ];
        for (index, (class, _)) in classes.iter().enumerate() {
            for (other, (_, ending)) in classes.iter().enumerate() {
                let expected =
                    if index == other { FailureEvidence::Yes } else { FailureEvidence::No };
                assert_eq!(classify_ending(class, *ending), expected, "{class:?} {ending:?}");
            }
        }
        let gateway = FailureClasses { gateway_errors: true, ..none() };
        for (status, expected) in
            [(500, false), (502, true), (503, true), (504, true), (429, false)]
        {
            let seen = classify_ending(&gateway, answered(status)) == FailureEvidence::Yes;
            assert_eq!(seen, expected, "{status}");
        }
        assert_eq!(
            classify_ending(&gateway, EndpointResult::ConnectionOpened),
            FailureEvidence::No
        );
    }

    #[test]
    fn a_check_is_judged_by_its_own_measure() {
        use EndpointResult::{Failed, Response};
        let answered = |status| Response { status, grpc: None };
        let call = |grpc| Response { status: 200, grpc: Some(grpc) };
        for (ending, expected) in [
            (answered(200), FailureEvidence::No),
            (answered(204), FailureEvidence::No),
            (answered(302), FailureEvidence::No),
            (answered(101), FailureEvidence::Yes),
            (answered(404), FailureEvidence::Yes),
            (answered(503), FailureEvidence::Yes),
            (call(0), FailureEvidence::No),
            (call(14), FailureEvidence::Yes),
            (call(12), FailureEvidence::Yes),
            (call(7), FailureEvidence::Unknown),
            (Failed(Reason::ConnectFailed), FailureEvidence::Yes),
            (Failed(Reason::RequestTimeout), FailureEvidence::Yes),
            (Failed(Reason::Denied), FailureEvidence::Unknown),
            (Failed(Reason::Overloaded), FailureEvidence::Unknown),
            (Failed(Reason::UpstreamRefused), FailureEvidence::Unknown),
            (Failed(Reason::Unsupported), FailureEvidence::Unknown),
        ] {
            assert_eq!(classify_check(ending), expected, "{ending:?}");
        }
    }

    #[test]
    fn only_upstream_reasons_are_held_against_an_endpoint() {
        let all =
            FailureClasses { connect: true, timeout: true, reset: true, ..Default::default() };
        for reason in Reason::ALL {
            if classify_ending(&all, EndpointResult::Failed(*reason)) == FailureEvidence::Yes {
                assert_eq!(reason.side(), FailureSide::Upstream, "{reason:?}");
            }
        }
    }
}

//! The vectors of `tests/vectors/access`: from documents to inbound and outbound authorization, through reader,
//! mesh, compilation and decision.

use std::net::SocketAddr;
use std::sync::Arc;

use leno_control::snapshot_for;
use leno_model::{
    ClientAuthorization, Egress, Name, Object, Reason, ServiceAccount, SpiffeId, TrustDomain,
};
use leno_traffic::{
    CompiledSnapshot, ConnectionOrigin, ConnectionPermit, Denial, EgressDecision, InboundAccess,
    RequestPermit, RequestView, SessionTransport,
};
use serde_json::{Value, json};

use crate::case::{parse_workload, request_headers, request_view, run};

#[test]
fn access_matches_the_vectors() {
    run("access/access.json", 48, find_mismatches);
}

/// Returns the mismatches of a group.
fn find_mismatches(objects: &[Object], group: &Value) -> Vec<String> {
    let mut mismatches = Vec::new();
    for case in group["cases"].as_array().unwrap() {
        let decision = decide_case(objects, case);
        if decision != case["expect"] {
            mismatches.push(format!("{}: {decision}, not {}", case["name"], case["expect"]));
        }
        // Each case with a different result from OSM documents the difference, and no other case does.
        let differs =
            case.get("osm").is_some_and(|code| code.as_u64() != Some(exit_code(&decision)));
        if differs != case.get("differs").is_some() {
            mismatches.push(format!("{}: `osm` and `differs` do not fit {decision}", case["name"]));
        }
    }
    mismatches
}

/// Returns the exit code of `curl --fail`.
fn exit_code(decision: &Value) -> u64 {
    match (decision.get("status"), decision.get("reset")) {
        (Some(_), _) => 22,
        (None, Some(_)) => 56,
        (None, None) => 0,
    }
}

/// Returns the result for a request or a connection, in the form of an expectation.
fn decide_case(objects: &[Object], case: &Value) -> Value {
    let headers = request_headers(&case["request"]);
    let view = request_view(&case["request"], &headers);
    match case.get("to") {
        Some(to) => decide_outbound(objects, case, to.as_str().unwrap(), view.as_ref()),
        None => decide_inbound(objects, case, view.as_ref()),
    }
}

/// Decides a call to the service `stock`: its client's sidecar, if it has one, and then the service's.
fn decide_inbound(objects: &[Object], case: &Value, request: Option<&RequestView<'_>>) -> Value {
    let stock = parse_workload("shop/stock");
    let port = application_port(case["port"].as_u64().unwrap());
    let snapshot = snapshot_for(objects, &stock, &[]).unwrap();
    let access = InboundAccess::from_config(&snapshot.config).unwrap();
    let is_direct = case["direct"].as_bool().unwrap_or(false);
    let (peer, origin) = match case["from"].as_str() {
        Some(client) => {
            if !is_direct && !may_call(objects, client) {
                return client_result(Reason::DeniedOutbound, request.is_some());
            }
            (Some(member_id(client)), parse_origin(&json!({"address": "127.0.0.1", "tls": {}})))
        }
        None => {
            let tls = case["from"].get("tls");
            let peer = tls.and_then(|tls| tls["identity"].as_str()).map(member_id);
            let origin = parse_origin(&case["from"]);
            let is_external_principal = tls.and_then(principal_name).is_some();
            let is_accepted = match is_external_principal {
                true => access.accepts_external_principals(port, origin.address),
                false => peer.is_some(),
            };
            if tls.is_some()
                && !is_accepted
                && !access.skips_client_certificate(port, origin.address)
            {
                let reason = if is_external_principal {
                    Reason::UntrustedPeer
                } else {
                    Reason::HandshakeFailed
                };
                return client_result(reason, request.is_some());
            }
            (peer, origin)
        }
    };
    let connection = access.authorize_connection_from(peer.as_ref(), port, Some(origin));
    let outcome = connection.and_then(|permit| decide_access(&access, &permit, request));
    match outcome {
        Ok(permit) => match permit.would_deny() {
            Some(reason) => json!({"dry_run": reason.label()}),
            None => json!("allowed"),
        },
        Err(denial) => client_result(denial.reason, request.is_some()),
    }
}

fn decide_access(
    access: &InboundAccess,
    permit: &ConnectionPermit,
    request: Option<&RequestView<'_>>,
) -> Result<RequestPermit, Denial> {
    match request {
        Some(request) => access.authorize_request(permit, request),
        None => access.authorize_tcp(permit),
    }
}

/// True if the client's own sidecar sends requests to `stock`.
fn may_call(objects: &[Object], client: &str) -> bool {
    let service = "shop/stock".parse().unwrap();
    let snapshot = snapshot_for(objects, &parse_workload(client), &[service]).unwrap();
    snapshot
        .services
        .values()
        .all(|service_config| service_config.client_authorization == ClientAuthorization::Allowed)
}

/// Decides a call to an address outside the mesh.
fn decide_outbound(
    objects: &[Object],
    case: &Value,
    to: &str,
    request: Option<&RequestView<'_>>,
) -> Value {
    let address: SocketAddr = to.parse().unwrap();
    let client = parse_workload(case["from"].as_str().unwrap());
    let compiled =
        CompiledSnapshot::build(Arc::new(snapshot_for(objects, &client, &[]).unwrap()), None);
    let compiled = compiled.unwrap();
    let permission = compiled.egress_rules.decide_address(address);
    if compiled.snapshot.config.egress == Egress::Allow || permission == EgressDecision::Allowed {
        return json!("allowed");
    }
    let denied = |is_request| client_result(Reason::EgressDenied, is_request);
    let by_name = || {
        let name = case["serverName"].as_str()?;
        compiled.egress_rules.policy_for_server_name(address, name)
    };
    match (permission, request) {
        (EgressDecision::Inspected { by_request: true, .. }, Some(request)) => {
            match compiled.egress_rules.policy_for_request(address, request) {
                Some(_) => json!("allowed"),
                None => denied(true),
            }
        }
        (EgressDecision::Inspected { by_server_name: true, .. }, None) if by_name().is_some() => {
            json!("allowed")
        }
        _ => denied(false),
    }
}

/// Returns the result at the client: a response if a request is detected and the reason has a status.
fn client_result(reason: Reason, is_request: bool) -> Value {
    match reason.status() {
        status if is_request && status != 0 => json!({"status": status, "reason": reason.label()}),
        _ => json!({"reset": reason.label()}),
    }
}

fn member_id(client: &str) -> SpiffeId {
    let (namespace, name) = client.split_once('/').unwrap();
    SpiffeId {
        trust_domain: TrustDomain::new("cluster.local").unwrap(),
        account: ServiceAccount::new(namespace, name).unwrap(),
    }
}

/// Returns the name in an external principal's certificate.
fn principal_name(tls: &Value) -> Option<Name> {
    tls["guest"].as_str().map(|name| Name::new(name).unwrap())
}

fn parse_origin(from: &Value) -> ConnectionOrigin {
    let transport = match from.get("tls") {
        None => SessionTransport::Plaintext,
        Some(tls) => SessionTransport::Tls {
            server_name: tls["serverName"].as_str().map(Into::into),
            principal_names: principal_name(tls).into_iter().collect(),
        },
    };
    ConnectionOrigin { address: from["address"].as_str().unwrap().parse().unwrap(), transport }
}

/// Returns the application port of a service port.
fn application_port(port: u64) -> u16 {
    match port {
        9080 => 8080,
        _ => 5432,
    }
}

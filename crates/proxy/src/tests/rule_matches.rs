//! Counts of rule matches.

use leno_model::{
    Access, CircuitBreaker, CircuitLimits, InboundPolicy, PathMatch, PolicyAction, PolicyName,
    PolicyRule, PortCircuitBreaker, PortSet, RequestMatch, ServicePolicyKind, ServicePolicyName,
    TrafficPolicy,
};

use super::fixture::{
    Application, Client, GET, Mesh, OK, PORT, Sidecar, run, service_config, wait_until,
};
use super::routes::{path_rule, routed_services};

/// Returns the counts of a sidecar, each as `Kind name rule`.
fn match_counts(sidecar: &Sidecar) -> Vec<(String, u64)> {
    let rules = sidecar.telemetry.matched_rules().into_iter();
    let rules = rules
        .map(|(rule, matches)| (format!("{} {} {}", rule.kind, rule.name, rule.rule), matches));
    let mut rules: Vec<_> = rules.collect();
    rules.sort();
    rules
}

fn expected_counts(rules: &[(&str, u64)]) -> Vec<(String, u64)> {
    rules.iter().map(|(rule, matches)| ((*rule).to_owned(), *matches)).collect()
}

async fn send_request(client: &mut Client<tokio::net::TcpStream>, path: &str) -> u16 {
    client.send_request(&format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await.status
}

#[test]
fn each_rule_of_a_route_counts_its_matches_across_configuration_changes() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        let backends = [("ratings-v2", 1)];
        let rules =
            vec![path_rule("/a", &backends), path_rule("/b", &backends), path_rule("/broken", &[])];
        mesh.set_client_services(routed_services(&mesh, rules.clone()));
        for (path, status) in [("/a", 200), ("/b", 200), ("/b", 200), ("/broken", 500), ("/c", 404)]
        {
            assert_eq!(send_request(&mut client, path).await, status, "{path}");
        }
        let matches = [
            ("HTTPRoute ratings-route 0", 1),
            ("HTTPRoute ratings-route 1", 2),
            ("HTTPRoute ratings-route 2", 1),
        ];
        assert_eq!(match_counts(&mesh.client), expected_counts(&matches));
        // A recompiled rule keeps its count.
        mesh.set_client_services(routed_services(&mesh, rules[..2].to_vec()));
        assert_eq!(send_request(&mut client, "/b").await, 200);
        assert_eq!(match_counts(&mesh.client)[1].1, 3);
        assert_eq!(match_counts(&mesh.server), []);
    });
}

#[test]
fn rules_of_policies_count_allowed_denied_and_dry_run_matches() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let policy_rule = |name: &str, action, path: &str| PolicyRule {
            policy: PolicyName::new("bookinfo", "guard").unwrap(),
            name: name.to_owned(),
            action,
            peers: Vec::new(),
            requests: vec![RequestMatch {
                path: PathMatch::Prefix(path.to_owned()),
                ..RequestMatch::default()
            }],
            claims: Vec::new(),
            ports: PortSet::All,
        };
        let rules = vec![
            policy_rule("secret", PolicyAction::Deny, "/secret"),
            policy_rule("all", PolicyAction::Allow, "/"),
        ];
        let mut client = Client::connect(mesh.listener).await;
        for is_dry_run in [false, true] {
            let inbound = InboundPolicy { rules: rules.clone(), is_dry_run };
            mesh.set_access_and_policy(Access::AllowAll, inbound);
            let expected_status = if is_dry_run { 200 } else { 403 };
            assert_eq!(send_request(&mut client, "/secret").await, expected_status);
            assert_eq!(send_request(&mut client, "/open").await, 200);
        }
        wait_until(|| mesh.server.ended_count() == 4).await;
        let matches = [("AccessPolicy guard all", 2), ("AccessPolicy guard secret", 2)];
        assert_eq!(match_counts(&mesh.server), expected_counts(&matches));
        // A denial for lack of a matching rule counts for no rule.
        mesh.set_access(Access::AllowListed(Vec::new()));
        assert_eq!(send_request(&mut client, "/open").await, 403);
        assert_eq!(match_counts(&mesh.server), expected_counts(&matches));
    });
}

#[test]
fn a_circuit_breaker_counts_the_requests_that_it_rejects() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let limits = CircuitLimits { requests: Some(0), ..CircuitLimits::default() };
        let rule = CircuitBreaker { limits, ..CircuitBreaker::default() };
        let policy = ServicePolicyName::new(ServicePolicyKind::CircuitBreaker, "bookinfo", "b");
        let breaker = Some(PortCircuitBreaker { policy: policy.unwrap(), rule });
        let mut service = service_config(mesh.setup.protocol, &[mesh.server_endpoint()]);
        service.ports.get_mut(&PORT).unwrap().traffic_policy =
            TrafficPolicy { breaker, ..TrafficPolicy::default() };
        mesh.set_client_services(vec![service]);
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.status, 503);
        assert_eq!(match_counts(&mesh.client), expected_counts(&[("CircuitBreaker b ", 1)]));
    });
}

//! Policies of a called service with a route that forwards its requests to other services.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::{
    BalanceAlgorithm, CircuitBreaker, CircuitLimits, EjectionTime, Endpoint, FailureClasses,
    FaultAbort, FaultRule, FixedResponse, HashKey, HealthCheck, HealthProbe, HedgeRule,
    LoadBalancing, OutlierAlgorithm, OutlierDetection, PortCircuitBreaker, PortConfig, PortFaults,
    PortHedging, PortLoadBalancing, PortOutlierDetection, Protocol, RouteKind, ServiceConfig,
    ServiceName, ServicePolicyKind, ServicePolicyName, TcpRule, TlsRule, TrafficPolicy,
    TripConditions,
};
use leno_telemetry::Count;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::circuit::trip_rule;
use super::fixture::{
    Application, Client, End, GET, Mesh, OK, PORT, Setup, Sidecar, run, service_config, wait_until,
};
use super::routes::{path_rule, routed_services};

const BROKEN: &str = "HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n";
const V2: &str = "ratings-v2";
const V3: &str = "ratings-v3";

/// An outbound listener for a service with a route that sends half of its requests to each of two other
/// services.
struct Canary {
    mesh: Mesh,
    _server: Sidecar,
    endpoints: [Endpoint; 2],
}

impl Canary {
    async fn new(apps: [&Application; 2], protocol: Protocol) -> Self {
        let setup = Setup { protocol, ..Setup::default() };
        let mesh = Mesh::new(apps[0].address, setup).await;
        let (server, second) = mesh.start_server("ratings-2", apps[1].address).await;
        let endpoints = [mesh.server_endpoint(), second];
        Self { mesh, _server: server, endpoints }
    }

    /// Applies these policies of the called service at the client's sidecar. A `TLSRoute` takes its sessions
    /// for a name.
    fn apply_session_policy(&self, hostname: &str, called: TrafficPolicy) {
        self.apply_backend_policies(no_policies(), |port| {
            let tls = TlsRule {
                route: "bookinfo/sessions".parse().unwrap(),
                hostnames: vec![hostname.parse().unwrap()],
                backends: path_rule("/", &[(V2, 1), (V3, 1)]).backends,
                ungranted_weight: 0,
            };
            (port.traffic_policy, port.tls_rules) = (called, vec![tls]);
            port.rules.clear();
        });
    }

    /// Applies these policies at the client's sidecar: of the called service, and of each backend.
    fn apply_policies(&self, called: TrafficPolicy, backends: [TrafficPolicy; 2]) {
        self.apply_backend_policies(backends, |port| {
            let tcp = TcpRule {
                route: "bookinfo/share".parse().unwrap(),
                kind: RouteKind::Tcp,
                backends: path_rule("/", &[(V2, 1), (V3, 1)]).backends,
                ungranted_weight: 0,
            };
            (port.traffic_policy, port.tcp_rule) = (called, Some(tcp));
        });
    }

    /// Applies these policies of each backend at the client's sidecar, and `change` to the called port.
    fn apply_backend_policies(
        &self,
        backends: [TrafficPolicy; 2],
        change: impl FnOnce(&mut PortConfig),
    ) {
        let rules = vec![path_rule("/", &[(V2, 1), (V3, 1)])];
        let mut services = routed_services(&self.mesh, rules);
        change(services[0].ports.get_mut(&PORT).unwrap());
        services.truncate(1);
        for ((name, endpoint), traffic_policy) in [V2, V3].iter().zip(&self.endpoints).zip(backends)
        {
            let name = ServiceName::new("bookinfo", name).unwrap();
            let mut endpoint = endpoint.clone();
            endpoint.id.service = name.clone();
            let mut service =
                ServiceConfig { name, ..service_config(self.mesh.setup.protocol, &[endpoint]) };
            service.ports.get_mut(&PORT).unwrap().traffic_policy = traffic_policy;
            services.push(service);
        }
        self.mesh.set_client_services(services);
    }

    /// Returns the subjects of the circuits that the client's sidecar reports as open.
    fn open_circuits(&self) -> Vec<String> {
        let conditions =
            self.mesh.client.worker.config_store.conditions.active_conditions(Instant::now());
        conditions.into_iter().map(|condition| condition.subject).collect()
    }

    fn client_count(&self, count: Count) -> u64 {
        self.mesh.client.telemetry.count(count)
    }
}

fn policy_name(kind: ServicePolicyKind, name: &str) -> ServicePolicyName {
    ServicePolicyName::new(kind, "bookinfo", name).unwrap()
}

fn breaker_policy(policy: &str, rule: CircuitBreaker) -> TrafficPolicy {
    let policy = policy_name(ServicePolicyKind::CircuitBreaker, policy);
    TrafficPolicy { breaker: Some(PortCircuitBreaker { policy, rule }), ..TrafficPolicy::default() }
}

fn at_most(policy: &str, requests: u32) -> TrafficPolicy {
    let limits = CircuitLimits { requests: Some(requests), ..CircuitLimits::default() };
    breaker_policy(policy, CircuitBreaker { limits, ..CircuitBreaker::default() })
}

fn tripping_policy(policy: &str, trip: TripConditions, status: u16) -> TrafficPolicy {
    let response = FixedResponse { status: Some(status), body: None, headers: Vec::new() };
    breaker_policy(
        policy,
        CircuitBreaker { trip: Some(trip), response, ..CircuitBreaker::default() },
    )
}

fn aborting_policy(policy: &str, status: u16) -> TrafficPolicy {
    let response = FixedResponse { status: Some(status), body: None, headers: Vec::new() };
    let rule = FaultRule {
        name: "rule".to_owned(),
        requests: Vec::new(),
        peers: Vec::new(),
        delay: None,
        abort: Some(FaultAbort { share_ppm: 1_000_000, response, grpc: None }),
    };
    let policy = policy_name(ServicePolicyKind::FaultInjection, policy);
    TrafficPolicy {
        faults: Some(PortFaults { policy, rules: vec![rule] }),
        ..TrafficPolicy::default()
    }
}

fn ejecting_policy(
    policy: &str,
    consecutive: u32,
    health_check: Option<HealthCheck>,
) -> TrafficPolicy {
    let rule = OutlierDetection {
        failures: FailureClasses { server_errors: true, ..FailureClasses::default() },
        window: Duration::from_secs(10),
        buckets: 10,
        failure_rate: None,
        consecutive_failures: Some(consecutive),
        max_ejection_percent: 100,
        min_healthy: 0,
        ejection_time: EjectionTime {
            base: Duration::from_secs(600),
            max: Duration::from_secs(600),
            jitter_percent: 0,
        },
        probe_requests: 1,
        health_check: health_check.map(Box::new),
    };
    let policy = policy_name(ServicePolicyKind::OutlierDetection, policy);
    let algorithm = OutlierAlgorithm::Native(rule);
    TrafficPolicy {
        outlier_detection: Some(PortOutlierDetection { policy, algorithm }),
        ..TrafficPolicy::default()
    }
}

fn no_policies() -> [TrafficPolicy; 2] {
    [TrafficPolicy::default(), TrafficPolicy::default()]
}

async fn start_hanging() -> Application {
    Application::start(|mut client| async move { drop(client.read_rest().await) }).await
}

#[test]
fn a_limit_of_the_called_service_counts_requests_to_all_backends_together() {
    run(async {
        let (app1, app2) = (start_hanging().await, start_hanging().await);
        let canary = Canary::new([&app1, &app2], Protocol::Http).await;
        canary.apply_policies(at_most("called", 3), no_policies());
        let mut waiting_clients = Vec::new();
        for _ in 0..3 {
            let mut client = Client::connect(canary.mesh.listener).await;
            client.send_bytes(GET).await;
            waiting_clients.push(client);
            wait_until(|| app1.accepted.get() + app2.accepted.get() == waiting_clients.len()).await;
        }
        for _ in 0..8 {
            let mut client = Client::connect(canary.mesh.listener).await;
            assert_eq!(client.send_request(GET).await.verdict(), (503, Some("circuit-full")));
        }
        waiting_clients.pop().unwrap().abandon();
        wait_until(|| canary.mesh.client.ended_count() == 9).await;
        Client::connect(canary.mesh.listener).await.send_bytes(GET).await;
        wait_until(|| app1.accepted.get() + app2.accepted.get() == 4).await;
    });
}

#[test]
fn the_limits_of_the_called_service_and_of_the_backend_both_apply() {
    run(async {
        let (app1, app2) = (start_hanging().await, start_hanging().await);
        let canary = Canary::new([&app1, &app2], Protocol::Http).await;
        canary.apply_policies(at_most("called", 1000), [at_most("v2", 1), at_most("v3", 1)]);
        let mut waiting_clients = Vec::new();
        while app1.accepted.get() + app2.accepted.get() < 2 {
            let count_before = canary.mesh.client.ended_count();
            let mut client = Client::connect(canary.mesh.listener).await;
            client.send_bytes(GET).await;
            let accepted_count = app1.accepted.get() + app2.accepted.get();
            wait_until(|| {
                canary.mesh.client.ended_count() > count_before
                    || app1.accepted.get() + app2.accepted.get() > accepted_count
            })
            .await;
            waiting_clients.push(client);
        }
        for _ in 0..8 {
            let mut client = Client::connect(canary.mesh.listener).await;
            assert_eq!(client.send_request(GET).await.verdict(), (503, Some("circuit-full")));
        }
        assert_eq!((app1.accepted.get(), app2.accepted.get()), (1, 1));
    });
}

#[test]
fn a_connection_limit_of_the_called_service_counts_all_backends() {
    run(async {
        let (app1, app2) = (start_hanging().await, start_hanging().await);
        let canary = Canary::new([&app1, &app2], Protocol::Tcp).await;
        let limits = CircuitLimits { connections: Some(2), ..CircuitLimits::default() };
        let rule = CircuitBreaker { limits, ..CircuitBreaker::default() };
        canary.apply_policies(breaker_policy("called", rule), no_policies());
        let mut open_clients = Vec::new();
        for count in 1..=2 {
            let mut client = Client::connect(canary.mesh.listener).await;
            client.send_bytes("hello").await;
            open_clients.push(client);
            wait_until(|| app1.accepted.get() + app2.accepted.get() == count).await;
        }
        for _ in 0..4 {
            assert_ne!(Client::connect(canary.mesh.listener).await.read_end().await, End::Clean);
        }
        assert_eq!(canary.mesh.client.failure_counts().get("circuit-full"), Some(&4));
    });
}

/// Returns the first bytes of a TLS session for this name.
fn client_hello(name: &'static str) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let name = name.try_into().unwrap();
    let mut bytes = Vec::new();
    ClientConnection::new(Arc::new(config), name).unwrap().write_tls(&mut bytes).unwrap();
    bytes
}

#[test]
fn policies_of_the_called_service_apply_to_sessions_of_a_tls_route() {
    run(async {
        for protocol in [Protocol::Tcp, Protocol::Detect] {
            let (app1, app2) = (start_hanging().await, start_hanging().await);
            let canary = Canary::new([&app1, &app2], protocol).await;
            let limits = CircuitLimits { connections: Some(2), ..CircuitLimits::default() };
            let rule = CircuitBreaker { limits, ..CircuitBreaker::default() };
            canary.apply_session_policy("a.com", breaker_policy("called", rule));
            let mut open_clients = Vec::new();
            for count in 1..=2 {
                let mut client = Client::connect(canary.mesh.listener).await;
                client.send_bytes(client_hello("a.com")).await;
                open_clients.push(client);
                wait_until(|| app1.accepted.get() + app2.accepted.get() == count).await;
            }
            for _ in 0..4 {
                let mut client = Client::connect(canary.mesh.listener).await;
                client.send_bytes(client_hello("a.com")).await;
                assert_ne!(client.read_end().await, End::Clean, "{protocol:?}");
            }
            assert_eq!(canary.mesh.client.failure_counts().get("circuit-full"), Some(&4));
        }
        // Faults apply to requests, which sidecars do not see inside a TLS session.
        let app = start_hanging().await;
        let canary = Canary::new([&app, &app], Protocol::Detect).await;
        canary.apply_session_policy("a.com", aborting_policy("called", 418));
        let mut client = Client::connect(canary.mesh.listener).await;
        client.send_bytes(client_hello("a.com")).await;
        assert_ne!(client.read_end().await, End::Clean);
        assert_eq!(canary.mesh.client.failure_counts().get("denied-by-policy"), Some(&1));
    });
}

#[test]
fn the_circuit_of_the_called_service_counts_failures_of_all_backends() {
    run(async {
        let (app1, app2) =
            (Application::with_response(BROKEN).await, Application::with_response(BROKEN).await);
        let canary = Canary::new([&app1, &app2], Protocol::Http).await;
        let long_trip = TripConditions { open_duration: Duration::from_secs(600), ..trip_rule() };
        let patient_trip = TripConditions { consecutive_failures: Some(1000), ..long_trip.clone() };
        let backend = |policy| tripping_policy(policy, patient_trip.clone(), 418);
        canary.apply_policies(
            tripping_policy("called", long_trip, 429),
            [backend("v2"), backend("v3")],
        );
        let mut client = Client::connect(canary.mesh.listener).await;
        for _ in 0..3 {
            assert_eq!(client.send_request(GET).await.verdict(), (500, None));
        }
        for _ in 0..5 {
            assert_eq!(client.send_request(GET).await.verdict(), (429, Some("circuit-open")));
        }
        assert_eq!(canary.client_count(Count::CircuitOpened), 1);
        // The circuit belongs to the called service, although no endpoint is its own.
        assert_eq!(canary.open_circuits(), ["bookinfo/ratings:9080"]);
    });
}

#[test]
fn direct_and_routed_requests_share_the_circuit_of_a_backend() {
    run(async {
        let app = Application::with_response(BROKEN).await;
        let canary = Canary::new([&app, &app], Protocol::Http).await;
        let long_trip = TripConditions { open_duration: Duration::from_secs(600), ..trip_rule() };
        let own_policy = tripping_policy(
            "both",
            TripConditions { consecutive_failures: Some(4), ..long_trip },
            418,
        );
        // The called service adds policies of its own, so that direct and routed requests have different
        // policies.
        canary.apply_policies(
            ejecting_policy("called", 1000, None),
            [own_policy.clone(), own_policy],
        );
        let [v2, v3] = [V2, V3].map(|name| ServiceName::new("bookinfo", name).unwrap());
        let listener_kind =
            |service| crate::session::ListenerKind::Outbound { service, port: PORT };
        let direct = canary.mesh.client.open_listener(listener_kind(v2)).await;
        let other_listener = canary.mesh.client.open_listener(listener_kind(v3)).await;
        for listener in [direct, other_listener] {
            let mut client = Client::connect(listener).await;
            for _ in 0..3 {
                assert_eq!(client.send_request(GET).await.verdict(), (500, None));
            }
        }
        assert_eq!(canary.open_circuits(), [] as [&str; 0]);
        let mut routed = Client::connect(canary.mesh.listener).await;
        let mut opened = 0;
        while canary.client_count(Count::CircuitOpened) < 2 {
            opened += usize::from(routed.send_request(GET).await.verdict() == (500, None));
            assert!(opened <= 2, "each backend has one failure left");
        }
        let expected_circuits = [V2, V3].map(|name| format!("bookinfo/{name}:{PORT}"));
        assert_eq!(canary.open_circuits(), expected_circuits);
        for listener in [direct, other_listener, canary.mesh.listener] {
            let response = Client::connect(listener).await.send_request(GET).await;
            assert_eq!(response.verdict(), (418, Some("circuit-open")));
        }
    });
}

#[test]
fn faults_of_the_called_service_override_those_of_the_backend() {
    run(async {
        let (app1, app2) =
            (Application::with_response(OK).await, Application::with_response(OK).await);
        let canary = Canary::new([&app1, &app2], Protocol::Http).await;
        let backends = || [aborting_policy("v2", 502), aborting_policy("v3", 502)];
        for (called, backends, expected) in [
            (aborting_policy("called", 418), no_policies(), (418, Some("fault-injected"))),
            (aborting_policy("called", 418), backends(), (418, Some("fault-injected"))),
            (TrafficPolicy::default(), backends(), (502, Some("fault-injected"))),
            (at_most("called", 1000), backends(), (502, Some("fault-injected"))),
        ] {
            canary.apply_policies(called, backends);
            let mut client = Client::connect(canary.mesh.listener).await;
            for _ in 0..4 {
                assert_eq!(client.send_request(GET).await.verdict(), expected);
            }
        }
        assert!(app1.received_requests().is_empty() && app2.received_requests().is_empty());
    });
}

#[test]
fn outlier_detection_of_the_called_service_applies_to_backends_without_their_own() {
    run(async {
        let (app1, app2) =
            (Application::with_response(BROKEN).await, Application::with_response(BROKEN).await);
        let canary = Canary::new([&app1, &app2], Protocol::Http).await;
        canary.apply_policies(
            ejecting_policy("called", 3, None),
            [TrafficPolicy::default(), ejecting_policy("v3", 5, None)],
        );
        let mut client = Client::connect(canary.mesh.listener).await;
        while canary.client_count(Count::EndpointEjectedForConsecutive) < 2 {
            client.send_request(GET).await;
        }
        assert_eq!((app1.received_requests().len(), app2.received_requests().len()), (3, 5));
        for _ in 0..4 {
            assert_eq!(client.send_request(GET).await.verdict(), (503, Some("no-endpoint")));
        }
        let ejected = canary.mesh.client.worker.ejected_endpoints.snapshot();
        let ejected: BTreeSet<String> = ejected
            .into_iter()
            .map(|(_, it)| format!("{} by {}", it.endpoint.id.workload.name, it.policy.name))
            .collect();
        let expected = ["ratings-1 by called", "ratings-2 by v3"];
        assert_eq!(ejected, expected.map(str::to_owned).into());
    });
}

#[test]
fn health_checks_of_the_called_service_reach_backends() {
    run(async {
        let (app1, app2) =
            (Application::with_response(OK).await, Application::with_response(OK).await);
        let canary = Canary::new([&app1, &app2], Protocol::Http).await;
        let check = HealthCheck {
            probe: HealthProbe::Http { path: "/healthz".to_owned() },
            interval: Duration::from_millis(20),
            timeout: Duration::from_secs(60),
            failures: 2,
            successes: 2,
        };
        canary.apply_policies(ejecting_policy("called", 3, Some(check)), no_policies());
        let request_count = |app: &Application| {
            let requests = app.received_requests();
            requests.iter().filter(|request| request.head.starts_with("GET /healthz")).count()
        };
        let mut client = Client::connect(canary.mesh.listener).await;
        while request_count(&app1) < 3 || request_count(&app2) < 3 {
            assert_eq!(client.send_request(GET).await.status, 200);
        }
    });
}

#[test]
fn load_balancing_of_the_called_service_selects_endpoints_of_a_backend() {
    run(async {
        let (app1, app2) =
            (Application::with_response(OK).await, Application::with_response(OK).await);
        let mesh = Mesh::permissive(app1.address).await;
        let (_server, second) = mesh.start_server("ratings-2", app2.address).await;
        let keyed_balancing = |policy, algorithm| PortLoadBalancing {
            policy: policy_name(ServicePolicyKind::LoadBalancing, policy),
            rule: LoadBalancing { algorithm, slow_start: None },
        };
        let maglev = BalanceAlgorithm::Maglev(HashKey::Header("x-user".to_owned()));
        for (own_policy, spreads) in [(None, false), (Some(BalanceAlgorithm::RoundRobin), true)] {
            let mut services = routed_services(&mesh, vec![path_rule("/", &[(V2, 1)])]);
            let port = services[0].ports.get_mut(&PORT).unwrap();
            port.traffic_policy.balancing = Some(keyed_balancing("called", maglev.clone()));
            let port = services[1].ports.get_mut(&PORT).unwrap();
            port.endpoints = [mesh.server_endpoint(), second.clone()].map(Arc::new).into();
            port.traffic_policy.balancing =
                own_policy.map(|algorithm| keyed_balancing("v2", algorithm));
            mesh.set_client_services(services);
            let counts_before = (app1.received_requests().len(), app2.received_requests().len());
            let mut client = Client::connect(mesh.listener).await;
            for _ in 0..16 {
                let get = GET.replacen("\r\n", "\r\nx-user: ann\r\n", 1);
                assert_eq!(client.send_request(&get).await.status, 200);
            }
            let accepted_count = (
                app1.received_requests().len() - counts_before.0,
                app2.received_requests().len() - counts_before.1,
            );
            assert_eq!(accepted_count.0 > 0 && accepted_count.1 > 0, spreads, "{accepted_count:?}");
        }
    });
}

#[test]
fn hedging_of_the_called_service_sends_a_second_attempt_to_the_backend() {
    run(async {
        let (silent_app, app) = (start_hanging().await, Application::with_response(OK).await);
        let mesh = Mesh::permissive(silent_app.address).await;
        let (_server, second) = mesh.start_server("ratings-2", app.address).await;
        let mut services = routed_services(&mesh, vec![path_rule("/", &[(V2, 1)])]);
        let policy = policy_name(ServicePolicyKind::Hedging, "called");
        let rule = HedgeRule { after: Duration::from_millis(1), methods: [].into() };
        services[0].ports.get_mut(&PORT).unwrap().traffic_policy.hedging =
            Some(PortHedging { policy, rule });
        let port = services[1].ports.get_mut(&PORT).unwrap();
        port.endpoints = [mesh.server_endpoint(), second].map(Arc::new).into();
        mesh.set_client_services(services);
        // The balancer selects the endpoint of a first attempt; one at the mute endpoint is hedged.
        let mut client = Client::connect(mesh.listener).await;
        while mesh.client.telemetry.count(Count::HedgesWon) == 0 {
            assert_eq!(client.send_request(GET).await.status, 200);
        }
    });
}

#[test]
fn counts_survive_changes_of_other_policies_and_endpoints() {
    run(async {
        let (app1, app2) =
            (Application::with_response(BROKEN).await, Application::with_response(BROKEN).await);
        let canary = Canary::new([&app1, &app2], Protocol::Http).await;
        let called_port_policy = || ejecting_policy("called", 3, None);
        canary.apply_policies(called_port_policy(), no_policies());
        let mut client = Client::connect(canary.mesh.listener).await;
        while canary.client_count(Count::EndpointEjectedForConsecutive) < 2 {
            client.send_request(GET).await;
        }
        // The same policies with other routes: the state is kept.
        canary.apply_policies(called_port_policy(), no_policies());
        assert_eq!(client.send_request(GET).await.verdict(), (503, Some("no-endpoint")));
        // A policy that is removed returns its ejected endpoints.
        canary.apply_policies(TrafficPolicy::default(), no_policies());
        assert_eq!(client.send_request(GET).await.verdict(), (500, None));
        wait_until(|| canary.mesh.client.worker.ejected_endpoints.snapshot().is_empty()).await;
    });
}

//! Tests of the objects read from valid documents.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use leno_model::{
    AccessLog, CollectorProtocol, DefaultPolicy, FieldMatch, HttpGet, HttpRoute, HttpRouteGroup,
    LogFormat, MeshConfig, MtlsMode, Name, Object, OutboundListener, PathMatch, PortSet,
    PropagationFormat, Protocol, ReferenceGrant, RequestMatch, RetryRule, RevokedWorkload,
    RouteKind, RouteName, RouteParent, RunOptions, RunUser, Sampling, Service, ServiceAccount,
    ServiceName, TargetPort, TargetRule, TcpRoute, TrafficTarget, ValueMatch, WeightedBackend,
    Workload, WorkloadName, WorkloadPort,
};
use leno_registry::read_str;

/// Returns the objects of a text without rejections.
fn read_valid(text: &str) -> Vec<(Object, u32)> {
    let (objects, rejected) = read_str("good.yaml", text);
    assert_eq!(rejected, []);
    objects
}

macro_rules! single_object {
    ($kind:ident, $text:expr) => {{
        let mut objects = read_valid($text);
        assert_eq!(objects.len(), 1);
        match objects.remove(0).0 {
            Object::$kind(object) => object,
            other => panic!("{other:?}"),
        }
    }};
}

fn service_account(namespace: &str, name: &str) -> ServiceAccount {
    ServiceAccount::new(namespace, name).unwrap()
}

/// The format documented in the README.
const DOCUMENTED: &str = r#"
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: ratings-1, namespace: bookinfo, labels: {app: ratings, version: v1}}
spec:
  serviceAccount: ratings
  ports: [{name: http, port: 9080, protocol: HTTP}]   # where the application listens; HTTP | HTTP2 | GRPC | TCP | detect when absent
  address: 127.0.0.1                                   # default
  run: ["python3", "-m", "http.server", "9080"]        # optional: `leno up` starts and supervises it, logs prefixed with its name
  env: {KEY: value}                                    # optional
  outbound:                                            # optional fixed local doors to other services
  - {service: details.bookinfo, port: 9080, listen: "127.0.0.1:19081"}
---
apiVersion: v1
kind: Service
metadata: {name: ratings, namespace: bookinfo}
spec: {selector: {app: ratings}, ports: [{name: http, port: 9080}]}
---
apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {name: mesh}
spec: {trustDomain: cluster.local, defaultPolicy: allow}   # allow | deny
"#;

#[test]
fn the_documented_form_is_read() {
    let objects = read_valid(DOCUMENTED);
    let lines: Vec<u32> = objects.iter().map(|(_, line)| *line).collect();
    assert_eq!(lines, [2, 14, 19]);
    let text_map = |text_map: &[(&str, &str)]| {
        let pair = |(a, b): &(&str, &str)| ((*a).to_owned(), (*b).to_owned());
        text_map.iter().map(pair).collect()
    };
    let workload = Workload {
        name: "bookinfo/ratings-1".parse().unwrap(),
        uid: None,
        labels: text_map(&[("app", "ratings"), ("version", "v1")]),
        account: service_account("bookinfo", "ratings"),
        ports: vec![WorkloadPort {
            name: Some("http".parse().unwrap()),
            port: 9080,
            protocol: Protocol::Http,
        }],
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        run: ["python3", "-m", "http.server", "9080"].map(str::to_owned).to_vec(),
        run_options: Box::new(RunOptions {
            env: text_map(&[("KEY", "value")]),
            ..RunOptions::default()
        }),
        outbound_listeners: vec![OutboundListener {
            service: "bookinfo/details".parse().unwrap(),
            port: 9080,
            listen: "127.0.0.1:19081".parse().unwrap(),
        }],
        admission: Default::default(),
        weight: Default::default(),
        ready: true,
        terminating: false,
        other_addresses: Default::default(),
        sidecar: true,
    };
    let service = Service {
        name: "bookinfo/ratings".parse().unwrap(),
        selector: text_map(&[("app", "ratings")]),
        ports: vec![leno_model::ServicePort {
            name: Some("http".parse().unwrap()),
            port: 9080,
            target: TargetPort::Number(9080),
            protocol: None,
        }],
        addresses: Default::default(),
        unready: false,
        families: leno_model::IpFamilies::Both,
    };
    let objects: Vec<Object> = objects.into_iter().map(|(object, _)| object).collect();
    assert_eq!(
        objects,
        [
            Object::Workload(workload),
            Object::Service(service),
            Object::MeshConfig(MeshConfig::default()),
        ]
    );
}

#[test]
fn omitted_workload_fields_get_defaults() {
    let workload = single_object!(
        Workload,
        "{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {name: client}, spec: {
           run: [sleep, 10, true], env: {PORT: 8080}, ports: [{port: 80}],
           outbound: [{service: a, port: 1, listen: '127.0.0.1:1'},
                      {service: a.b.svc.cluster.local, port: 1, listen: '[::1]:1'}]}}"
    );
    assert_eq!(workload.name.to_string(), "default/client");
    assert_eq!(workload.account, service_account("default", "default"));
    assert_eq!(workload.run, ["sleep", "10", "true"]);
    assert_eq!(workload.run_options.env["PORT"], "8080");
    assert_eq!(workload.ports[0].protocol, Protocol::Detect);
    let services: Vec<_> =
        workload.outbound_listeners.iter().map(|listener| listener.service.to_string()).collect();
    assert_eq!(services, ["default/a", "b/a"]);
}

#[test]
fn directory_user_and_readiness_check_of_a_command_are_read() {
    let workload = single_object!(
        Workload,
        "{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {name: api}, spec: {
           run: [api], cwd: /srv/api, user: www-data, ports: [{port: 80}],
           readiness: {httpGet: {port: 80, path: /ready?full=yes}}}}"
    );
    let options = &workload.run_options;
    assert_eq!(options.cwd.as_deref(), Some("/srv/api"));
    assert_eq!(options.user, Some(RunUser::Named("www-data".to_owned())));
    assert_eq!(options.readiness, Some(HttpGet { port: 80, path: "/ready?full=yes".to_owned() }));
    for (text, expected) in
        [("1000", RunUser::Numbered(1000, None)), ("'1000:7'", RunUser::Numbered(1000, Some(7)))]
    {
        let text = format!(
            "{{apiVersion: leno.dev/v1alpha1, kind: Workload, metadata: {{name: a}}, \
             spec: {{run: [a], user: {text}}}}}"
        );
        let workload = single_object!(Workload, &text);
        assert_eq!(workload.run_options.user, Some(expected), "{text}");
    }
}

#[test]
fn mtls_mode_and_trust_domain_are_read() {
    let config = single_object!(
        MeshConfig,
        "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: mesh}\n\
         spec: {trustDomain: edge.example.com, defaultPolicy: deny}"
    );
    assert_eq!(config.trust_domain.to_string(), "edge.example.com");
    assert_eq!(config.default_policy, DefaultPolicy::Deny);
}

#[test]
fn revoked_accounts_and_workloads_are_read() {
    let mesh = "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: mesh}\nspec:\n  revoked:\n";
    let config = single_object!(
        MeshConfig,
        &format!(
            "{mesh}  - {{kind: ServiceAccount, name: batch, namespace: shop}}\n  \
             - {{kind: Workload, name: cart-1, namespace: shop}}\n  \
             - {{kind: Pod, name: web-0, namespace: shop, uid: 0b5f-11}}\n"
        )
    );
    assert_eq!(config.revoked, [service_account("shop", "batch")].into());
    let workload = |name: &str, uid: Option<&str>| RevokedWorkload {
        workload: WorkloadName::new("shop", name).unwrap(),
        uid: uid.map(|uid| uid.parse().unwrap()),
    };
    let expected = [workload("cart-1", None), workload("web-0", Some("0b5f-11"))];
    assert_eq!(config.revoked_workloads, expected.into());
    for (entry, problem) in [
        ("{kind: Pod, name: web-0, namespace: shop, uid: a/b}", "is not the UID of a pod"),
        (
            "{kind: ServiceAccount, name: a, namespace: shop, uid: b}",
            "is not supported for a ServiceAccount",
        ),
        ("{kind: Deployment, name: a, namespace: shop}", "kind"),
    ] {
        let (_, rejected) = read_str("bad.yaml", &format!("{mesh}  - {entry}\n"));
        let rejections = rejected.iter().map(ToString::to_string).collect::<String>();
        assert!(rejections.contains(problem), "{entry}: {rejections}");
    }
}

#[test]
fn observability_settings_are_read() {
    let config = single_object!(
        MeshConfig,
        "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: mesh}\n\
         spec:\n  tracing: {sampling: 0.5%, errors: false, propagation: b3multi, export: {otlp: \
         {endpoint: 'http://collector:4317', protocol: grpc}}}\n  accessLog: {template: \
         '{method} {path}', sampling: 10%}"
    );
    let tracing = config.observability.tracing.unwrap();
    assert_eq!((tracing.sampling.millionths(), tracing.errors), (5_000, false));
    assert_eq!(tracing.propagation, PropagationFormat::B3Multi);
    assert_eq!(tracing.collector.protocol, CollectorProtocol::OtlpGrpc);
    assert_eq!(tracing.collector.server.authority(), "collector:4317");
    let log = config.observability.access_log.unwrap();
    assert_eq!((log.sampling.millionths(), log.errors), (100_000, true));
    let LogFormat::Template(template) = log.format else { panic!("a template") };
    assert_eq!(template.to_string(), "{method} {path}");
    let config = single_object!(
        MeshConfig,
        "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: mesh}\n\
         spec: {tracing: {export: {zipkin: {endpoint: 'http://[::1]:9411'}}}, accessLog: {}}"
    );
    let tracing = config.observability.tracing.unwrap();
    assert_eq!((tracing.sampling, tracing.errors), (Sampling::DEFAULT, true));
    assert_eq!(tracing.collector.to_string(), "http://[::1]:9411/api/v2/spans");
    assert_eq!(config.observability.access_log, Some(AccessLog::json()));
    assert_eq!(config.observability.metrics, None);
}

#[test]
fn export_settings_of_metrics_and_access_logs_are_read() {
    let config = single_object!(
        MeshConfig,
        "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: mesh}\n\
         spec:\n  metrics: {export: {otlp: {endpoint: 'https://c:4317', protocol: grpc, interval: \
         15s}}}\n  accessLog: {export: {otlp: {endpoint: 'http://c:4318/tenant/logs'}}}"
    );
    let metrics = config.observability.metrics.unwrap();
    assert_eq!(metrics.interval, Duration::from_secs(15));
    assert_eq!(
        metrics.collector.to_string(),
        "https://c:4317/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
    );
    let log = config.observability.access_log.unwrap();
    assert_eq!(log.collector.unwrap().to_string(), "http://c:4318/tenant/logs");
    let config = single_object!(
        MeshConfig,
        "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: mesh}\n\
         spec: {metrics: {export: {otlp: {endpoint: 'http://c:4318'}}}}"
    );
    let metrics = config.observability.metrics.unwrap();
    assert_eq!(metrics.interval, Duration::from_secs(60));
    assert_eq!(metrics.collector.to_string(), "http://c:4318/v1/metrics");
}

#[test]
fn the_most_specific_setting_takes_precedence() {
    let config = single_object!(
        MeshConfig,
        "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: mesh}\n\
         spec: {defaultPolicy: deny, namespaces: [{name: shop, defaultPolicy: dry-run}]}"
    );
    for (namespace, workload_fields, expected) in [
        ("shop", "", DefaultPolicy::DryRun),
        ("shop", "spec: {defaultPolicy: allow}", DefaultPolicy::Allow),
        ("other", "", DefaultPolicy::Deny),
        ("other", "spec: {defaultPolicy: dry-run}", DefaultPolicy::DryRun),
    ] {
        let workload_fields = if workload_fields.is_empty() { "spec: {}" } else { workload_fields };
        let text = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
             metadata: {{name: a, namespace: {namespace}}}\n{workload_fields}"
        );
        assert_eq!(
            config.default_policy_of(&single_object!(Workload, &text)),
            expected,
            "{namespace} {workload_fields}"
        );
    }
}

#[test]
fn the_floor_overrules_settings_of_workloads() {
    let config = single_object!(
        MeshConfig,
        "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {name: mesh}\n\
         spec: {mtls: permissive, namespaces: [{name: legacy, defaultPolicy: allow}], \
         floor: {defaultPolicy: deny, mtls: strict, injection: required, exclusions: forbidden, \
         sidecarImages: [r.example/leno], exceptNamespaces: [legacy]}}"
    );
    assert!(config.floor.injection_required && config.floor.exclusions_forbidden);
    assert!(config.floor.permits_image("r.example/leno:0.1"));
    for (namespace, workload_spec, default_policy, mtls) in [
        ("shop", "{}", DefaultPolicy::Deny, MtlsMode::Strict),
        ("shop", "{defaultPolicy: allow}", DefaultPolicy::Deny, MtlsMode::Strict),
        (
            "shop",
            "{defaultPolicy: dry-run, mtls: permissive}",
            DefaultPolicy::Deny,
            MtlsMode::Strict,
        ),
        ("legacy", "{}", DefaultPolicy::Allow, MtlsMode::Permissive),
        ("legacy", "{defaultPolicy: dry-run}", DefaultPolicy::DryRun, MtlsMode::Permissive),
    ] {
        let text = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
             metadata: {{name: a, namespace: {namespace}}}\nspec: {workload_spec}"
        );
        let workload = single_object!(Workload, &text);
        assert_eq!(
            config.default_policy_of(&workload),
            default_policy,
            "{namespace} {workload_spec}"
        );
        assert_eq!(config.mtls_mode_of(&workload), mtls, "{namespace} {workload_spec}");
    }
}

#[test]
fn a_service_is_read_as_printed_by_kubectl() {
    let service = single_object!(
        Service,
        r#"
apiVersion: v1
kind: Service
metadata:
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
  creationTimestamp: "2026-01-01T00:00:00Z"
  labels: {app: reviews}
  managedFields: [{manager: kubectl, operation: Update}]
  name: reviews
  namespace: bookinfo
  resourceVersion: "123"
  uid: 5a1b
spec:
  clusterIP: 10.96.0.17
  clusterIPs: [10.96.0.17]
  internalTrafficPolicy: Cluster
  ipFamilies: [IPv4]
  ipFamilyPolicy: SingleStack
  ports:
  - {name: http, port: 80, protocol: TCP, targetPort: 9080}
  - {name: rpc, port: 81, targetPort: grpc, appProtocol: kubernetes.io/h2c}
  - {name: tcp-server-first-db, port: 82}
  - {name: grpc-x, port: 83}
  selector: {app: reviews}
  sessionAffinity: None
  type: ClusterIP
status: {loadBalancer: {}}
"#
    );
    let ports: Vec<_> =
        service.ports.iter().map(|port| (port.port, port.target.clone(), port.protocol)).collect();
    assert_eq!(
        ports,
        [
            (80, TargetPort::Number(9080), None),
            (81, TargetPort::Name("grpc".parse().unwrap()), Some(Protocol::Http2)),
            (82, TargetPort::Number(82), Some(Protocol::Tcp)),
            (83, TargetPort::Number(83), Some(Protocol::Grpc)),
        ]
    );
}

fn field_match(name: &str, value: ValueMatch) -> FieldMatch {
    FieldMatch { name: name.to_owned(), value }
}

fn exact_match(text: &str) -> ValueMatch {
    ValueMatch::Exact(text.to_owned())
}

fn regex_match(text: &str) -> ValueMatch {
    ValueMatch::Regex(text.to_owned())
}

/// Every supported field of a route.
const HTTP_ROUTE: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: reviews, namespace: bookinfo}
spec:
  parentRefs:
  - {group: "", kind: Service, name: reviews, port: 9080}
  - {group: core, kind: Service, name: ratings, namespace: bookinfo}
  rules:
  - name: testers
    matches:
    - path: {type: Exact, value: /reviews/1}
      method: GET
      headers:
      - {name: X-Team, value: ops}
      - {name: Host, type: RegularExpression, value: "reviews.*"}
      queryParams: [{name: Debug, type: Exact, value: "1"}]
    - path: {type: PathPrefix, value: /reviews/}
    - path: {type: RegularExpression, value: "/r[0-9]+"}
    - path: {value: /}
    filters: []
    backendRefs: [{group: "", kind: Service, name: reviews-v3, port: 9080}]
    timeouts: {request: 1m30s}
  - backendRefs:
    - {name: reviews-v1, port: 9080, weight: 90}
    - {name: reviews-v2, port: 9080, weight: 0}
    timeouts: {request: 0s}
"#;

#[test]
fn an_http_route_is_read_with_all_fields() {
    let route: HttpRoute = single_object!(HttpRoute, HTTP_ROUTE);
    let service = |name: &str| ServiceName::new("bookinfo", name).unwrap();
    let parent = |name, port| RouteParent { service: service(name), port };
    assert_eq!(route.parents, [parent("reviews", Some(9080)), parent("ratings", None)]);
    let path = |path| RequestMatch { path, ..RequestMatch::default() };
    let full_match = RequestMatch {
        path: PathMatch::Exact("/reviews/1".to_owned()),
        methods: vec!["GET".to_owned()],
        headers: vec![
            field_match("x-team", exact_match("ops")),
            field_match(":authority", regex_match("reviews.*")),
        ],
        query: vec![field_match("Debug", exact_match("1"))],
    };
    let [first, second] = route.rules.as_slice() else { panic!("{route:?}") };
    assert_eq!(
        first.matches,
        [
            full_match,
            path(PathMatch::Prefix("/reviews".to_owned())),
            path(PathMatch::Regex("/r[0-9]+".to_owned())),
            path(PathMatch::Any),
        ]
    );
    assert_eq!(first.route, RouteName::new("bookinfo", "reviews").unwrap());
    assert_eq!(first.request_timeout, Some(Duration::from_secs(90)));
    let backend = |name, weight| WeightedBackend::new(service(name), 9080, weight);
    assert_eq!(first.backends, [backend("reviews-v3", 1)]);
    assert_eq!(second.matches, [RequestMatch::default()]);
    assert_eq!(second.backends, [backend("reviews-v1", 90), backend("reviews-v2", 0)]);
    assert_eq!(second.request_timeout, None);
    let older_version = HTTP_ROUTE.replace("k8s.io/v1\n", "k8s.io/v1beta1\n");
    assert_eq!(single_object!(HttpRoute, &older_version), route);
}

#[test]
fn retries_and_the_attempt_timeout_are_read() {
    let read_rule = |rule: &str| {
        let text = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: x}}\n\
             spec: {{parentRefs: [{{group: \"\", kind: Service, name: a}}], rules: [{rule}]}}\n"
        );
        single_object!(HttpRoute, &text).rules.remove(0)
    };
    let rule = read_rule(
        "{retry: {codes: [503, 500], attempts: 3, backoff: 100ms}, \
         timeouts: {request: 2s, backendRequest: 500ms}}",
    );
    let backoff = Duration::from_millis(100);
    let expected = RetryRule { codes: vec![500, 503], attempts: 3, backoff };
    assert_eq!(rule.actions.retry, Some(expected));
    assert_eq!(rule.actions.attempt_timeout, Some(Duration::from_millis(500)));
    assert_eq!(rule.request_timeout, Some(Duration::from_secs(2)));
    let backoff = Duration::from_millis(25);
    let expected = RetryRule { codes: Vec::new(), attempts: 1, backoff };
    assert_eq!(read_rule("{retry: {}}").actions.retry, Some(expected));
    let capped = read_rule("{retry: {attempts: 100}}").actions.retry.unwrap();
    assert_eq!(capped.attempts, RetryRule::MAX_ATTEMPTS, "the API has no bound");
    let unlimited = read_rule("{timeouts: {request: 0s, backendRequest: 5s}}");
    assert_eq!(unlimited.request_timeout, None);
    assert_eq!(unlimited.actions.attempt_timeout, Some(Duration::from_secs(5)));
    assert_eq!(read_rule("{timeouts: {backendRequest: 0s}}").actions.attempt_timeout, None);
}

#[test]
fn grpc_method_matches_become_path_matches() {
    let route: HttpRoute = single_object!(GrpcRoute, GRPC_ROUTE);
    assert_eq!(route.kind, RouteKind::Grpc);
    assert_eq!(route.parents.len(), 1);
    let [rule, default_rule] = route.rules.as_slice() else { panic!("{route:?}") };
    let paths: Vec<&PathMatch> = rule.matches.iter().map(|rule_match| &rule_match.path).collect();
    let regex = |text: &str| PathMatch::Regex(text.to_owned());
    assert_eq!(
        paths,
        [
            &PathMatch::Exact("/com.example.Books/Get".to_owned()),
            &PathMatch::Prefix("/com.example.Books".to_owned()),
            &regex("/[^/]+/Get"),
            &regex("/(?:com[.].*)/(?:Get|List)"),
            &regex("/(?:com[.].*)/[^/]+"),
            &PathMatch::Any,
        ]
    );
    assert_eq!(rule.matches[0].headers, [field_match("x-team", exact_match("ops"))]);
    assert_eq!(rule.actions.request_headers.remove, ["x-gone"]);
    assert_eq!(rule.kind, RouteKind::Grpc);
    assert_eq!(default_rule.matches, [RequestMatch::default()]);
    assert_eq!(default_rule.backends.len(), 2);
}

/// Every supported field of a `GRPCRoute`.
const GRPC_ROUTE: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: books, namespace: bookinfo}
spec:
  parentRefs: [{group: "", kind: Service, name: books, port: 9000}]
  rules:
  - matches:
    - method: {service: com.example.Books, method: Get}
      headers: [{name: X-Team, value: ops}]
    - method: {type: Exact, service: com.example.Books, method: ""}
    - method: {method: Get}
    - method: {type: RegularExpression, service: "com[.].*", method: Get|List}
    - method: {type: RegularExpression, service: "com[.].*"}
    - headers: [{name: x-all, type: RegularExpression, value: ".*"}]
    filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: [x-gone]}}]
    backendRefs: [{name: books-v1, port: 9000}]
  - backendRefs: [{name: books-v1, port: 9000, weight: 9}, {name: books-v2, port: 9000}]
"#;

#[test]
fn grants_and_backends_in_other_namespaces_are_read() {
    let grant: ReferenceGrant = single_object!(
        ReferenceGrant,
        r#"
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: from-shop, namespace: stock}
spec:
  from:
  - {group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}
  - {group: gateway.networking.k8s.io, kind: GRPCRoute, namespace: shop}
  - {group: split.smi-spec.io, kind: TrafficSplit, namespace: shop}
  to: [{group: "", kind: Service, name: api}, {group: "", kind: Service, name: db}]
"#
    );
    let shop = Name::new("shop").unwrap();
    let api = ServiceName::new("stock", "api").unwrap();
    assert!(grant.permits_route(RouteKind::Http, &shop, &api));
    assert!(grant.permits_route(RouteKind::Grpc, &shop, &api));
    assert!(grant.permits_route(RouteKind::Split, &shop, &api));
    for (namespace, service) in
        [("other", "stock/api"), ("shop", "stock/web"), ("shop", "other/api")]
    {
        let namespace = Name::new(namespace).unwrap();
        let service = service.parse().unwrap();
        assert!(
            !grant.permits_route(RouteKind::Http, &namespace, &service),
            "{namespace} {service}"
        );
    }
    let route: HttpRoute = single_object!(
        HttpRoute,
        r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: web}]
  rules: [{backendRefs: [{name: api, namespace: stock, port: 80}]}]
"#
    );
    assert_eq!(route.rules[0].backends[0].service, api);
}

#[test]
fn the_traffic_target_of_the_smi_specification_is_read() {
    let expected = TrafficTarget {
        name: "stock/shop-reads-stock".parse().unwrap(),
        destination: service_account("stock", "stock-api"),
        sources: vec![service_account("store", "shop")],
        rules: vec![
            TargetRule::Http {
                group: "stock/stock-http".parse().unwrap(),
                matches: vec!["list".to_owned(), "one".to_owned()],
            },
            TargetRule::Tcp { route: "stock/stock-admin".parse().unwrap() },
        ],
    };
    assert_eq!(
        single_object!(
            TrafficTarget,
            r#"
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: shop-reads-stock, namespace: stock}
spec:
  destination: {kind: ServiceAccount, name: stock-api, namespace: stock}
  sources: [{kind: ServiceAccount, name: shop, namespace: store}]
  rules:
  - {kind: HTTPRouteGroup, name: stock-http, matches: [list, one]}
  - {kind: TCPRoute, name: stock-admin}
"#
        ),
        expected
    );
}

#[test]
fn a_route_group_is_read_with_headers_in_both_forms() {
    let named_match = |name: &str, path, methods: &[&str], headers| leno_model::NamedMatch {
        name: name.to_owned(),
        request: RequestMatch {
            path,
            methods: methods.iter().map(|method| (*method).to_owned()).collect(),
            headers,
            query: Vec::new(),
        },
    };
    let path = |text: &str| PathMatch::Regex(text.to_owned());
    let expected = HttpRouteGroup {
        name: "stock/stock-http".parse().unwrap(),
        matches: vec![
            named_match("list", path("/items/?"), &["GET"], vec![]),
            named_match(
                "one",
                path("/items/[0-9]+"),
                &["GET", "HEAD"],
                vec![
                    field_match("x-team", regex_match("(shop|ops)")),
                    field_match(":authority", regex_match(".*stock.*")),
                ],
            ),
            named_match(
                "any",
                PathMatch::Any,
                &[],
                vec![field_match("accept", regex_match(".*json.*"))],
            ),
            named_match("blank", PathMatch::Any, &[], vec![]),
        ],
    };
    assert_eq!(
        single_object!(
            HttpRouteGroup,
            r#"apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: stock-http, namespace: stock}
spec:
  matches:
  - {name: list, pathRegex: "/items/?", methods: [GET]}
  - name: one
    pathRegex: "/items/[0-9]+"
    methods: [GET, HEAD, GET]
    headers: [{X-Team: "(shop|ops)"}, {host: ".*stock.*"}]
  - {name: any, methods: [GET, "*"], headers: {accept: ".*json.*"}}
  - {name: blank, pathRegex: "", methods: []}
"#
        ),
        expected
    );
}

#[test]
fn tcp_routes_are_read_with_and_without_ports() {
    for (matches, ports) in
        [("{ports: [5432, 5433]}", PortSet::Only(vec![5432, 5433])), ("{}", PortSet::All)]
    {
        let text = format!(
            "apiVersion: specs.smi-spec.io/v1alpha4\nkind: TCPRoute\n\
             metadata: {{name: stock-admin, namespace: stock}}\nspec: {{matches: {matches}}}\n"
        );
        let expected = TcpRoute { name: "stock/stock-admin".parse().unwrap(), ports };
        assert_eq!(single_object!(TcpRoute, &text), expected);
    }
}

#[test]
fn json_and_yaml_aliases_are_read() {
    let objects = read_valid(
        "{\"apiVersion\": \"v1\", \"kind\": \"Service\", \"metadata\": {\"name\": \"a\"},\n\
         \"spec\": {\"ports\": [{\"port\": 80}]}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {name: b, labels: &labels {app: b}}\n\
         spec: {selector: *labels, ports: [{port: 80}]}\n",
    );
    assert_eq!(objects.len(), 2);
    let Object::Service(service) = &objects[1].0 else { panic!() };
    assert_eq!(service.selector["app"], "b");
}

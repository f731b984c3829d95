//! Tests of check selection by request, and of rate limit descriptors.

use std::net::Ipv4Addr;
use std::time::Duration;

use leno_model::{
    CheckService, CheckServiceAddress, DescriptorEntry, FailureMode, PathMatch, PortCheck,
    PortLimits, RateLimits, Server, ServicePolicyKind,
};

use super::*;

fn check_service() -> CheckService {
    let at = CheckServiceAddress::External(Server::parse("http://127.0.0.1:9000").unwrap());
    CheckService {
        address: at,
        timeout: Duration::from_millis(200),
        failure_mode: FailureMode::Deny,
    }
}

fn path_prefix(prefix: &str) -> RequestMatch {
    RequestMatch { path: PathMatch::Prefix(prefix.to_owned()), ..RequestMatch::default() }
}

fn policy_name(kind: ServicePolicyKind, name: &str) -> ServicePolicyName {
    ServicePolicyName::new(kind, "shop", name).unwrap()
}

fn config_with_checks(checks: Vec<PortCheck>, limits: Vec<PortLimits>) -> WorkloadConfig {
    let mut config =
        crate::compiled_snapshot::tests::minimal_workload_config(leno_model::Access::AllowAll);
    config.request_checks = BTreeMap::from([(80, checks)]);
    config.limits = BTreeMap::from([(80, limits)]);
    config
}

fn authorization_check(name: &str, requests: Vec<RequestMatch>) -> PortCheck {
    let rule = Authorization {
        check_service: check_service(),
        requests,
        headers: None,
        context_extensions: Vec::new(),
        body: None,
    };
    let policy = policy_name(ServicePolicyKind::ExternalAuthorization, name);
    PortCheck { policy, check: RequestCheck::Authorization(Box::new(rule)) }
}

fn descriptor_entry(key: &str, value: DescriptorValue) -> DescriptorEntry {
    DescriptorEntry { key: key.to_owned(), value }
}

fn global_limit(descriptors: Vec<Descriptor>) -> PortLimits {
    let global = GlobalLimit {
        check_service: check_service(),
        domain: "shop".to_owned(),
        descriptors,
        response: FixedResponse::default(),
        rate_limit_headers: false,
    };
    let limits = RateLimits { global: Some(Box::new(global)), ..RateLimits::default() };
    PortLimits { policy: policy_name(ServicePolicyKind::RateLimit, "all"), limits }
}

fn request_view<'a>(path: &'a str, fields: &'a Vec<(String, String)>) -> RequestView<'a> {
    RequestView { method: "GET", path, query: None, authority: "web:80", fields }
}

#[test]
fn alternative_encodings_do_not_bypass_an_authorization_check() {
    let checks = vec![
        authorization_check("admin", vec![path_prefix("/admin")]),
        authorization_check("all", vec![]),
    ];
    let checks = CompiledChecks::build(&config_with_checks(checks, Vec::new())).unwrap().unwrap();
    assert!(checks.for_port(81).is_none());
    let port = checks.for_port(80).unwrap();
    for (path, expected) in [
        ("/admin/users", &["admin", "all"][..]),
        ("/%61dmin", &["admin", "all"]),
        ("//admin", &["admin", "all"]),
        ("//x/admin", &["admin", "all"]),
        ("/Admin/", &["admin", "all"]),
        ("/admin.json", &["admin", "all"]),
        ("/%2561dmin", &["admin", "all"]),
        ("/x/../admin", &["admin", "all"]),
        ("/administrators", &["all"]),
        ("/", &["all"]),
    ] {
        let fields = Vec::new();
        let view = request_view(path, &fields);
        let names = port.required_authorizations(&view);
        let names: Vec<&str> = names.map(|check| check.policy.name.as_str()).collect();
        assert_eq!(names, expected, "{path}");
    }
}

#[test]
fn a_port_without_checks_requires_none() {
    let mut config = config_with_checks(Vec::new(), Vec::new());
    config.request_checks.clear();
    assert!(CompiledChecks::build(&config).unwrap().is_none());
}

#[test]
fn a_descriptor_is_sent_when_all_its_entries_have_a_value() {
    let descriptor = |requests, entries, hits| Descriptor { requests, entries, hits_addend: hits };
    let limits = global_limit(vec![
        descriptor(
            vec![path_prefix("/orders")],
            vec![descriptor_entry("rule", DescriptorValue::Text("orders".to_owned()))],
            5,
        ),
        descriptor(
            vec![],
            vec![
                descriptor_entry("user", DescriptorValue::Header("x-user".to_owned())),
                descriptor_entry("path", DescriptorValue::Path),
            ],
            1,
        ),
        descriptor(vec![], vec![descriptor_entry("client", DescriptorValue::Client)], 1),
        descriptor(
            vec![],
            vec![
                descriptor_entry("from", DescriptorValue::Address),
                descriptor_entry("method", DescriptorValue::Method),
                descriptor_entry("to", DescriptorValue::Header(":authority".to_owned())),
            ],
            1,
        ),
    ]);
    let checks =
        CompiledChecks::build(&config_with_checks(Vec::new(), vec![limits])).unwrap().unwrap();
    let port = checks.for_port(80).unwrap();
    let account = ServiceAccount::new("shop", "web").unwrap();
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let descriptors_for = |path: &str, user: Option<&str>, account: Option<&ServiceAccount>| {
        let fields: Vec<(String, String)> =
            user.iter().map(|user| ("x-user".to_owned(), (*user).to_owned())).collect();
        let client = CheckedClient { account, address };
        let view = request_view(path, &fields);
        let required = port.required_limits(&view, client);
        let required: Vec<_> = required.flat_map(|(_, descriptors)| descriptors).collect();
        required
            .into_iter()
            .map(|descriptor| {
                let entries =
                    descriptor.entries.iter().map(|(key, value)| format!("{key}={value}"));
                format!("{} x{}", entries.collect::<Vec<_>>().join(","), descriptor.hits_addend)
            })
            .collect::<Vec<_>>()
    };
    let from = "from=127.0.0.1,method=GET,to=web:80 x1".to_owned();
    assert_eq!(
        descriptors_for("/orders/1", Some("ann"), Some(&account)),
        ["rule=orders x5", "user=ann,path=/orders/1 x1", "client=shop/web x1", &from]
    );
    assert_eq!(descriptors_for("/", None, None), [from]);
}

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
    CheckService { at, timeout: Duration::from_millis(200), failure_mode: FailureMode::Deny }
}

fn path_prefix(prefix: &str) -> RequestMatch {
    RequestMatch { path: PathMatch::Prefix(prefix.to_owned()), ..RequestMatch::default() }
}

fn policy_name(kind: ServicePolicyKind, name: &str) -> ServicePolicyName {
    ServicePolicyName::new(kind, "shop", name).unwrap()
}

fn guarded_config(guards: Vec<PortCheck>, limits: Vec<PortLimits>) -> WorkloadConfig {
    let mut plan = crate::compiled_snapshot::tests::workload_plan(leno_model::Access::AllowAll);
    plan.request_checks = BTreeMap::from([(80, guards)]);
    plan.limits = BTreeMap::from([(80, limits)]);
    plan
}

fn authorization_guard(name: &str, requests: Vec<RequestMatch>) -> PortCheck {
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
fn no_odd_variant_gets_around_a_question() {
    let guards = vec![
        authorization_guard("admin", vec![path_prefix("/admin")]),
        authorization_guard("all", vec![]),
    ];
    let guards = CompiledChecks::build(&guarded_config(guards, Vec::new())).unwrap().unwrap();
    assert!(guards.for_port(81).is_none());
    let port = guards.for_port(80).unwrap();
    for (path, asked) in [
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
        let found = port.required_authorizations(&view);
        let found: Vec<&str> = found.map(|it| it.policy.name.as_str()).collect();
        assert_eq!(found, asked, "{path}");
    }
}

#[test]
fn nobody_is_asked_where_nothing_is_said() {
    let mut plan = guarded_config(Vec::new(), Vec::new());
    plan.request_checks.clear();
    assert!(CompiledChecks::build(&plan).unwrap().is_none());
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
    let guards = CompiledChecks::build(&guarded_config(Vec::new(), vec![limits])).unwrap().unwrap();
    let port = guards.for_port(80).unwrap();
    let account = ServiceAccount::new("shop", "web").unwrap();
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let reported = |path: &str, user: Option<&str>, account: Option<&ServiceAccount>| {
        let fields: Vec<(String, String)> =
            user.iter().map(|user| ("x-user".to_owned(), (*user).to_owned())).collect();
        let asking = CheckedClient { account, address };
        let view = request_view(path, &fields);
        let all = port.required_limits(&view, asking);
        let all: Vec<_> = all.flat_map(|(_, described)| described).collect();
        all.into_iter()
            .map(|it| {
                let entries = it.entries.iter().map(|(key, value)| format!("{key}={value}"));
                format!("{} x{}", entries.collect::<Vec<_>>().join(","), it.hits_addend)
            })
            .collect::<Vec<_>>()
    };
    let from = "from=127.0.0.1,method=GET,to=web:80 x1".to_owned();
    assert_eq!(
        reported("/orders/1", Some("ann"), Some(&account)),
        ["rule=orders x5", "user=ann,path=/orders/1 x1", "client=shop/web x1", &from]
    );
    assert_eq!(reported("/", None, None), [from]);
}

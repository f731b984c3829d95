//! Rate limits, external checks and issuers' keys in compiled configurations, and the workloads that a change
//! affects.

use std::sync::Arc;

use leno_model::{Change, IssuerKeys, Object};

use super::*;
use crate::fixture::parse_objects;

const RATE_LIMITS: &str = r#"
---
apiVersion: v1
kind: Service
metadata: {name: reviews-beta, namespace: bookinfo}
spec: {selector: {app: reviews, version: v2}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: RateLimit
metadata: {name: both, namespace: bookinfo}
spec:
  targetRefs: [{name: reviews}, {name: reviews-beta, port: 80}]
  rules: [{requests: 10, per: 1s}]
---
apiVersion: policy.openservicemesh.io/v1alpha1
kind: UpstreamTrafficSetting
metadata: {name: v2, namespace: bookinfo}
spec:
  host: reviews-beta.bookinfo.svc.cluster.local
  connectionSettings: {http: {maxRequests: 7}}
  rateLimit: {local: {http: {requests: 3, unit: second}}}
"#;

fn render_limits(yaml: &str, name: &str) -> Vec<(u16, Vec<String>)> {
    let mesh = mesh_with_sidecars(yaml);
    let workload = mesh.workload(&workload_name(name)).unwrap();
    let compiled_config = compile_config(
        &mesh,
        workload,
        &used_services(workload, &BTreeSet::new()),
        &mut ServiceConfigCache::default(),
    );
    let config = &compiled_config.snapshot.config;
    let names = |(port, limits): (&u16, &Vec<leno_model::PortLimits>)| {
        (*port, limits.iter().map(|limit| limit.policy.to_string()).collect())
    };
    config.limits.iter().map(names).collect()
}

#[test]
fn limits_apply_once_per_policy_at_the_target_ports_of_their_services() {
    let yaml = format!("{BOOKINFO}{RATE_LIMITS}");
    let both = || "RateLimit bookinfo/both".to_owned();
    // The port of `reviews-beta` is named by `both`, which is more specific than the service's setting.
    assert_eq!(render_limits(&yaml, "reviews-v2-1"), [(9083, vec![both()])]);
    let single_target = "targetRefs: [{name: reviews}]";
    let yaml_with_setting = yaml
        .replace("targetRefs: [{name: reviews}, {name: reviews-beta, port: 80}]", single_target);
    let setting = "UpstreamTrafficSetting bookinfo/v2".to_owned();
    assert_eq!(render_limits(&yaml_with_setting, "reviews-v2-1"), [(9083, vec![both(), setting])]);
    assert_eq!(render_limits(&yaml_with_setting, "reviews-v1-1").len(), 1);
    assert_eq!(render_limits(&yaml, "details-1"), []);
    assert_eq!(render_limits(BOOKINFO, "reviews-v2-1"), []);
}

#[test]
fn a_change_of_limits_affects_the_workloads_that_enforce_them() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let limit = parse_objects(RATE_LIMITS.trim_start_matches("\n---")).into_iter().nth(1).unwrap();
    let Object::ServicePolicy(policy) = &limit else { panic!("{limit:?}") };
    let key = leno_model::ObjectKey::ServicePolicy(policy.name.clone());
    let affected = [workload_name("reviews-v1-1"), workload_name("reviews-v2-1")].into();
    let affected_set = mesh.apply(Change::Upsert(limit.clone()));
    assert_eq!(affected_set.workloads, affected);
    assert!(mesh.apply(Change::Upsert(limit)).is_empty());
    assert_eq!(mesh.apply(Change::Remove(key)).workloads, affected);
}

const REQUEST_CHECKS: &str = r#"
---
apiVersion: v1
kind: Service
metadata: {name: reviews-beta, namespace: bookinfo}
spec: {selector: {app: reviews, version: v2}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: ExternalAuthorization
metadata: {name: b-all, namespace: bookinfo}
spec: {targetRefs: [{name: reviews}, {name: reviews-beta}], url: "http://127.0.0.1:9000"}
---
apiVersion: leno.dev/v1alpha1
kind: ExternalAuthorization
metadata: {name: c-port, namespace: bookinfo}
spec: {targetRefs: [{name: reviews-beta, port: 80}], url: "http://127.0.0.1:9001"}
---
apiVersion: leno.dev/v1alpha1
kind: JwtValidation
metadata: {name: tokens, namespace: bookinfo}
spec:
  targetRefs: [{name: reviews}]
  issuers: [{issuer: a, jwks: {inline: '{"keys": [{"kty": "OKP"}]}'}}]
"#;

#[test]
fn request_checks_apply_once_per_kind_at_the_target_ports_of_their_services() {
    let checks = |yaml: &str, name: &str| {
        let mesh = mesh_with_sidecars(yaml);
        let workload = mesh.workload(&workload_name(name)).unwrap();
        let root_services = used_services(workload, &BTreeSet::new());
        let compiled_config =
            compile_config(&mesh, workload, &root_services, &mut ServiceConfigCache::default());
        let checks_of_port = |(port, checks): (&u16, &Vec<leno_model::PortCheck>)| {
            let names = checks.iter().map(|check| check.policy.to_string());
            (*port, names.collect::<Vec<_>>())
        };
        compiled_config
            .snapshot
            .config
            .request_checks
            .iter()
            .map(checks_of_port)
            .collect::<Vec<_>>()
    };
    let yaml = format!("{BOOKINFO}{REQUEST_CHECKS}");
    let policy_text = |kind: &str, name: &str| format!("{kind} bookinfo/{name}");
    let authorization_of_service = policy_text("ExternalAuthorization", "b-all");
    let tokens = policy_text("JwtValidation", "tokens");
    let authorization_of_port = policy_text("ExternalAuthorization", "c-port");
    assert_eq!(
        checks(&yaml, "reviews-v2-1"),
        [(9083, vec![authorization_of_service.clone(), tokens.clone(), authorization_of_port])]
    );
    assert_eq!(checks(&yaml, "reviews-v1-1")[0].1, [authorization_of_service, tokens]);
    assert_eq!(checks(&yaml, "details-1"), []);
    assert_eq!(checks(BOOKINFO, "reviews-v2-1"), []);
}

#[test]
fn a_change_of_request_checks_affects_the_workloads_that_perform_them() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let objects = parse_objects(REQUEST_CHECKS.trim_start_matches("\n---"));
    let policy =
        objects.into_iter().find(|object| matches!(object, Object::ServicePolicy(_))).unwrap();
    let affected = [workload_name("reviews-v1-1"), workload_name("reviews-v2-1")].into();
    assert_eq!(mesh.apply(Change::Upsert(policy)).workloads, affected);
}

const TOKENS: &str = r#"
apiVersion: leno.dev/v1alpha1
kind: JwtValidation
metadata: {name: tokens, namespace: bookinfo}
spec:
  targetRefs: [{name: reviews}]
  issuers:
  - {issuer: a, jwks: {url: "https://a.example/keys"}}
  - {issuer: b, jwks: {url: "https://b.example/keys"}}
"#;

#[test]
fn sidecars_receive_the_fetched_keys_and_none_until_then() {
    let mut mesh = mesh_with_sidecars(BOOKINFO);
    let policy = parse_objects(TOKENS).pop().unwrap();
    mesh.apply(Change::Upsert(policy.clone()));
    let sent_keys = |mesh: &Mesh| {
        let workload = mesh.workload(&workload_name("reviews-v1-1")).unwrap();
        let root_services = used_services(workload, &BTreeSet::new());
        let compiled_config =
            compile_config(mesh, workload, &root_services, &mut ServiceConfigCache::default());
        let checks = compiled_config.snapshot.config.request_checks.values().flatten();
        let tokens = checks.filter_map(|check| match &check.check {
            leno_model::RequestCheck::Tokens(rule) => Some(rule.issuers.clone()),
            leno_model::RequestCheck::Authorization(_) => None,
        });
        tokens.flatten().map(|issuer| issuer.keys).collect::<Vec<_>>()
    };
    assert_eq!(sent_keys(&mesh), [IssuerKeys::Pending, IssuerKeys::Pending]);
    let sources: Vec<_> = mesh.key_sources().cloned().collect();
    let [first, second] = &sources[..] else { panic!("{sources:?}") };
    assert_eq!(first.to_string(), "https://a.example:443/keys");

    let affected = [workload_name("reviews-v1-1"), workload_name("reviews-v2-1")].into();
    let set = |text: &str| Some(Arc::<str>::from(text));
    let affected_set = mesh.set_keys(second, set("{}"));
    assert_eq!((affected_set.workloads, affected_set.services.len()), (affected, 0));
    assert!(mesh.set_keys(second, set("{}")).is_empty(), "the same set again");
    assert_eq!(sent_keys(&mesh), [IssuerKeys::Pending, IssuerKeys::Inline("{}".into())]);
    assert!(mesh.has_keys(second) && !mesh.has_keys(first));

    // An update of the rule contains them at once.
    mesh.apply(Change::Upsert(policy.clone()));
    assert_eq!(sent_keys(&mesh)[1], IssuerKeys::Inline("{}".into()));
    mesh.apply(Change::Remove(policy.object_key()));
    assert_eq!(mesh.key_sources().count(), 0);
    assert!(mesh.set_keys(second, None).is_empty(), "no proxy uses them");
}

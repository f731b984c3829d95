//! Tests of ingress and egress: accepted documents and rejections.

use expect_test::expect;
use leno_model::{ClientCertificateMode, IngressProtocol, IngressSource, MatchedBy, Object};
use leno_registry::{lint_objects, read_str};

use crate::rejections::check_specs;

fn read_objects(text: &str) -> Vec<Object> {
    let (objects, rejected) = read_str("f.yaml", text);
    assert_eq!(rejected, []);
    objects.into_iter().map(|(object, _)| object).collect()
}

fn read_object(kind: &str, group: &str, spec: &str) -> Object {
    let text = format!(
        "apiVersion: {group}/v1alpha1\nkind: {kind}\n\
         metadata: {{name: x, namespace: shop}}\nspec: {spec}\n"
    );
    read_objects(&text).pop().expect("one document is one object")
}

const OSM: &str = "policy.openservicemesh.io";
const FSM: &str = "policy.flomesh.io";

#[test]
fn an_ingress_backend_is_read_from_both_api_groups() {
    for group in [OSM, FSM] {
        let spec = "{backends: [{name: web, port: {number: 8080, protocol: https}, \
                    tls: {skipClientCertValidation: false, sniHosts: [web.shop]}}], \
                    sources: [{kind: Service, name: nginx, namespace: edge}, \
                    {kind: IPRange, name: 10.1.0.0/16}, \
                    {kind: AuthenticatedPrincipal, name: nginx.edge.cluster.local}], \
                    matches: [{apiGroup: specs.smi-spec.io/v1alpha4, kind: HTTPRouteGroup, name: g}]}";
        let Object::Ingress(policy) = read_object("IngressBackend", group, spec) else { panic!() };
        assert_eq!(policy.name.to_string(), "IngressBackend shop/x");
        let backend = &policy.backends[0];
        assert_eq!((backend.service.as_str(), backend.port), ("web", 8080));
        let server_names = vec!["web.shop".to_owned()];
        assert_eq!(
            backend.protocol,
            IngressProtocol::Https {
                client_certificate: ClientCertificateMode::Required,
                server_names
            }
        );
        let [service, range, principal] = policy.sources.as_slice() else { panic!("{policy:?}") };
        assert!(
            matches!(service, IngressSource::Service(name) if name.to_string() == "edge/nginx")
        );
        assert!(matches!(range, IngressSource::Range(range) if range.to_string() == "10.1.0.0/16"));
        assert!(
            matches!(principal, IngressSource::Named(name) if name.as_str() == "nginx.edge.cluster.local")
        );
        assert_eq!(policy.groups[0].to_string(), "shop/g");
    }
}

#[test]
fn ingress_policies_that_allow_nothing_or_too_much_are_rejected() {
    check_specs(
        "apiVersion: policy.openservicemesh.io/v1alpha1\nkind: IngressBackend\nmetadata: {name: x}",
        &[
            "{backends: [], sources: []}",
            "{backends: [{name: a, port: {number: 80, protocol: tcp}}], sources: [{kind: IPRange, name: 10.0.0.0/8}]}",
            "{backends: [{name: a, port: {number: 80, protocol: http}}], sources: [{kind: IPRange, name: 10.0.0.1/8}]}",
            "{backends: [{name: a, port: {number: 80, protocol: http}}], sources: [{kind: AuthenticatedPrincipal, name: a.b.c}]}",
            "{backends: [{name: a, port: {number: 80, protocol: https}}], sources: [{kind: IPRange, name: 10.0.0.0/8}]}",
            "{backends: [{name: a, port: {number: 80, protocol: https}, tls: {skipClientCertValidation: true}}], \
             sources: [{kind: AuthenticatedPrincipal, name: a.b.c}]}",
            "{backends: [{name: a, port: {number: 80, protocol: http}, tls: {skipClientCertValidation: true}}], \
             sources: [{kind: IPRange, name: 10.0.0.0/8}]}",
            "{backends: [{name: a, port: {number: 80, protocol: http}}], sources: [{kind: Service, name: b}]}",
            "{backends: [{name: a, port: {number: 80, protocol: https}}], sources: [{kind: AuthenticatedPrincipal, name: ops}]}",
        ],
        &expect![[r#"
            spec.backends: is empty; name a service and a port of its workloads
            spec.sources: is empty; list the allowed clients
            spec.backends[0].port.protocol: "tcp" is not a supported value; use `http`, `https` or `grpc`
            spec.sources[0].name: "10.0.0.1/8" is not a range of addresses; use a CIDR range, such as 10.1.0.0/16 or 10.1.2.3/32
            spec.backends[0]: allows no client: clients without TLS are identified by address only; add a source of the kind Service or IPRange, or use `protocol: https`
            spec.backends[0]: requires client certificates, but no source names a principal; add a source of the kind AuthenticatedPrincipal, or set `tls.skipClientCertValidation` to true
            spec.backends[0]: skips validation of client certificates, but a source requires it; remove the AuthenticatedPrincipal, or `tls.skipClientCertValidation`
            spec.backends[0].tls: has TLS settings, but the port is opened without TLS; remove it, or use `protocol: https`
            spec.sources[0].namespace: is missing; add `namespace`
            spec.sources[0].name: "ops" is not a mesh identity or the name of an external client; use ACCOUNT.NAMESPACE.TRUST-DOMAIN, such as ingress-nginx.ingress-nginx.cluster.local, or a name from the `subjectAltNames` of an AccessCert
        "#]],
    );
    check_specs(
        "apiVersion: policy.flomesh.io/v1alpha1\nkind: AccessControl\nmetadata: {name: x}",
        &["{sources: [{kind: IPRange, name: 10.0.0.0/8}]}"],
        &expect![[r#"
            spec: has no `backends`, which FSM interprets as every port of the namespace; list the services and ports to open
        "#]],
    );
}

#[test]
fn an_access_cert_is_read_from_both_api_groups() {
    for group in [OSM, FSM] {
        let spec = "{subjectAltNames: [batch.corp.example, nginx.shop.cluster.local], \
                    secret: {name: batch-tls, namespace: shop}}";
        let Object::AccessCert(cert) = read_object("AccessCert", group, spec) else { panic!() };
        assert_eq!(
            (cert.name.to_string(), cert.secret.as_str()),
            ("shop/x".to_owned(), "batch-tls")
        );
        let names: Vec<&str> = cert.subjects.iter().map(leno_model::Name::as_str).collect();
        assert_eq!(names, ["batch.corp.example", "nginx.shop.cluster.local"]);
    }
}

#[test]
fn access_certs_for_members_wildcards_and_other_namespaces_are_rejected() {
    let secret = "secret: {name: a, namespace: default}";
    let specs = [
        format!("{{{secret}}}"),
        format!("{{subjectAltNames: [], {secret}}}"),
        format!("{{subjectAltNames: [\"spiffe://cluster.local/ns/a/sa/b\"], {secret}}}"),
        format!("{{subjectAltNames: [\"*.corp.example\"], {secret}}}"),
        format!("{{subjectAltNames: [batch], {secret}}}"),
        format!("{{subjectAltNames: [Batch.corp.example], {secret}}}"),
        format!("{{subjectAltNames: [a.example, a.example], {secret}}}"),
        "{subjectAltNames: [a.example]}".to_owned(),
        "{subjectAltNames: [a.example], secret: {name: a}}".to_owned(),
        "{subjectAltNames: [a.example], secret: {name: a, namespace: kube-system}}".to_owned(),
        format!("{{subjectAltNames: [a.example], {secret}, validityDuration: 1h}}"),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_specs(
        "apiVersion: policy.flomesh.io/v1alpha1\nkind: AccessCert\nmetadata: {name: x}",
        &specs,
        &expect![[r#"
            spec.subjectAltNames: is missing; add `subjectAltNames`
            spec.subjectAltNames: is empty; name the client, such as batch.corp.example
            spec.subjectAltNames[0]: "spiffe://cluster.local/ns/a/sa/b" is a mesh identity, which only members of the mesh have; use a DNS name, or let the client join with its own token (`leno token`)
            spec.subjectAltNames[0]: "*.corp.example" matches more than one client; write a separate AccessCert for each client
            spec.subjectAltNames[0]: "batch" is not a DNS name; use lower-case letters, digits and `-` between dots
            spec.subjectAltNames[0]: "Batch.corp.example" is not a DNS name; use lower-case letters, digits and `-` between dots
            spec.subjectAltNames[1]: is listed twice; remove one of the two
            spec.secret: is missing; add `secret`
            spec.secret.namespace: is missing; add `namespace`
            spec.secret.namespace: "kube-system" is not the namespace of the AccessCert; use default, or put the AccessCert into the namespace of its Secret
            spec.validityDuration: is an unknown field; remove it, or use `subjectAltNames` or `secret`
        "#]],
    );
}

#[test]
fn an_egress_is_read_from_both_api_groups() {
    for group in [OSM, FSM] {
        let spec = "{sources: [{kind: ServiceAccount, name: a, namespace: shop}], \
                    hosts: [api.example, \"*.mail.example\"], ipAddresses: [10.1.0.0/16], \
                    ports: [{number: 80, protocol: http}, {number: 443, protocol: https}, \
                    {number: 25, protocol: tcp-server-first}]}";
        let Object::Egress(policy) = read_object("Egress", group, spec) else { panic!() };
        assert_eq!((policy.hosts.len(), policy.ranges.len(), policy.groups.len()), (2, 1, 0));
        let ports: Vec<(u16, MatchedBy)> =
            policy.ports.iter().map(|port| (port.port, port.matched_by)).collect();
        assert_eq!(
            ports,
            [(80, MatchedBy::Http), (443, MatchedBy::ServerName), (25, MatchedBy::Address)]
        );
    }
}

#[test]
fn egress_policies_without_effect_or_for_everything_are_rejected() {
    let source = "sources: [{kind: ServiceAccount, name: a, namespace: b}]";
    let specs = [
        "{ports: [{number: 80, protocol: http}], hosts: [a.b]}".to_owned(),
        format!("{{{source}, ports: [{{number: 80, protocol: http}}]}}"),
        format!("{{{source}, ports: [{{number: 80, protocol: tcp}}], hosts: [a.b]}}"),
        format!(
            "{{{source}, ports: [{{number: 443, protocol: https}}, \
             {{number: 5432, protocol: tcp}}], hosts: [a.b]}}"
        ),
        format!("{{{source}, ports: [{{number: 80, protocol: http}}], hosts: [\"A.b:80\"]}}"),
        format!("{{{source}, ports: [{{number: 80, protocol: http}}], hosts: []}}"),
        format!(
            "{{{source}, ports: [{{number: 80, protocol: http}}], hosts: [a.b], \
             matches: [{{apiGroup: policy.openservicemesh.io/v1alpha1, kind: UpstreamTrafficSetting, name: x}}]}}"
        ),
        "{sources: [{kind: ServiceAccount, name: a, namespace: b, mtls: {issuer: other}}], \
         ports: [{number: 443, protocol: https}], hosts: [a.b]}"
            .to_owned(),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check_specs(
        "apiVersion: policy.openservicemesh.io/v1alpha1\nkind: Egress\nmetadata: {name: x}",
        &specs,
        &expect![[r#"
            spec.sources: is missing; add `sources`
            spec: has neither `hosts` nor `ipAddresses`, and would match every destination; name the hosts, or write `ipAddresses: [0.0.0.0/0]` if that is intended
            spec.hosts: has no effect: connections of the protocol tcp have no host name; use `ipAddresses`, or `protocol: http` or `https`
            spec.ports[1]: is open to every address: `hosts` do not restrict ports of the protocol tcp; split it in two, or write `ipAddresses: [0.0.0.0/0]` if that is intended
            spec.hosts[0]: "A.b:80" is not a host name; use one in lower case without a port, such as api.example.com or *.example.com
            spec.hosts: is empty; add an element, or leave it out
            spec.matches[0].kind: "UpstreamTrafficSetting" is not supported here; remove it: such a setting applies to services of the mesh
            spec.sources[0].mtls: is not supported: sidecars present only their own certificates, and only to members of the mesh; use TLS in the application, and use `protocol: https`
        "#]],
    );
}

#[test]
fn references_to_missing_objects_cause_warnings() {
    let objects = read_objects(
        "apiVersion: policy.flomesh.io/v1alpha1\nkind: AccessControl\n\
         metadata: {name: first, namespace: shop}\n\
         spec: {backends: [{name: web, port: {number: 80, protocol: http}}], \
         sources: [{kind: Service, name: nginx, namespace: edge}], \
         matches: [{kind: HTTPRouteGroup, name: g}]}\n---\n\
         apiVersion: policy.flomesh.io/v1alpha1\nkind: IngressBackend\n\
         metadata: {name: second, namespace: shop}\n\
         spec: {backends: [{name: web, port: {number: 80, protocol: https}}], \
         sources: [{kind: AuthenticatedPrincipal, name: a.b.else}]}\n---\n\
         apiVersion: policy.flomesh.io/v1alpha1\nkind: Egress\n\
         metadata: {name: out, namespace: shop}\n\
         spec: {sources: [{kind: ServiceAccount, name: a, namespace: shop}], \
         ports: [{number: 25, protocol: tcp}]}\n",
    );
    let warnings: Vec<String> = lint_objects(&objects).iter().map(ToString::to_string).collect();
    expect![[r#"
        AccessControl shop/first: spec.backends[0].name: there is no Service shop/web; add the Service
        AccessControl shop/first: spec.backends[0]: the IngressBackend shop/second opens this port and takes precedence; merge the sources of both
        AccessControl shop/first: spec.sources[0].name: there is no Service edge/nginx; add the Service
        AccessControl shop/first: spec.matches[0].name: there is no HTTPRouteGroup shop/g, so it allows no request; add the HTTPRouteGroup
        IngressBackend shop/second: spec.backends[0].name: there is no Service shop/web; add the Service
        IngressBackend shop/second: spec.sources[0].name: is not an account of this mesh (cluster.local), and no AccessCert names it; use ACCOUNT.NAMESPACE.cluster.local, or write an AccessCert with this name
        Egress shop/out: spec: has no effect while the MeshConfig allows all egress; set `spec.egress` of the MeshConfig to deny, or remove it
        Egress shop/out: spec.sources[0].name: no workload runs under the account shop/a; add a Workload with this account"#]].assert_eq(&warnings.join("\n"));
}

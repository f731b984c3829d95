//! Reads the settings of foreign meshes (OSM, osm-edge and FSM) that apply to this mesh, and warns about fields that do
//! not.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::core::DynamicObject;
use leno_identity::{LEAF_LIFETIME, MAX_LEAF_LIFETIME};
use leno_model::{DefaultPolicy, Egress, Name, SecretName};
use leno_registry::{ServedKind, Warning};
use serde_json::Value;

use super::{creation_time, field_location};
use crate::inject::{AddressRange, Exclusions, is_interface};

/// The kinds of other meshes' settings.
pub(crate) const FOREIGN_CONFIG_KINDS: [ServedKind; 2] = [
    ServedKind {
        group: "config.openservicemesh.io",
        kind: "MeshConfig",
        api_versions: &["config.openservicemesh.io/v1alpha2", "config.openservicemesh.io/v1alpha1"],
    },
    ServedKind {
        group: "config.flomesh.io",
        kind: "MeshConfig",
        api_versions: &[
            "config.flomesh.io/v1alpha3",
            "config.flomesh.io/v1alpha2",
            "config.flomesh.io/v1alpha1",
        ],
    },
];

/// Fields of other meshes' settings that are not supported, each with a hint. They cause a warning if they enable a
/// feature.
pub const UNSUPPORTED_FIELDS: &[(&str, &str)] = &[
    (
        "spec.traffic.inboundExternalAuthorization.enable",
        "write an ExternalAuthorization for the services that need it",
    ),
    ("spec.traffic.useHTTPSIngress", "write `protocol: https` into IngressBackends"),
    ("spec.observability.tracing.enable", "write `tracing` into a MeshConfig of leno.dev"),
    ("spec.observability.remoteLogging.enable", "write `accessLog` into a MeshConfig of leno.dev"),
    (
        "spec.sidecar.sidecarDisabledMTLS",
        "no replacement: connections in the mesh are always encrypted",
    ),
    ("spec.sidecar.localDNSProxy.enable", "annotate namespaces or pods `leno.dev/dns: proxy`"),
    (
        "spec.sidecar.resources",
        "annotate namespaces or pods `leno.dev/sidecar-resource-limits-memory` and its like",
    ),
    (
        "spec.sidecar.cipherSuites",
        "no replacement: Leno supports only TLS 1.3 and its cipher suites",
    ),
    ("spec.sidecar.ecdhCurves", "no replacement: Leno supports only TLS 1.3 and its groups"),
    ("spec.featureFlags.enableEnvoyActiveHealthChecks", HEALTH_CHECK_HINT),
    ("spec.featureFlags.enableSidecarActiveHealthChecks", HEALTH_CHECK_HINT),
    ("spec.warmup.enable", "write `warmup` into a LoadBalancing for the services that need it"),
];
const HEALTH_CHECK_HINT: &str =
    "write `healthCheck` into an OutlierDetection for the services that need it";

/// Fields for features that are always on, each with a hint. They cause a warning if they disable the feature.
pub const ALWAYS_ON_FIELDS: &[(&str, &str)] = &[
    (
        "spec.featureFlags.enableEgressPolicy",
        "remove the Egress objects: they are always in force here",
    ),
    (
        "spec.featureFlags.enableIngressBackendPolicy",
        "remove the IngressBackend objects: they are always in force here",
    ),
];

/// Exclusion lists for all sidecars, and the equivalent annotations. They apply in a cluster, but our
/// `MeshConfig` has no fields for them.
pub const EXCLUSION_LISTS: &[(&str, &str)] = &[
    ("spec.traffic.outboundPortExclusionList", "leno.dev/outbound-port-exclusion-list"),
    ("spec.traffic.inboundPortExclusionList", "leno.dev/inbound-port-exclusion-list"),
    ("spec.traffic.outboundIPRangeExclusionList", "leno.dev/outbound-ip-range-exclusion-list"),
    ("spec.traffic.outboundIPRangeInclusionList", "leno.dev/outbound-ip-range-inclusion-list"),
    ("spec.traffic.networkInterfaceExclusionList", "leno.dev/network-interface-exclusion-list"),
];

/// The field with the certificate request of an ingress controller, and a hint about the equivalent in Leno. Like
/// the exclusion lists, the field applies in a cluster.
pub const INGRESS_GATEWAY: (&str, &str) = (
    "spec.certificate.ingressGateway",
    "write an AccessCert in the namespace of its Secret, and install with `--access-certs` of that namespace",
);

/// The settings of another mesh that apply here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForeignMeshSettings {
    /// The default policy: `deny` if policies control access.
    pub(crate) default_policy: DefaultPolicy,
    /// The egress mode for destinations outside the mesh.
    pub(crate) egress: Egress,
    /// The traffic of all pods that bypasses the sidecar.
    pub(crate) exclusions: Exclusions,
    /// The requested certificate of an ingress controller; `None` if the settings request no certificate.
    pub(crate) ingress_gateway:
        Option<Result<IngressCertificateRequest, InvalidCertificateRequest>>,
    /// The creation time, in Unix seconds.
    pub(crate) created: i64,
    /// Warnings about unsupported settings.
    pub(crate) warnings: Vec<Warning>,
}

impl ForeignMeshSettings {
    /// Reads the settings of another mesh. Returns `None` for objects with a name that no such mesh uses.
    pub(crate) fn read(object: &DynamicObject) -> Option<Self> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        if !SETTINGS_NAMES.contains(&name) {
            return None;
        }
        let mut reader = ForeignReader { object, warnings: Vec::new() };
        // The schema's default is false for both.
        let is_permissive = reader.is_enabled("/spec/traffic/enablePermissiveTrafficPolicyMode");
        let allows_egress = reader.is_enabled("/spec/traffic/enableEgress");
        let exclusions = Exclusions {
            outbound_ports: reader.read_ports("outboundPortExclusionList"),
            inbound_ports: reader.read_ports("inboundPortExclusionList"),
            outbound_ranges: reader.read_ranges("outboundIPRangeExclusionList"),
            redirected_outbound_ranges: reader.read_ranges("outboundIPRangeInclusionList"),
            interfaces: reader.read_interfaces("networkInterfaceExclusionList"),
        };
        let ingress_gateway = reader.read_ingress_gateway();
        for (field, hint) in UNSUPPORTED_FIELDS {
            let pointer = format!("/{}", field.replace('.', "/"));
            if object.data.pointer(&pointer).is_some_and(enables_feature) {
                reader.warn_unsupported(field, hint);
            }
        }
        for (field, hint) in ALWAYS_ON_FIELDS {
            let pointer = format!("/{}", field.replace('.', "/"));
            if object.data.pointer(&pointer) == Some(&Value::Bool(false)) {
                reader.warn_unsupported(field, hint);
            }
        }
        Some(Self {
            default_policy: if is_permissive { DefaultPolicy::Allow } else { DefaultPolicy::Deny },
            egress: if allows_egress { Egress::Allow } else { Egress::Deny },
            exclusions,
            ingress_gateway,
            created: creation_time(&object.metadata),
            warnings: reader.warnings,
        })
    }
}

/// An invalid request for a certificate. A warning names the invalid field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidCertificateRequest;

/// A request for a certificate of an ingress controller, in another mesh's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IngressCertificateRequest {
    /// The subject names of the certificate.
    pub(crate) names: Vec<Name>,
    /// The lifetime of the certificate.
    pub(crate) lifetime: Duration,
    /// The Secret that holds the certificate.
    pub(crate) secret: SecretName,
}

/// Reads the settings object of another mesh and collects warnings.
struct ForeignReader<'a> {
    object: &'a DynamicObject,
    warnings: Vec<Warning>,
}

impl ForeignReader<'_> {
    fn is_enabled(&self, pointer: &str) -> bool {
        self.object.data.pointer(pointer).and_then(Value::as_bool) == Some(true)
    }

    fn warn_unsupported(&mut self, field: &str, hint: &str) {
        self.warnings.push(Warning {
            location: field_location(&self.object.metadata, "MeshConfig", field),
            problem: "is not supported by Leno".to_owned(),
            hint: hint.to_owned(),
        });
    }

    /// Returns the valid elements of a list under `spec.traffic`, and adds a warning for each other element.
    fn read_list<T: Ord>(
        &mut self,
        key: &str,
        read_element: impl Fn(&Value) -> Option<T>,
    ) -> BTreeSet<T> {
        let list = self.object.data.pointer(&format!("/spec/traffic/{key}"));
        let elements = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let mut valid_elements = BTreeSet::new();
        for (index, element) in elements.iter().enumerate() {
            match read_element(element) {
                Some(parsed_element) => drop(valid_elements.insert(parsed_element)),
                None => self.warn_unsupported(
                    &format!("spec.traffic.{key}[{index}]"),
                    "correct or remove it",
                ),
            }
        }
        valid_elements
    }

    /// Reads the certificate request. If a field is invalid, the whole request is invalid, and a warning is added.
    fn read_ingress_gateway(
        &mut self,
    ) -> Option<Result<IngressCertificateRequest, InvalidCertificateRequest>> {
        let request_field = self.object.data.pointer("/spec/certificate/ingressGateway");
        let request = request_field.filter(|request| enables_feature(request))?;
        let string_at = |pointer: &str| request.pointer(pointer).and_then(Value::as_str);
        let name_list = request.get("subjectAltNames").and_then(Value::as_array);
        let name_values = name_list.map(Vec::as_slice).unwrap_or_default();
        let parsed_names: Option<Vec<Name>> =
            name_values.iter().map(|value| Name::new(value.as_str()?).ok()).collect();
        let names = parsed_names.filter(|names| (1..=MAX_INGRESS_NAMES).contains(&names.len()));
        let lifetime = match request.get("validityDuration") {
            // The lifetime of workload certificates is the default.
            None => Some(LEAF_LIFETIME),
            Some(lifetime) => lifetime.as_str().and_then(parse_lifetime),
        };
        let secret_parts = string_at("/secret/namespace").zip(string_at("/secret/name"));
        let secret =
            secret_parts.and_then(|(namespace, name)| SecretName::new(namespace, name).ok());
        for (is_valid, field, hint) in [
            (
                names.is_some(),
                "subjectAltNames",
                "name the ingress controller with 1 to 16 DNS names",
            ),
            (lifetime.is_some(), "validityDuration", "use 10m to 2160h, such as 24h"),
            (secret.is_some(), "secret", "write the `name` and the `namespace` of a Secret"),
        ] {
            if !is_valid {
                self.warn_unsupported(&format!("spec.certificate.ingressGateway.{field}"), hint);
            }
        }
        let (Some(names), Some(lifetime), Some(secret)) = (names, lifetime, secret) else {
            return Some(Err(InvalidCertificateRequest));
        };
        Some(Ok(IngressCertificateRequest { names, lifetime, secret }))
    }

    fn read_ports(&mut self, key: &str) -> BTreeSet<u16> {
        self.read_list(key, |number| u16::try_from(number.as_u64()?).ok().filter(|port| *port > 0))
    }

    fn read_ranges(&mut self, key: &str) -> BTreeSet<AddressRange> {
        self.read_list(key, |range| range.as_str()?.parse().ok())
    }

    fn read_interfaces(&mut self, key: &str) -> BTreeSet<String> {
        self.read_list(key, |interface| {
            interface.as_str().filter(|name| is_interface(name)).map(str::to_owned)
        })
    }
}

/// Parses a duration in Go syntax, such as `1h30m`. `None` for lifetimes that are not allowed for certificates.
fn parse_lifetime(text: &str) -> Option<Duration> {
    let (mut unparsed, mut lifetime) = (text, Duration::ZERO);
    while !unparsed.is_empty() {
        let digit_count = unparsed.find(|c: char| !c.is_ascii_digit())?;
        let (digits, suffix) = unparsed.split_at_checked(digit_count)?;
        let amount: u32 = digits.parse().ok()?;
        let unit_length = suffix.find(|c: char| c.is_ascii_digit()).unwrap_or(suffix.len());
        let (unit_name, unparsed_rest) = suffix.split_at_checked(unit_length)?;
        let unit = match unit_name {
            "h" => Duration::from_secs(3600),
            "m" => Duration::from_secs(60),
            "s" => Duration::from_secs(1),
            _ => return None,
        };
        lifetime = lifetime.checked_add(unit.checked_mul(amount)?)?;
        unparsed = unparsed_rest;
    }
    (MIN_INGRESS_LIFETIME..=MAX_LEAF_LIFETIME).contains(&lifetime).then_some(lifetime)
}

/// Returns true if a field of another mesh's settings enables a feature: its value is not false, 0 or empty.
#[must_use]
pub fn enables_feature(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(on) => *on,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => fields.values().any(enables_feature),
    }
}

/// The minimum lifetime of a requested certificate. A certificate is renewed when about a third of its lifetime
/// remains, and kubelets take one or two minutes to update the Secret in pods.
const MIN_INGRESS_LIFETIME: Duration = Duration::from_secs(600);
/// The maximum number of names in one certificate.
const MAX_INGRESS_NAMES: usize = 16;
/// The names of the settings objects of OSM, osm-edge and FSM.
const SETTINGS_NAMES: [&str; 2] = ["osm-mesh-config", "fsm-mesh-config"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(name: &str, spec: &Value) -> Option<ForeignMeshSettings> {
        let metadata = json!({"name": name, "namespace": "osm-system"});
        let object = json!({"metadata": metadata, "spec": spec});
        ForeignMeshSettings::read(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_strict_mesh_stays_strict() {
        let foreign = read("osm-mesh-config", &json!({})).unwrap();
        assert_eq!((foreign.default_policy, foreign.egress), (DefaultPolicy::Deny, Egress::Deny));
        assert_eq!(foreign.exclusions, Exclusions::default());
        let traffic = json!({"enableEgress": true, "enablePermissiveTrafficPolicyMode": true});
        let foreign = read("fsm-mesh-config", &json!({"traffic": traffic})).unwrap();
        assert_eq!((foreign.default_policy, foreign.egress), (DefaultPolicy::Allow, Egress::Allow));
        assert_eq!(read("mesh", &json!({})), None);
    }

    #[test]
    fn global_exclusions_are_read_one_by_one() {
        let foreign = read(
            "osm-mesh-config",
            &json!({"traffic": {
                "outboundPortExclusionList": [6379, 0, 70000],
                "inboundPortExclusionList": [9000],
                "outboundIPRangeExclusionList": ["192.0.2.0/24", "192.0.2.0/99"],
                "outboundIPRangeInclusionList": ["10.0.0.0/8"],
                "networkInterfaceExclusionList": ["eth1", "a b"],
            }}),
        )
        .unwrap();
        let exclusions = foreign.exclusions;
        assert_eq!(exclusions.outbound_ports, BTreeSet::from([6379]));
        assert_eq!(exclusions.inbound_ports, BTreeSet::from([9000]));
        assert_eq!(exclusions.outbound_ranges, BTreeSet::from(["192.0.2.0/24".parse().unwrap()]));
        assert_eq!(
            exclusions.redirected_outbound_ranges,
            BTreeSet::from(["10.0.0.0/8".parse().unwrap()])
        );
        assert_eq!(exclusions.interfaces, BTreeSet::from(["eth1".to_owned()]));
        let fields: Vec<_> = foreign
            .warnings
            .iter()
            .map(|warning| warning.location.field.clone().unwrap())
            .collect();
        assert_eq!(
            fields,
            [
                "spec.traffic.outboundPortExclusionList[1]",
                "spec.traffic.outboundPortExclusionList[2]",
                "spec.traffic.outboundIPRangeExclusionList[1]",
                "spec.traffic.networkInterfaceExclusionList[1]",
            ]
        );
    }

    #[test]
    fn an_ingress_gateway_gets_a_certificate_if_its_request_is_complete() {
        let valid = json!({
            "subjectAltNames": ["ingress-nginx.ingress-nginx.cluster.local"],
            "validityDuration": "1h30m",
            "secret": {"name": "osm-nginx-client-cert", "namespace": "osm-system"},
        });
        let read_gateway = |gateway: &Value| {
            let spec = json!({"certificate": {"ingressGateway": gateway}});
            read("osm-mesh-config", &spec).unwrap()
        };
        let foreign = read_gateway(&valid);
        let request = foreign.ingress_gateway.unwrap().unwrap();
        assert_eq!(request.lifetime, Duration::from_secs(5400));
        assert_eq!(request.secret.to_string(), "osm-system/osm-nginx-client-cert");
        assert_eq!(foreign.warnings, []);
        assert_eq!(read_gateway(&json!({})).ingress_gateway, None);
        for (field, invalid_value) in [
            ("subjectAltNames", json!([])),
            ("subjectAltNames", json!(["*.example"])),
            ("validityDuration", json!("1d")),
            ("validityDuration", json!("3000h")),
            ("validityDuration", json!("9m59s")),
            ("validityDuration", json!("")),
            ("secret", json!({"name": "a"})),
        ] {
            let mut invalid = valid.clone();
            invalid[field] = invalid_value;
            let foreign = read_gateway(&invalid);
            assert_eq!(foreign.ingress_gateway, Some(Err(InvalidCertificateRequest)), "{invalid}");
            let warning = foreign.warnings[0].to_string();
            assert!(warning.contains(&format!("ingressGateway.{field}: ")), "{warning}");
        }
    }

    #[test]
    fn unsupported_fields_are_reported_if_they_enable_something() {
        let disabled = json!({
            "observability": {"tracing": {"enable": false, "port": 9411}},
            "sidecar": {"resources": {}, "cipherSuites": [], "localDNSProxy": {"enable": false}},
        });
        assert_eq!(read("osm-mesh-config", &disabled).unwrap().warnings, []);
        let no_egress = json!({"featureFlags": {"enableEgressPolicy": false}});
        assert_eq!(read("osm-mesh-config", &no_egress).unwrap().warnings.len(), 1);
        let enabled = json!({
            "observability": {"tracing": {"enable": true}},
            "sidecar": {"resources": {"limits": {"cpu": "1"}}},
        });
        let warnings: Vec<String> = read("osm-mesh-config", &enabled)
            .unwrap()
            .warnings
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            warnings,
            [
                "MeshConfig osm-system/osm-mesh-config: spec.observability.tracing.enable: is not \
                 supported by Leno; write `tracing` into a MeshConfig of leno.dev",
                "MeshConfig osm-system/osm-mesh-config: spec.sidecar.resources: is not supported \
                 by Leno; annotate namespaces or pods `leno.dev/sidecar-resource-limits-memory` \
                 and its like",
            ]
        );
    }
}

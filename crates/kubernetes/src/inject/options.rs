//! Reads the settings of a sidecar from annotations: exclusions, resources, image, DNS, metrics and upgrades.
//!
//! Most annotations are supported with the prefixes of Leno, OSM and FSM. Lists are merged. For other values
//! the pod precedes its namespace; within each, Leno's prefix precedes OSM's, which precedes FSM's.

use std::collections::{BTreeMap, BTreeSet};

use leno_model::Upgrades;
use serde_json::{Value, json};

use super::annotation::{
    AnnotatedObject, InjectError, RUNTIME_ANNOTATIONS, RuntimeAnnotation, parse_switch,
    pod_metadata, split_list,
};
use super::{AddressRange, InjectionSettings, NamespaceMetadata};
use crate::well_known::{HEALTH_PORT, PREFIXES, SIDECAR_IMAGE, UPGRADES, is_supported_annotation};

/// Traffic that bypasses the sidecar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exclusions {
    /// Destination ports that bypass the sidecar.
    pub outbound_ports: BTreeSet<u16>,
    /// Ports of the application that bypass the sidecar for inbound traffic.
    pub inbound_ports: BTreeSet<u16>,
    /// Destination ranges that bypass the sidecar.
    pub outbound_ranges: BTreeSet<AddressRange>,
    /// The only destination ranges that go through the mesh; all ranges if it is empty.
    pub redirected_outbound_ranges: BTreeSet<AddressRange>,
    /// Network interfaces with traffic that is not redirected.
    pub interfaces: BTreeSet<String>,
}

/// Resource requests and limits of a container, as Kubernetes quantities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources {
    /// The requests.
    pub requests: BTreeMap<String, String>,
    /// The limits.
    pub limits: BTreeMap<String, String>,
}

impl Default for Resources {
    fn default() -> Self {
        let owned = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        Self {
            requests: owned(&[("cpu", "10m"), ("memory", "16Mi")]),
            limits: owned(&[("memory", "128Mi")]),
        }
    }
}

impl Resources {
    /// Returns the `resources` field of a container.
    pub(super) fn to_json(&self) -> Value {
        json!({"requests": self.requests, "limits": self.limits})
    }
}

/// All settings of one sidecar from annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SidecarOptions {
    pub(super) exclusions: Exclusions,
    pub(super) resources: Resources,
    pub(super) image: String,
    /// True if annotations for Prometheus are requested.
    pub(super) is_scraped: bool,
    /// True if the sidecar answers DNS queries.
    pub(super) answers_dns: bool,
    /// The `PORT/PATH` of the application's own metrics, if the sidecar exposes them as well.
    pub(super) application_metrics: Option<String>,
    /// A warning for each annotation that the mesh floor (`spec.floor` of the MeshConfig) overrides.
    pub(super) warnings: Vec<String>,
    /// The protocols to which connections may be upgraded; `None` without the annotation, which permits only WebSocket.
    pub(super) upgrades: Option<Upgrades>,
}

impl SidecarOptions {
    /// Reads the settings of a pod's sidecar.
    pub(super) fn read(
        pod: &Value,
        namespace: Option<&NamespaceMetadata>,
        settings: &InjectionSettings,
    ) -> Result<Self, InjectError> {
        let annotations = AnnotationSources { pod, namespace };
        annotations.validate_runtime_annotations()?;
        let floor = settings.floor_in(namespace);
        let mut warnings = Vec::new();
        let mut exclusions = settings.exclusions.clone();
        annotations.read_exclusions(&mut exclusions)?;
        if exclusions != settings.exclusions
            && floor.is_some_and(|floor| floor.exclusions_forbidden)
        {
            exclusions = settings.exclusions.clone();
            warnings.push(EXCLUSIONS_FORBIDDEN.to_owned());
        }
        let answers_dns = annotations.read_dns_setting()?;
        if answers_dns && exclusions.outbound_ports.contains(&DNS_PORT) {
            return Err(InjectError::DnsPort);
        }
        let mut image = annotations.read_image()?.unwrap_or(&settings.image);
        if floor.is_some_and(|floor| !settings.permits_image(floor, image)) {
            let problem =
                "is not permitted by spec.floor.sidecarImages of the MeshConfig: the sidecar has";
            warnings.push(format!("{SIDECAR_IMAGE}: {image} {problem} {}", settings.image));
            image = &settings.image;
        }
        Ok(Self {
            exclusions,
            resources: annotations.read_resources(settings)?,
            image: image.to_owned(),
            is_scraped: annotations.read_metrics_setting()?,
            answers_dns,
            application_metrics: annotations.read_application_metrics()?,
            warnings,
            upgrades: annotations.read_upgrades()?,
        })
    }
}

/// Returns the image that an annotation of the pod or its namespace names.
pub(super) fn requested_image<'a>(
    pod: &'a Value,
    namespace: Option<&'a NamespaceMetadata>,
) -> Result<Option<&'a str>, InjectError> {
    AnnotationSources { pod, namespace }.read_image()
}

/// An annotation of a pod or namespace.
struct AnnotationValue<'a> {
    object: AnnotatedObject,
    /// The key, with its prefix.
    key: String,
    text: &'a str,
}

/// The pod and the namespace from which annotations are read.
struct AnnotationSources<'a> {
    pod: &'a Value,
    namespace: Option<&'a NamespaceMetadata>,
}

impl<'a> AnnotationSources<'a> {
    /// Returns all annotations with this name after one of the prefixes, in order of precedence.
    fn find_annotations(&self, name: &str) -> Vec<AnnotationValue<'a>> {
        debug_assert!(is_supported_annotation(name), "{name} is not listed as supported");
        let keys = || PREFIXES.into_iter().map(|prefix| format!("{prefix}/{name}"));
        let pod_annotations = keys().filter_map(|key| {
            let text = pod_metadata(self.pod, "annotations", &key)?;
            Some(AnnotationValue { object: AnnotatedObject::Pod, key, text })
        });
        let namespace_annotations = keys().filter_map(|key| {
            let text = self.namespace?.annotations.get(&key)?.as_str();
            Some(AnnotationValue { object: AnnotatedObject::Namespace, key, text })
        });
        pod_annotations.chain(namespace_annotations).collect()
    }

    /// Returns the annotation with this name that takes precedence.
    fn first_annotation(&self, name: &str) -> Option<AnnotationValue<'a>> {
        self.find_annotations(name).into_iter().next()
    }

    fn read_exclusions(&self, exclusions: &mut Exclusions) -> Result<(), InjectError> {
        self.read_ports("outbound-port-exclusion-list", &mut exclusions.outbound_ports)?;
        self.read_ports("inbound-port-exclusion-list", &mut exclusions.inbound_ports)?;
        self.read_ranges("outbound-ip-range-exclusion-list", &mut exclusions.outbound_ranges)?;
        self.read_ranges(
            "outbound-ip-range-inclusion-list",
            &mut exclusions.redirected_outbound_ranges,
        )?;
        self.read_interfaces("network-interface-exclusion-list", &mut exclusions.interfaces)
    }

    fn read_ports(&self, name: &str, exclusions: &mut BTreeSet<u16>) -> Result<(), InjectError> {
        for AnnotationValue { object, key, text } in self.find_annotations(name) {
            for element in split_list(text) {
                match element.parse() {
                    Ok(port @ 1..) => exclusions.insert(port),
                    _ => {
                        let expected = "a port; use numbers from 1 to 65535, such as `25, 5432`";
                        return Err(invalid_value(object, key, element, expected));
                    }
                };
            }
        }
        Ok(())
    }

    fn read_ranges(
        &self,
        name: &str,
        exclusions: &mut BTreeSet<AddressRange>,
    ) -> Result<(), InjectError> {
        for AnnotationValue { object, key, text } in self.find_annotations(name) {
            for element in split_list(text) {
                let expected = "a range of addresses; use one such as 192.0.2.0/24";
                let range = element
                    .parse()
                    .map_err(|()| invalid_value(object, key.clone(), element, expected))?;
                exclusions.insert(range);
            }
        }
        Ok(())
    }

    fn read_interfaces(
        &self,
        name: &str,
        exclusions: &mut BTreeSet<String>,
    ) -> Result<(), InjectError> {
        for AnnotationValue { object, key, text } in self.find_annotations(name) {
            for element in split_list(text) {
                if !is_interface(element) {
                    let expected = "the name of a network interface; use one such as eth1";
                    return Err(invalid_value(object, key, element, expected));
                }
                exclusions.insert(element.to_owned());
            }
        }
        Ok(())
    }

    /// Reads resources from annotations in FSM's form, such as `sidecar-resource-limits-memory`.
    fn read_resources(&self, settings: &InjectionSettings) -> Result<Resources, InjectError> {
        let mut resources = settings.resources.clone();
        let mut annotated_resources = [BTreeMap::new(), BTreeMap::new()];
        for (index, kind) in ["requests", "limits"].into_iter().enumerate() {
            for (resource, suffixes) in RESOURCES {
                let name = |suffix| format!("sidecar-resource-{kind}-{suffix}");
                let annotations =
                    suffixes.iter().filter_map(|suffix| self.first_annotation(&name(suffix)));
                let Some(AnnotationValue { object, key, text }) =
                    annotations.min_by_key(|annotation| annotation.object)
                else {
                    continue;
                };
                if !is_quantity(text) {
                    return Err(invalid_value(
                        object,
                        key,
                        text,
                        "a quantity; use one such as 100m or 64Mi",
                    ));
                }
                annotated_resources[index].insert((*resource).to_owned(), text.to_owned());
            }
        }
        let [requests, limits] = annotated_resources;
        resources.requests.extend(requests.clone());
        resources.limits.extend(limits.clone());
        // The API server rejects a request above its limit. If only one of the two is annotated, the default of
        // the other is removed.
        let keys: Vec<String> = resources
            .requests
            .keys()
            .filter(|key| resources.limits.contains_key(*key))
            .cloned()
            .collect();
        for key in keys {
            let (request, limit) = (resources.requests.get(&key), resources.limits.get(&key));
            if request.and_then(|quantity| parse_quantity(quantity))
                <= limit.and_then(|quantity| parse_quantity(quantity))
            {
                continue;
            }
            if !limits.contains_key(&key) {
                resources.limits.remove(&key);
            } else if !requests.contains_key(&key) {
                resources.requests.remove(&key);
            }
        }
        Ok(resources)
    }

    /// Returns an annotation that is supported only with our own prefix, by its full key: the object that has it, and its
    /// value. That of the pod precedes that of the namespace.
    fn own_annotation(&self, key: &str) -> Option<(AnnotatedObject, &'a str)> {
        let namespace_annotation =
            || Some((AnnotatedObject::Namespace, self.namespace?.annotations.get(key)?.as_str()));
        let pod_annotation =
            pod_metadata(self.pod, "annotations", key).map(|text| (AnnotatedObject::Pod, text));
        pod_annotation.or_else(namespace_annotation)
    }

    /// Returns the requested image, if any. Annotations of other meshes are ignored because they name other programs.
    fn read_image(&self) -> Result<Option<&'a str>, InjectError> {
        let Some((object, image)) = self.own_annotation(SIDECAR_IMAGE) else {
            return Ok(None);
        };
        let is_forbidden_character = |c: char| c.is_whitespace() || c.is_control();
        if image.is_empty() || image.contains(is_forbidden_character) {
            let expected = "the name of an image; use one such as `leno:0.1`";
            return Err(invalid_value(object, SIDECAR_IMAGE.to_owned(), image, expected));
        }
        Ok(Some(image))
    }

    /// Validates the annotations that are read at run time. Invalid values of the namespace do not block pods:
    /// the previous values stay in force, and an event reports the error.
    fn validate_runtime_annotations(&self) -> Result<(), InjectError> {
        for RuntimeAnnotation { key, is_valid_value, expected } in RUNTIME_ANNOTATIONS {
            match pod_metadata(self.pod, "annotations", key) {
                Some(text) if !is_valid_value(text) => {
                    return Err(invalid_value(
                        AnnotatedObject::Pod,
                        (*key).to_owned(),
                        text,
                        expected,
                    ));
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    /// Returns true if the sidecar answers DNS queries. Other meshes have no such annotation.
    fn read_dns_setting(&self) -> Result<bool, InjectError> {
        match self.own_annotation(DNS_ANNOTATION) {
            None | Some((_, "cluster")) => Ok(false),
            Some((_, "proxy")) => Ok(true),
            Some((object, text)) => {
                let expected = "a DNS mode; use `proxy` or `cluster`";
                Err(invalid_value(object, DNS_ANNOTATION.to_owned(), text, expected))
            }
        }
    }

    fn read_upgrades(&self) -> Result<Option<Upgrades>, InjectError> {
        let Some((object, text)) = self.own_annotation(UPGRADES) else { return Ok(None) };
        let expected = "a list of protocols; use one such as `websocket,tcp`, or `any`";
        let upgrades = text.parse();
        upgrades.map(Some).map_err(|_| invalid_value(object, UPGRADES.to_owned(), text, expected))
    }

    /// Returns the pod's own Prometheus endpoint as `PORT/PATH`, if the sidecar exposes metrics. Returns `None` for an
    /// endpoint that the sidecar cannot scrape, and for copied annotations that already refer to a sidecar.
    fn read_application_metrics(&self) -> Result<Option<String>, InjectError> {
        let annotation = |key: &str| pod_metadata(self.pod, "annotations", key);
        if !self.read_metrics_setting()? || annotation("prometheus.io/scrape") != Some("true") {
            return Ok(None);
        }
        let parsed_port =
            annotation("prometheus.io/port").and_then(|text| text.parse::<u16>().ok());
        let path = annotation("prometheus.io/path").unwrap_or("/metrics").trim_start_matches('/');
        let is_plaintext = annotation("prometheus.io/scheme").is_none_or(|scheme| scheme == "http");
        let is_path_byte = |byte: u8| byte.is_ascii_graphic() && !b"#\"<>\\^`{|}$".contains(&byte);
        // The sidecar accepts a path of at most 1024 bytes, including its initial `/`.
        let is_scrapable = is_plaintext && path.len() < 1024 && path.bytes().all(is_path_byte);
        let port = parsed_port.filter(|port| is_scrapable && *port != 0 && *port != HEALTH_PORT);
        Ok(port.map(|port| format!("{port}/{path}")))
    }

    /// Returns true if annotations for Prometheus are requested.
    fn read_metrics_setting(&self) -> Result<bool, InjectError> {
        match self.first_annotation("metrics") {
            Some(AnnotationValue { object, key, text }) => parse_switch(object, &key, text),
            None => Ok(false),
        }
    }
}

/// Returns the error for an invalid value, or an invalid element, of an annotation.
fn invalid_value(
    object: AnnotatedObject,
    key: String,
    value: &str,
    expected: &'static str,
) -> InjectError {
    InjectError::Annotation { object, key, value: value.to_owned(), expected }
}

/// Returns true if the kernel accepts the text as the name of a network interface.
#[must_use]
pub fn is_interface(text: &str) -> bool {
    let is_forbidden_character =
        |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':' | '"' | ',');
    !text.is_empty()
        && text.len() < INTERFACE_BYTES
        && !text.contains(is_forbidden_character)
        && !matches!(text, "." | "..")
}

fn is_quantity(text: &str) -> bool {
    parse_quantity(text).is_some()
}

/// Parses a Kubernetes quantity: a number with an optional unit. `None` for negative numbers and unknown units.
fn parse_quantity(text: &str) -> Option<f64> {
    let number_text = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(number_text.len()..)?;
    let (_, factor) = QUANTITY_UNITS.iter().find(|(name, _)| *name == unit)?;
    let number: f64 = number_text.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

/// The warning for exclusions that the floor rejects.
const EXCLUSIONS_FORBIDDEN: &str = "annotations exclude ports, addresses or interfaces from the mesh, and \
                             spec.floor.exclusions of the MeshConfig does not permit that: nothing \
                             is excluded";
/// The size of the kernel's buffer for an interface name, with a terminating byte (`IFNAMSIZ`).
pub const INTERFACE_BYTES: usize = 16;
/// The annotation that selects the DNS resolver.
const DNS_ANNOTATION: &str = "leno.dev/dns";
/// The DNS port (RFC 1035 §4.2).
const DNS_PORT: u16 = 53;

/// The units of quantities of containers, with their factors. Kubernetes has larger units that no container needs.
const QUANTITY_UNITS: &[(&str, f64)] = &[
    ("", 1.0),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("Ki", 1024.0),
    ("Mi", 1024.0 * 1024.0),
    ("Gi", 1024.0 * 1024.0 * 1024.0),
    ("Ti", 1024.0 * 1024.0 * 1024.0 * 1024.0),
];

/// The resources of a container, and the suffixes of their annotations in order of precedence. FSM's `storage`
/// is not a resource of containers.
const RESOURCES: &[(&str, &[&str])] = &[
    ("cpu", &["cpu"]),
    ("memory", &["memory"]),
    ("ephemeral-storage", &["ephemeral-storage", "storage"]),
];

//! Zone preference of services (topology-aware routing).

use k8s_openapi::api::core::v1::Service as Served;
use leno_model::{
    CallerMatch, CallerRule, FieldTest, Name, RuleOrigin, ServiceName, TagDialect, TagRoute,
    TagRouteName, TagRules, TagScope, TagSet, TagSplit, TagTarget, TagValue, ValueTest, WeightUnit,
};
use leno_registry::Warning;

use super::field_location;

/// The zone preference of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZonePreference {
    /// Same zone as the client, as long as it has any endpoint.
    Zone,
    /// Same zone as the client, as long as the zone has its share of the endpoints.
    Balanced,
}

/// Returns the zone preference of a service, and a warning about an unsupported one.
pub(crate) fn read_zone_preference(service: &Served) -> (Option<ZonePreference>, Option<Warning>) {
    let spec = service.spec.as_ref();
    let distribution = spec.and_then(|spec| spec.traffic_distribution.as_deref());
    let warn = |field: &str, problem: &str, hint: &str| Warning {
        at: field_location(&service.metadata, "Service", field),
        problem: problem.to_owned(),
        hint: hint.to_owned(),
    };
    match distribution {
        Some("PreferClose" | "PreferSameZone") => return (Some(ZonePreference::Zone), None),
        Some("PreferSameNode") => {
            let problem = "is treated as PreferSameZone for clients in the mesh";
            let warning = warn(DISTRIBUTION, problem, "use PreferSameZone");
            return (Some(ZonePreference::Zone), Some(warning));
        }
        Some(_) => {
            let warning =
                warn(DISTRIBUTION, "is unknown and ignored", "use PreferSameZone, or remove it");
            return (None, Some(warning));
        }
        None => {}
    }
    let annotations = service.metadata.annotations.as_ref();
    let mode = MODES.iter().find_map(|key| annotations?.get(*key));
    match mode.map(|mode| mode.to_ascii_lowercase()).as_deref() {
        Some("auto") => (Some(ZonePreference::Balanced), None),
        _ => (None, None),
    }
}

/// Returns a rule that prefers the client's own zone, equivalent to a user's rule.
pub(crate) fn preference_rule(
    service: &ServiceName,
    zone_preference: ZonePreference,
) -> Option<TagRoute> {
    let name = preference_name(service)?;
    let origin = RuleOrigin { dialect: TagDialect::TagRoute, name: name.clone(), index: 0 };
    let present = FieldTest { name: ZONE.to_owned(), test: ValueTest::Present };
    let set = TagSet::All([(ZONE.to_owned(), TagValue::Callers)].into());
    let rule = CallerRule {
        origin,
        from: CallerMatch { tags: vec![present], ..CallerMatch::default() },
        split: TagSplit {
            targets: vec![TagTarget { weight: 1, set }],
            weights: WeightUnit::Relative,
        },
        min_percent: match zone_preference {
            ZonePreference::Zone => 0,
            ZonePreference::Balanced => MIN_SHARE_PERCENT,
        },
        min_total: 0,
        goes_on: true,
    };
    let rules = TagRules { by_caller: vec![rule], ..TagRules::default() };
    // Rules of users take precedence.
    let created = i64::MAX;
    Some(TagRoute { name, scope: TagScope::Service(service.clone(), None), rules, created })
}

/// Returns the name of the zone rule of a service.
pub(crate) fn preference_name(service: &ServiceName) -> Option<TagRouteName> {
    let name = Name::new(&format!("{}{SUFFIX}", service.name)).ok()?;
    Some(TagRouteName { namespace: service.namespace.clone(), name })
}

/// Returns the service of a zone rule by the rule's name, or `None` for other names.
pub(crate) fn service_of_preference(name: &TagRouteName) -> Option<ServiceName> {
    let service = name.name.as_str().strip_suffix(SUFFIX)?;
    ServiceName::new(name.namespace.as_str(), service).ok()
}

/// The zone label of nodes; workloads inherit it from their node.
pub(crate) const ZONE: &str = "topology.kubernetes.io/zone";
const SUFFIX: &str = ".traffic-distribution";
const DISTRIBUTION: &str = "spec.trafficDistribution";
/// The annotation, and its former name.
const MODES: [&str; 2] =
    ["service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints"];
/// A zone with a smaller share of the endpoints would be overloaded.
const MIN_SHARE_PERCENT: u32 = 20;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read_distribution(
        distribution: Value,
        annotations: Value,
    ) -> (Option<ZonePreference>, Option<String>) {
        let service = json!({
            "metadata": {"name": "web", "namespace": "shop", "annotations": annotations},
            "spec": {"trafficDistribution": distribution},
        });
        let (zone_preference, warning) =
            read_zone_preference(&serde_json::from_value(service).unwrap());
        (zone_preference, warning.map(|warning| warning.to_string()))
    }

    #[test]
    fn a_service_sets_its_zone_preference() {
        let none = json!({});
        let auto = json!({"service.kubernetes.io/topology-mode": "Auto"});
        for (distribution, annotations, expected) in [
            (json!(null), &none, None),
            (json!("PreferClose"), &none, Some(ZonePreference::Zone)),
            (json!("PreferSameZone"), &auto, Some(ZonePreference::Zone)),
            (json!(null), &auto, Some(ZonePreference::Balanced)),
            (
                json!(null),
                &json!({"service.kubernetes.io/topology-aware-hints": "auto"}),
                Some(ZonePreference::Balanced),
            ),
            (json!(null), &json!({"service.kubernetes.io/topology-mode": "Disabled"}), None),
        ] {
            assert_eq!(read_distribution(distribution, annotations.clone()), (expected, None));
        }
        let (zone_preference, warning) = read_distribution(json!("PreferSameNode"), none.clone());
        assert_eq!(zone_preference, Some(ZonePreference::Zone));
        assert!(warning.unwrap().contains("is treated as PreferSameZone"));
        let (zone_preference, warning) = read_distribution(json!("Elsewhere"), none);
        assert_eq!(zone_preference, None);
        assert!(warning.unwrap().contains("is unknown"));
    }

    #[test]
    fn a_preference_is_found_by_its_name() {
        let service = ServiceName::new("shop", "web").unwrap();
        let route = preference_rule(&service, ZonePreference::Balanced).unwrap();
        assert_eq!(route.scope, TagScope::Service(service.clone(), None));
        assert_eq!(route.rules.by_caller[0].min_percent, 20);
        assert_eq!(service_of_preference(&route.name), Some(service));
        let other = TagRouteName { name: Name::new("canary").unwrap(), ..route.name };
        assert_eq!(service_of_preference(&other), None);
    }
}

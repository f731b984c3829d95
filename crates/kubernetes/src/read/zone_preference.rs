//! Reads the zone preferences of Services (topology-aware routing), and creates the tag rules that implement them in
//! sidecars. A tag rule selects endpoints by their labels, here by the zone label.

use k8s_openapi::api::core::v1::Service as KubeService;
use leno_model::{
    CallerMatch, CallerRule, FieldTest, Name, RuleOrigin, ServiceName, TagDialect, TagRoute,
    TagRouteName, TagRules, TagScope, TagSet, TagSplit, TagTarget, TagValue, ValueTest, WeightUnit,
};
use leno_registry::Warning;

use super::field_location;

/// The zone preference of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZonePreference {
    /// Endpoints in the client's zone are preferred as long as the zone has any.
    Zone,
    /// Endpoints in the client's zone are preferred as long as the zone has its share of all endpoints.
    Balanced,
}

/// Returns the zone preference of a service, if any, and a warning if the preference is not supported.
pub(crate) fn read_zone_preference(
    service: &KubeService,
) -> (Option<ZonePreference>, Option<Warning>) {
    let spec = service.spec.as_ref();
    let distribution = spec.and_then(|spec| spec.traffic_distribution.as_deref());
    let build_warning = |field: &str, problem: &str, hint: &str| Warning {
        location: field_location(&service.metadata, "Service", field),
        problem: problem.to_owned(),
        hint: hint.to_owned(),
    };
    match distribution {
        Some("PreferClose" | "PreferSameZone") => return (Some(ZonePreference::Zone), None),
        Some("PreferSameNode") => {
            let problem = "is treated as PreferSameZone for clients in the mesh";
            let warning = build_warning(DISTRIBUTION_FIELD, problem, "use PreferSameZone");
            return (Some(ZonePreference::Zone), Some(warning));
        }
        Some(_) => {
            let warning = build_warning(
                DISTRIBUTION_FIELD,
                "is unknown and ignored",
                "use PreferSameZone, or remove it",
            );
            return (None, Some(warning));
        }
        None => {}
    }
    let annotations = service.metadata.annotations.as_ref();
    let mode = MODE_ANNOTATIONS.iter().find_map(|key| annotations?.get(*key));
    match mode.map(|mode| mode.to_ascii_lowercase()).as_deref() {
        Some("auto") => (Some(ZonePreference::Balanced), None),
        _ => (None, None),
    }
}

/// Returns a rule that prefers the client's own zone, equivalent to a user's rule; `None` if its name is too long.
pub(crate) fn preference_rule(
    service: &ServiceName,
    zone_preference: ZonePreference,
) -> Option<TagRoute> {
    let name = preference_name(service)?;
    let origin = RuleOrigin { dialect: TagDialect::TagRoute, name: name.clone(), index: 0 };
    let has_zone = FieldTest { name: ZONE_LABEL.to_owned(), test: ValueTest::Present };
    let set = TagSet::All([(ZONE_LABEL.to_owned(), TagValue::SameAsCaller)].into());
    let rule = CallerRule {
        origin,
        from: CallerMatch { tags: vec![has_zone], ..CallerMatch::default() },
        split: TagSplit {
            targets: vec![TagTarget { weight: 1, set }],
            weights: WeightUnit::Relative,
        },
        min_percent: match zone_preference {
            ZonePreference::Zone => 0,
            ZonePreference::Balanced => MIN_SHARE_PERCENT,
        },
        min_total: 0,
        continues: true,
    };
    let rules = TagRules { caller_rules: vec![rule], ..TagRules::default() };
    // Older rules take precedence, so every rule of a user precedes this rule.
    let created = i64::MAX;
    Some(TagRoute { name, scope: TagScope::Service(service.clone(), None), rules, created })
}

/// Returns the name of the zone rule of a service; `None` if the name is too long.
pub(crate) fn preference_name(service: &ServiceName) -> Option<TagRouteName> {
    let name = Name::new(&format!("{}{RULE_NAME_SUFFIX}", service.name)).ok()?;
    Some(TagRouteName { namespace: service.namespace.clone(), name })
}

/// Returns the service of a zone rule by the rule's name; `None` for names of other rules.
pub(crate) fn service_of_preference(name: &TagRouteName) -> Option<ServiceName> {
    let service = name.name.as_str().strip_suffix(RULE_NAME_SUFFIX)?;
    ServiceName::new(name.namespace.as_str(), service).ok()
}

/// The zone label of nodes; workloads inherit it from their node.
pub(crate) const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// The suffix that distinguishes the names of zone rules from those of services.
const RULE_NAME_SUFFIX: &str = ".traffic-distribution";
const DISTRIBUTION_FIELD: &str = "spec.trafficDistribution";
/// The annotation with the mode of topology-aware routing, and its former name.
const MODE_ANNOTATIONS: [&str; 2] =
    ["service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints"];
/// The minimum share of the endpoints in a preferred zone: a zone with a smaller share would be overloaded.
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
        assert_eq!(route.rules.caller_rules[0].min_percent, 20);
        assert_eq!(service_of_preference(&route.name), Some(service));
        let other = TagRouteName { name: Name::new("canary").unwrap(), ..route.name };
        assert_eq!(service_of_preference(&other), None);
    }
}

//! Defines the JSON response about policies, and determines the destinations that a policy includes.

use serde::{Deserialize, Serialize};

/// A policy, or rules other than routes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// The kind, such as `TrafficTarget` or `OutlierDetection`.
    #[serde(default)]
    pub kind: String,
    /// The name, as `namespace/name`.
    pub name: String,
    /// The destinations that the policy applies to: accounts or services as `namespace/name`, a port of a service as
    /// `namespace/name:port`, all of a namespace as `namespace/*`, the whole mesh as `*`, or hosts and address ranges.
    pub destinations: Vec<String>,
    /// The clients that the policy applies to.
    pub sources: Vec<String>,
    /// The rules, each as a line of text.
    pub rules: Vec<String>,
    /// True if the policy has an effect.
    pub in_force: bool,
    /// The reason why the policy has no effect: the default policy, an overriding object, a missing
    /// destination.
    #[serde(default)]
    pub reason: Option<String>,
    /// The problems of the policy, such as references to missing objects, as sentences.
    pub problems: Vec<String>,
    /// The keys that a JWT policy needs and that could not be fetched.
    #[serde(default)]
    pub missing_keys: Option<MissingKeysStatus>,
}

impl PolicyStatus {
    /// True if the policy applies to one of these accounts or services, as `namespace/name`. The kind of the policy determines
    /// which of the two its destinations name: an account and a service may have the same name.
    #[must_use]
    pub fn applies_to(&self, accounts: &[&str], services: &[&str]) -> bool {
        let names_accounts = matches!(self.kind.as_str(), "TrafficTarget" | "AccessPolicy");
        self.destinations.iter().any(|destination| {
            if destination == "*" {
                return true;
            }
            if let Some(namespace) = destination.strip_suffix("/*") {
                let mut names = accounts.iter().chain(services);
                return names.any(|name| name.split('/').next() == Some(namespace));
            }
            match names_accounts {
                true => accounts.contains(&destination.as_str()),
                false => services.iter().any(|service| is_service_or_port(destination, service)),
            }
        })
    }
}

/// True if the text is the service, or one of its ports such as `shop/api:80` or `shop/api port 80`.
pub(crate) fn is_service_or_port(text: &str, service: &str) -> bool {
    text.strip_prefix(service)
        .is_some_and(|suffix| suffix.is_empty() || suffix.starts_with([':', ' ']))
}

/// JWKS that could not be fetched since the start of the control plane.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MissingKeysStatus {
    /// The requests that fail for lack of keys, such as `every request`.
    pub requests: String,
    /// Each issuer with its JWKS endpoint and the reason.
    pub issuers: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_applies_through_any_of_its_destinations() {
        for (kind, destinations, expected) in [
            ("AccessPolicy", &["shop/api", "shop/web"][..], true),
            ("AccessPolicy", &["shop/*"], true),
            ("AccessPolicy", &["other/*"], false),
            ("TrafficTarget", &["shop/web"], true),
            ("TrafficTarget", &["shop/front"], false),
            ("RateLimit", &["shop/front"], true),
            ("RateLimit", &["shop/back", "shop/front:8080"], true),
            ("RateLimit", &["shop/fronts"], false),
            ("RateLimit", &["shop/web"], false),
            ("TagRoute", &["*"], true),
            ("Egress", &["example.org"], false),
        ] {
            let policy = PolicyStatus {
                kind: kind.to_owned(),
                destinations: destinations.iter().map(|name| (*name).to_owned()).collect(),
                ..PolicyStatus::default()
            };
            let applies = policy.applies_to(&["shop/web"], &["shop/front"]);
            assert_eq!(applies, expected, "{kind} {destinations:?}");
        }
    }
}

//! Publishes the CA bundle in the webhook configuration, by which the API server verifies the webhook.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::api::{ApiError, ObjectApi, ObjectName};

/// The webhook configuration of the injector. The API server calls configurations in order of their names:
/// changes by OSM (`osm-…`) and FSM (`fsm-…`) precede those of Leno, and are kept.
pub const INJECTOR: &str = "sidecar-injector.leno.dev";
/// `INJECTOR` as an object name.
pub(crate) const INJECTOR_NAME: ObjectName = ObjectName::from_literal(INJECTOR);

/// The state of the CA bundles of a webhook configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustState {
    /// All webhooks have a CA bundle.
    Trusted,
    /// A webhook of the configuration has no CA bundle.
    Untrusted,
    /// There is no configuration.
    Absent,
}

/// Writes `certificates` as the CA bundle of the configuration. Returns `Absent` without a configuration, otherwise
/// `Trusted`.
pub(super) async fn publish_bundle(
    client: &Client,
    certificates: &str,
) -> Result<TrustState, ApiError> {
    let configurations: ObjectApi<MutatingWebhookConfiguration> =
        ObjectApi::for_all_namespaces(client.clone());
    let Some(configuration) = configurations.get_opt(&INJECTOR_NAME).await? else {
        return Ok(TrustState::Absent);
    };
    let outdated_names = outdated_webhooks(&configuration, certificates);
    if !outdated_names.is_empty() {
        let patch = Patch::Strategic(bundle_patch(&outdated_names, certificates));
        configurations.patch(&INJECTOR_NAME, &PatchParams::default(), &patch).await?;
        tracing::info!("the API server trusts the webhook now");
    }
    Ok(TrustState::Trusted)
}

/// Returns the state of a configuration.
#[must_use]
pub fn trust_state(configuration: Option<&MutatingWebhookConfiguration>) -> TrustState {
    let Some(webhooks) = configuration.and_then(|configuration| configuration.webhooks.as_ref())
    else {
        return TrustState::Absent;
    };
    let has_bundle =
        |bundle: &Option<ByteString>| bundle.as_ref().is_some_and(|bundle| !bundle.0.is_empty());
    match webhooks.iter().all(|webhook| has_bundle(&webhook.client_config.ca_bundle)) {
        true => TrustState::Trusted,
        false => TrustState::Untrusted,
    }
}

/// Returns the names of the webhooks that have another CA bundle, or no CA bundle.
fn outdated_webhooks(
    configuration: &MutatingWebhookConfiguration,
    certificates: &str,
) -> Vec<String> {
    let webhooks = configuration.webhooks.iter().flatten();
    webhooks
        .filter(|webhook| {
            let bundle = webhook.client_config.ca_bundle.as_ref();
            bundle.is_none_or(|bundle| bundle.0 != certificates.as_bytes())
        })
        .map(|webhook| webhook.name.clone())
        .collect()
}

/// Returns a patch with the CA bundle for these webhooks. The API server merges webhooks by name.
fn bundle_patch(names: &[String], certificates: &str) -> Value {
    let bundle = ByteString(certificates.as_bytes().to_vec());
    let webhooks: Vec<Value> = names
        .iter()
        .map(|name| json!({"name": name, "clientConfig": {"caBundle": bundle}}))
        .collect();
    json!({"webhooks": webhooks})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration_with_bundles(bundles: &[Option<&str>]) -> MutatingWebhookConfiguration {
        let webhook = |(index, bundle): (usize, &Option<&str>)| {
            let bundle = bundle.map(|text| ByteString(text.as_bytes().to_vec()));
            json!({
                "name": format!("w{index}"),
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": {"caBundle": bundle},
            })
        };
        let webhooks: Vec<Value> = bundles.iter().enumerate().map(webhook).collect();
        serde_json::from_value(json!({"metadata": {"name": INJECTOR}, "webhooks": webhooks}))
            .unwrap()
    }

    #[test]
    fn only_webhooks_with_another_bundle_are_patched() {
        let configuration = configuration_with_bundles(&[Some("a"), Some("b"), None]);
        let outdated_names = outdated_webhooks(&configuration, "a");
        assert_eq!(outdated_names, ["w1", "w2"]);
        expect_test::expect![[
            r#"{"webhooks":[{"name":"w1","clientConfig":{"caBundle":"YQ=="}},{"name":"w2","clientConfig":{"caBundle":"YQ=="}}]}"#
        ]]
        .assert_eq(&bundle_patch(&outdated_names, "a").to_string());
    }

    #[test]
    fn the_trust_state_depends_on_the_bundles_of_all_webhooks() {
        assert_eq!(trust_state(None), TrustState::Absent);
        assert_eq!(
            trust_state(Some(&configuration_with_bundles(&[Some("a"), None]))),
            TrustState::Untrusted
        );
        assert_eq!(
            trust_state(Some(&configuration_with_bundles(&[Some("a")]))),
            TrustState::Trusted
        );
    }
}

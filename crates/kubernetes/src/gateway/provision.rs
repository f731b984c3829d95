//! Applies the Kubernetes objects of gateways (see `manifests.rs`), in the leading control plane.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::api::{Patch, PatchParams};
use kube::core::ObjectMeta;
use leno_model::GatewayName;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, interval};

use super::manifests::gateway_manifests;
use super::resolve::DesiredGateway;
use crate::api::ApiError;
use crate::inject::InjectionSettings;
use crate::install::ApiTarget;
use crate::status::event;
use crate::well_known::GATEWAY_PART;

/// Creates and maintains a ServiceAccount, a Service, a Deployment and a PodDisruptionBudget for each desired
/// gateway while this control plane is the leader. The Gateway owns them, so they are deleted with it. Never
/// returns.
pub async fn provision_gateways(
    client: Client,
    settings: watch::Receiver<InjectionSettings>,
    desired: watch::Receiver<Arc<Vec<DesiredGateway>>>,
    is_leader: watch::Receiver<bool>,
) {
    GatewayProvisioner { client, attempts: HashMap::new() }.run(settings, desired, is_leader).await;
}

struct GatewayProvisioner {
    client: Client,
    /// The last attempt for each desired gateway, while this control plane is the leader.
    attempts: HashMap<GatewayName, ProvisionAttempt>,
}

/// The last attempt to apply the objects of a gateway.
struct ProvisionAttempt {
    desired: DesiredGateway,
    settings: InjectionSettings,
    /// The time at which the attempt ended.
    end_time: Instant,
    /// The number of earlier consecutive attempts with the same desired state and settings.
    retry_count: u32,
    /// The error of the attempt, if it failed.
    error: Option<String>,
}

impl GatewayProvisioner {
    /// Applies the objects of due gateways after each change and periodically, while this control plane
    /// is the leader.
    async fn run(
        mut self,
        mut settings_receiver: watch::Receiver<InjectionSettings>,
        mut desired_receiver: watch::Receiver<Arc<Vec<DesiredGateway>>>,
        mut leadership_receiver: watch::Receiver<bool>,
    ) {
        let mut ticks = interval(RETRY_INTERVAL);
        loop {
            tokio::select! {
                Ok(()) = desired_receiver.changed() => {}
                Ok(()) = settings_receiver.changed() => {}
                Ok(()) = leadership_receiver.changed() => {}
                _ = ticks.tick() => {}
            }
            let desired_gateways = Arc::clone(&desired_receiver.borrow_and_update());
            let settings = settings_receiver.borrow_and_update().clone();
            if !*leadership_receiver.borrow_and_update() {
                // Another leader may apply different objects in the meantime.
                self.attempts.clear();
                continue;
            }
            self.attempts
                .retain(|name, _| desired_gateways.iter().any(|desired| desired.name == *name));
            for desired in desired_gateways.iter() {
                if !*leadership_receiver.borrow() {
                    break;
                }
                if self.is_due(desired, &settings) {
                    self.apply_gateway(desired, &settings).await;
                } else if let Some(attempt) = self.attempts.get_mut(&desired.name) {
                    // A later deletion of an object must be a visible change.
                    attempt.desired.is_incomplete = desired.is_incomplete;
                }
            }
        }
    }

    /// Returns true if the objects of a gateway must be applied now: the desired state has changed, an object
    /// is missing, the last attempt failed, or the reapply interval has passed.
    fn is_due(&self, desired: &DesiredGateway, settings: &InjectionSettings) -> bool {
        let Some(attempt) = self.attempts.get(&desired.name) else { return true };
        // An object was deleted since the last attempt.
        let is_object_deleted = desired.is_incomplete && !attempt.desired.is_incomplete;
        let is_same =
            DesiredGateway { is_incomplete: desired.is_incomplete, ..attempt.desired.clone() }
                == *desired
                && attempt.settings == *settings;
        // Back off while another client deletes the objects repeatedly or the API server rejects them. Five
        // doublings reach REAPPLY_INTERVAL.
        let retry_interval =
            RETRY_INTERVAL.saturating_mul(1 << attempt.retry_count.min(5)).min(REAPPLY_INTERVAL);
        let delay = match desired.is_incomplete || attempt.error.is_some() {
            true if is_object_deleted && attempt.retry_count == 0 => Duration::ZERO,
            true => retry_interval,
            false => REAPPLY_INTERVAL,
        };
        !is_same || attempt.end_time.elapsed() >= delay
    }

    /// Applies the objects of a gateway until one fails, and records the attempt. An error is reported once, not
    /// after each retry.
    async fn apply_gateway(&mut self, desired: &DesiredGateway, settings: &InjectionSettings) {
        let mut error = None;
        for manifest in gateway_manifests(desired, settings) {
            if let Err(cause) = apply_manifest(&self.client, desired, &manifest).await {
                error = Some(cause);
                break;
            }
        }
        let previous_attempt = self.attempts.get(&desired.name);
        let previous_error = previous_attempt.and_then(|attempt| attempt.error.as_ref());
        let has_failed = error.is_some();
        let retry_count = next_retry_count(previous_attempt, desired, settings, has_failed);
        if let Some(cause) = &error
            && previous_error != Some(cause)
        {
            tracing::warn!(gateway = %desired.name, reason = cause, "cannot create the objects of a gateway");
            self.report_error(desired, cause).await;
        }
        let (desired, settings) = (desired.clone(), settings.clone());
        let end_time = Instant::now();
        self.attempts.insert(
            desired.name.clone(),
            ProvisionAttempt { desired, settings, end_time, retry_count, error },
        );
    }

    /// Reports an error as an event of the Gateway.
    async fn report_error(&self, desired: &DesiredGateway, cause: &str) {
        let gateway = ObjectReference {
            api_version: Some("gateway.networking.k8s.io/v1".to_owned()),
            kind: Some("Gateway".to_owned()),
            name: Some(desired.name.name.to_string()),
            namespace: Some(desired.name.namespace.to_string()),
            uid: Some(desired.uid.clone()),
            ..ObjectReference::default()
        };
        event::write_warning(&self.client, &gateway, "ProvisioningFailed", "Provision", cause)
            .await;
    }
}

/// Returns the retry count of an attempt: one more than that of the previous attempt with the same desired state and settings.
/// 0 if the previous attempt was long ago, and for a routine application, which finds all objects and applies them.
fn next_retry_count(
    previous_attempt: Option<&ProvisionAttempt>,
    desired: &DesiredGateway,
    settings: &InjectionSettings,
    has_failed: bool,
) -> u32 {
    let is_same = |attempt: &&ProvisionAttempt| {
        let previous_desired =
            DesiredGateway { is_incomplete: desired.is_incomplete, ..attempt.desired.clone() };
        attempt.end_time.elapsed() < REAPPLY_INTERVAL * 2
            && attempt.settings == *settings
            && previous_desired == *desired
    };
    let is_retry = desired.is_incomplete || has_failed;
    previous_attempt
        .filter(|_| is_retry)
        .filter(is_same)
        .map_or(0, |attempt| attempt.retry_count + 1)
}

/// Applies a manifest. An existing object is changed only if this gateway owns it. Returns the text of an error.
async fn apply_manifest(
    client: &Client,
    desired: &DesiredGateway,
    manifest: &Value,
) -> Result<(), String> {
    let ApiTarget { object, name, api } =
        ApiTarget::from_manifest(client, manifest).map_err(|error| error.to_string())?;
    let describe_error = |error: ApiError| format!("{object}: {error}");
    let mut manifest = manifest.clone();
    // Objects that do not exist are created without force, to leave an object alone that another client creates
    // meanwhile.
    let mut parameters = PatchParams::apply(FIELD_MANAGER);
    if let Some(existing) = api.get_opt(&name).await.map_err(describe_error)? {
        if !is_owned_by(desired, &existing.metadata) {
            return Err(format!(
                "{object} exists and is not managed by Leno: rename it, or the Gateway"
            ));
        }
        // The API server rejects the request if the object has been replaced since it was read.
        manifest["metadata"]["uid"] = existing.metadata.uid.into();
        parameters = parameters.force();
    }
    api.patch(&name, &parameters, &Patch::Apply(&manifest)).await.map_err(describe_error)?;
    Ok(())
}

/// Returns true if an object belongs to this gateway, and not to an earlier gateway of the same name.
fn is_owned_by(desired: &DesiredGateway, meta: &ObjectMeta) -> bool {
    let label = meta.labels.as_ref().and_then(|labels| labels.get(GATEWAY_PART));
    let mut owners = meta.owner_references.iter().flatten();
    label.is_some_and(|label| *label == desired.name.name.as_str())
        && owners.any(|owner| owner.kind == "Gateway" && owner.uid == desired.uid)
}

const FIELD_MANAGER: &str = "leno-gateway";
/// The interval between attempts while objects are missing.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// The interval after which all objects are applied again, to undo changes by other clients.
const REAPPLY_INTERVAL: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn desired_gateway() -> DesiredGateway {
        DesiredGateway {
            name: "shop/edge".parse().unwrap(),
            account: "leno-gateway-edge".to_owned(),
            uid: "u-1".to_owned(),
            ports: vec![80],
            labels: [].into(),
            annotations: [].into(),
            service_type: "ClusterIP",
            address: None,
            is_incomplete: false,
        }
    }

    #[test]
    fn only_objects_of_this_gateway_are_changed() {
        let desired = desired_gateway();
        let meta = |gateway: &str, uid: &str| {
            let owner = json!({"apiVersion": "v1", "kind": "Gateway", "name": "edge", "uid": uid});
            let meta = json!({"labels": {GATEWAY_PART: gateway}, "ownerReferences": [owner]});
            serde_json::from_value::<ObjectMeta>(meta).unwrap()
        };
        assert!(is_owned_by(&desired, &meta("edge", "u-1")));
        assert!(!is_owned_by(&desired, &meta("edge", "u-0")));
        assert!(!is_owned_by(&desired, &meta("other", "u-1")));
        assert!(!is_owned_by(
            &desired,
            &ObjectMeta { owner_references: None, ..meta("edge", "u-1") }
        ));
        assert!(!is_owned_by(&desired, &ObjectMeta::default()));
    }

    #[tokio::test]
    async fn a_routine_application_ends_the_backoff() {
        let (image, system) =
            ("leno:test".to_owned(), crate::api::NamespaceName::from_literal("leno-system"));
        let domain = leno_model::TrustDomain::new("cluster.local").unwrap();
        let settings = InjectionSettings::new(image, system, domain, "ROOTS".to_owned());
        let complete = desired_gateway();
        let incomplete = DesiredGateway { is_incomplete: true, ..desired_gateway() };
        let attempt = ProvisionAttempt {
            desired: complete.clone(),
            settings: settings.clone(),
            end_time: Instant::now(),
            retry_count: 4,
            error: None,
        };
        let next =
            |desired, has_failed| next_retry_count(Some(&attempt), desired, &settings, has_failed);
        assert_eq!(next(&complete, false), 0);
        assert_eq!(next(&complete, true), 5);
        assert_eq!(next(&incomplete, false), 5);
        let other = DesiredGateway { ports: vec![81], ..incomplete.clone() };
        assert_eq!(next(&other, true), 0);
        assert_eq!(next_retry_count(None, &incomplete, &settings, true), 0);
    }
}

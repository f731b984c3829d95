//! Checks the current user's permissions to install and upgrade, for `leno check`.

use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use kube::Client;
use kube::api::PostParams;
use serde_json::json;

use super::{ExamineResult, unreadable_finding};
use crate::api::ObjectApi;

/// Checks that the current user may create objects of all kinds that an installation contains.
pub(super) async fn check_permissions(client: &Client) -> ExamineResult {
    let reviews: ObjectApi<SelfSubjectAccessReview> = ObjectApi::for_all_namespaces(client.clone());
    let mut forbidden_resources = Vec::new();
    for (group, resource) in INSTALLED_RESOURCES {
        let review = serde_json::from_value(json!({
            "metadata": {},
            "spec": {"resourceAttributes": {"group": group, "resource": resource, "verb": "create"}},
        }));
        // The review is always valid.
        let Ok(review) = review else { continue };
        match reviews.create(&PostParams::default(), &review).await {
            Ok(response) if response.status.as_ref().is_some_and(|status| status.allowed) => {}
            Ok(_) => forbidden_resources.push(*resource),
            Err(error) => return unreadable_finding(&error),
        }
    }
    match forbidden_resources.as_slice() {
        [] => ExamineResult::Passed("granted".to_owned()),
        forbidden_resources => ExamineResult::warning(
            format!("not permitted to create {}", forbidden_resources.join(", ")),
            "get the permissions of cluster-admin before you install or upgrade",
        ),
    }
}

/// The API groups and resources of the objects that an installation creates.
const INSTALLED_RESOURCES: &[(&str, &str)] = &[
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("", "namespaces"),
    ("", "serviceaccounts"),
    ("", "services"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("apps", "deployments"),
    ("apps", "daemonsets"),
    ("policy", "poddisruptionbudgets"),
    ("networking.k8s.io", "networkpolicies"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
];

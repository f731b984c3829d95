//! Permissions of the current user to install and upgrade.

use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use kube::Client;
use kube::api::PostParams;
use serde_json::json;

use super::{ExamineResult, unreadable_finding};
use crate::api::ObjectApi;

pub(super) async fn check_permissions(client: &Client) -> ExamineResult {
    let reviews: ObjectApi<SelfSubjectAccessReview> = ObjectApi::for_all_namespaces(client.clone());
    let mut lacking = Vec::new();
    for (group, resource) in INSTALLED_KINDS {
        let review = serde_json::from_value(json!({
            "metadata": {},
            "spec": {"resourceAttributes": {"group": group, "resource": resource, "verb": "create"}},
        }));
        let Ok(review) = review else { continue };
        match reviews.create(&PostParams::default(), &review).await {
            Ok(response) if response.status.as_ref().is_some_and(|status| status.allowed) => {}
            Ok(_) => lacking.push(*resource),
            Err(error) => return unreadable_finding(&error),
        }
    }
    match lacking.as_slice() {
        [] => ExamineResult::Passed("granted".to_owned()),
        lacking => ExamineResult::warning(
            format!("not permitted to create {}", lacking.join(", ")),
            "get the permissions of cluster-admin before you install or upgrade",
        ),
    }
}

/// The kinds that an installation creates in addition to namespaces.
const INSTALLED_KINDS: &[(&str, &str)] = &[
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

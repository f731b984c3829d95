//! Checks, for `leno check`, that the control plane serves the Gateways of Leno's class.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DynamicObject, ListParams};
use kube::{Client, ResourceExt as _};
use leno_registry::ServedKind;
use serde_json::Value;

use super::{ExamineResult, summarize_names, unreadable_finding};
use crate::api::ApiError;
use crate::gateway::GATEWAY_KINDS;
use crate::install::InstalledOptions;
use crate::source::{DiscoveredKind, find_version};
use crate::status::StatusForm;
use crate::well_known::GATEWAY_CONTROLLER;

/// Reports the Gateways of Leno's class if gateways are disabled in the control plane.
pub(super) async fn check_gateways(client: &Client, control_plane: &Deployment) -> ExamineResult {
    if InstalledOptions::from_deployment(control_plane).gateways {
        return ExamineResult::Passed("the control plane serves them".to_owned());
    }
    match gateways_of_our_class(client).await {
        Ok(gateways) if gateways.is_empty() => ExamineResult::Passed("none to serve".to_owned()),
        Ok(gateways) => ExamineResult::warning(
            format!(
                "no control plane serves {}: the mesh is installed without gateways",
                summarize_names(&gateways)
            ),
            "delete them, or give them another class, or serve them with `leno install --gateways --apply`",
        ),
        Err(error) => unreadable_finding(&error),
    }
}

/// Returns the Gateways of Leno's class, as `NAMESPACE/NAME`.
async fn gateways_of_our_class(client: &Client) -> Result<Vec<String>, ApiError> {
    let (mut classes, mut gateways) = (BTreeSet::new(), Vec::new());
    // Classes precede Gateways in this list.
    for kind in GATEWAY_KINDS {
        let form = StatusForm::for_kind(kind);
        if !matches!(form, StatusForm::Class | StatusForm::Gateway) {
            continue;
        }
        for object in objects_of_kind(client, kind).await? {
            let string_at = |path: &str| object.data.pointer(path).and_then(Value::as_str);
            let name = object.name_any();
            if form == StatusForm::Class
                && string_at("/spec/controllerName") == Some(GATEWAY_CONTROLLER)
            {
                classes.insert(name);
            } else if string_at("/spec/gatewayClassName")
                .is_some_and(|class| classes.contains(class))
            {
                gateways.push(format!("{}/{name}", object.namespace().unwrap_or_default()));
            }
        }
    }
    Ok(gateways)
}

/// Returns the objects of a kind; an empty list if the cluster does not have the kind.
async fn objects_of_kind(
    client: &Client,
    kind: ServedKind,
) -> Result<Vec<DynamicObject>, ApiError> {
    let DiscoveredKind::Served(api_and_resource) = find_version(client, kind).await? else {
        return Ok(Vec::new());
    };
    Ok(api_and_resource.0.list(&ListParams::default()).await?.items)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::Server;

    /// Issue 27: the examination reported nothing about them.
    #[tokio::test]
    async fn gateways_of_our_class_without_a_control_plane_that_serves_them_are_reported() {
        let server = Server::start_server().await;
        let api = "/apis/gateway.networking.k8s.io/v1";
        let resource = |name: &str, kind: &str| json!({"name": name, "singularName": "", "namespaced": kind == "Gateway", "kind": kind, "verbs": []});
        let kinds = [resource("gatewayclasses", "GatewayClass"), resource("gateways", "Gateway")];
        let kinds = json!({"groupVersion": "gateway.networking.k8s.io/v1", "resources": kinds});
        let list = |items: Value| json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items});
        let class = |name: &str, controller: &str| json!({"metadata": {"name": name}, "spec": {"controllerName": controller}});
        let gateway = |name: &str, class: &str| json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {"gatewayClassName": class}});
        {
            let mut store = server.store.lock().unwrap();
            let classes = [class("mine", GATEWAY_CONTROLLER), class("other", "example.com/c")];
            let gateways = [gateway("a", "mine"), gateway("b", "other")];
            store.objects.insert(api.to_owned(), kinds);
            store.objects.insert(format!("{api}/gatewayclasses"), list(json!(classes)));
            store.objects.insert(format!("{api}/gateways"), list(json!(gateways)));
        }
        let control = |args: Value| -> Deployment {
            let container = json!({"name": "leno-control", "args": args});
            let spec = json!({"selector": {}, "template": {"spec": {"containers": [container]}}});
            serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
        };
        let finding = check_gateways(&server.client, &control(json!([]))).await.to_string();
        assert!(finding.starts_with("no control plane serves shop/a: the mesh"), "{finding}");
        let finding = check_gateways(&server.client, &control(json!(["--gateways"]))).await;
        assert!(matches!(finding, ExamineResult::Passed(_)), "{finding}");
        server.store.lock().unwrap().objects.insert(format!("{api}/gateways"), list(json!([])));
        let finding = check_gateways(&server.client, &control(json!([]))).await;
        assert!(matches!(finding, ExamineResult::Passed(_)), "{finding}");
    }
}

//! Parses `AdmissionReview` requests and builds their responses: the JSON of the webhook, without I/O.

use std::sync::LazyLock;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leno_listen::ConnectionSource;
use leno_telemetry::{LogLimits, PermittedLine};
use serde_json::{Value, json};

use crate::api::NamespaceName;
use crate::inject::{
    InjectionOutcome, InjectionSettings, InjectionTrigger, NamespaceMetadata, inject_sidecar,
    injection_patch,
};

/// An admission request.
#[derive(Debug)]
pub(super) struct AdmissionRequest {
    uid: String,
    /// The client that sent the request.
    source: ConnectionSource,
    /// The namespace of the object; `None` for cluster-scoped objects.
    namespace: Option<NamespaceName>,
    /// The pod to create; `null` for all other requests.
    object: Value,
}

/// The reason that a request cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidReview {
    #[error("the body is not an AdmissionReview of admission.k8s.io/v1")]
    NotAReview,
    #[error("request.namespace is not the name of a namespace: it has to be a DNS-1123 label")]
    Namespace,
}

impl AdmissionRequest {
    pub(super) fn parse(body: &[u8], source: ConnectionSource) -> Result<Self, InvalidReview> {
        let mut review: Value =
            serde_json::from_slice(body).map_err(|_| InvalidReview::NotAReview)?;
        if review["kind"] != "AdmissionReview" || review["apiVersion"] != ADMISSION_VERSION {
            return Err(InvalidReview::NotAReview);
        }
        let mut request = review["request"].take();
        let owned_string = |value: &Value| value.as_str().map(str::to_owned);
        let uid = owned_string(&request["uid"]).ok_or(InvalidReview::NotAReview)?;
        let is_pod = request["kind"]["kind"] == "Pod" && request["kind"]["group"] == "";
        let object = match is_pod && request["operation"] == "CREATE" {
            true => request["object"].take(),
            false => Value::Null,
        };
        let namespace = match &request["namespace"] {
            Value::Null if !object.is_object() => None,
            value => NamespaceName::new(value.as_str().unwrap_or_default())
                .map(Some)
                .map_err(|_| InvalidReview::Namespace)?,
        };
        Ok(Self { uid, source, namespace, object })
    }

    /// Returns true if the request creates a pod.
    pub(super) fn creates_pod(&self) -> bool {
        self.object.is_object()
    }

    /// Returns the namespace of the pod, if the request creates one.
    pub(super) fn namespace_of_pod(&self) -> Option<&NamespaceName> {
        self.namespace.as_ref().filter(|_| self.creates_pod())
    }

    /// Allows the pod, with a sidecar if it should have one.
    pub(super) fn inject_pod(
        &self,
        namespace: &NamespaceMetadata,
        settings: &InjectionSettings,
    ) -> Value {
        match inject_sidecar(&self.object, InjectionTrigger::Namespace(namespace), settings) {
            Ok(InjectionOutcome::Injected { pod, warnings }) => {
                if let Some(line) = self.permit_log_line() {
                    let suppressed = line.suppressed;
                    tracing::info!(
                        namespace = namespace.name,
                        pod = self.pod_name(),
                        suppressed,
                        "sidecar injected"
                    );
                }
                let patch = STANDARD.encode(injection_patch(&self.object, &pod).to_string());
                let mut response = json!({
                    "uid": self.uid,
                    "allowed": true,
                    "patchType": "JSONPatch",
                    "patch": patch,
                });
                if !warnings.is_empty() {
                    let listed_warnings = warnings
                        .iter()
                        .take(MAX_WARNINGS)
                        .map(|warning| format!("leno: {warning}"));
                    response["warnings"] = listed_warnings.collect();
                }
                wrap_response(response)
            }
            Ok(InjectionOutcome::Skipped(skip_reason)) => {
                tracing::debug!(
                    namespace = namespace.name,
                    pod = self.pod_name(),
                    reason = %skip_reason,
                    "no sidecar injected"
                );
                self.allow_unchanged()
            }
            Err(error) => self.reject_pod(BAD_REQUEST, &error.to_string()),
        }
    }

    /// Allows the object unchanged.
    pub(super) fn allow_unchanged(&self) -> Value {
        wrap_response(json!({"uid": self.uid, "allowed": true}))
    }

    /// Rejects the pod, with the same reason for the log and for the client.
    pub(super) fn reject_pod(&self, code: u16, reason: &str) -> Value {
        self.reject_with_message(code, reason, reason)
    }

    /// Rejects the pod for a confidential reason: `reason` goes to the log, and `message` to the client.
    pub(super) fn reject_with_message(&self, code: u16, message: &str, reason: &str) -> Value {
        let pod = self.pod_name();
        let namespace = self.namespace.as_deref().unwrap_or_default();
        if let Some(line) = self.permit_log_line() {
            let (reason, suppressed) = (truncate_bytes(reason, MAX_REASON_BYTES), line.suppressed);
            tracing::warn!(namespace, pod, reason, suppressed, "pod rejected");
        }
        let message = format!("leno: no sidecar for pod {namespace}/{pod}: {message}");
        let status = json!({"code": code, "message": message});
        wrap_response(json!({"uid": self.uid, "allowed": false, "status": status}))
    }

    /// Returns a permit to log one line; `None` beyond the log rate limit of the source. Any pod of the cluster
    /// may send reviews, with any namespace in them.
    fn permit_log_line(&self) -> Option<PermittedLine> {
        LOG_LIMITS.permit_line(self.source, Instant::now())
    }

    /// Returns the name or `generateName` of the pod.
    fn pod_name(&self) -> &str {
        let metadata = &self.object["metadata"];
        let name = metadata["name"].as_str().filter(|name| !name.is_empty());
        let name = name.or(metadata["generateName"].as_str()).unwrap_or_default();
        // The API server has not validated the length of the name yet.
        truncate_bytes(name, MAX_NAME_BYTES)
    }
}

/// Returns the beginning of a text, at most `max_bytes` long.
fn truncate_bytes(text: &str, max_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(max_bytes)).unwrap_or_default()
}

fn wrap_response(response: Value) -> Value {
    json!({"apiVersion": ADMISSION_VERSION, "kind": "AdmissionReview", "response": response})
}

/// The log rate limit of reviews, per source.
static LOG_LIMITS: LazyLock<LogLimits<ConnectionSource>> = LazyLock::new(LogLimits::default);

const ADMISSION_VERSION: &str = "admission.k8s.io/v1";
const BAD_REQUEST: u16 = 400;
/// The maximum number of warnings in a response. The API server limits their total size.
const MAX_WARNINGS: usize = 10;
/// The maximum length of a pod's name.
const MAX_NAME_BYTES: usize = 253;
/// The maximum length of a logged reason, which quotes the pod.
const MAX_REASON_BYTES: usize = 1000;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    use leno_model::TrustDomain;

    use super::*;

    fn test_settings() -> InjectionSettings {
        let trust_domain = TrustDomain::new("cluster.local").unwrap();
        let image = "leno:test".to_owned();
        InjectionSettings::new(
            image,
            NamespaceName::from_literal("leno-system"),
            trust_domain,
            String::new(),
        )
    }

    fn pod_review(operation: &str, annotations: &Value) -> Value {
        json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "u1",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "operation": operation,
                "namespace": "shop",
                "object": {
                    "metadata": {"generateName": "web-", "annotations": annotations},
                    "spec": {"containers": [{"name": "app"}]},
                },
            },
        })
    }

    fn response_to(review: &Value, label: &str) -> Value {
        let labels = BTreeMap::from([("leno.dev/injection".to_owned(), label.to_owned())]);
        let namespace =
            NamespaceMetadata { name: "shop".to_owned(), labels, ..NamespaceMetadata::default() };
        let review = parse_body(&review.to_string()).unwrap();
        match review.namespace_of_pod() {
            Some(_) => review.inject_pod(&namespace, &test_settings()),
            None => review.allow_unchanged(),
        }
    }

    fn parse_body(body: &str) -> Result<AdmissionRequest, InvalidReview> {
        AdmissionRequest::parse(body.as_bytes(), ConnectionSource::LOCAL)
    }

    #[test]
    fn log_lines_are_limited_by_source_and_not_by_namespace() {
        let line = |last: u8, namespace: &str| {
            let mut review = pod_review("CREATE", &json!({}));
            review["request"]["namespace"] = json!(namespace);
            let source = ConnectionSource::from(IpAddr::from([192, 0, 2, last]));
            AdmissionRequest::parse(review.to_string().as_bytes(), source)
                .unwrap()
                .permit_log_line()
        };
        let lines = (0..500).filter(|number| line(1, &format!("ns-{number}")).is_some()).count();
        assert!((1..100).contains(&lines), "{lines} lines");
        assert!(line(2, "shop").is_some());
    }

    #[test]
    fn a_pod_that_needs_a_sidecar_is_patched() {
        let review = pod_review("CREATE", &json!({}));
        let response = response_to(&review, "enabled");
        assert_eq!(response["response"]["uid"], "u1");
        assert_eq!(response["response"]["allowed"], true);
        let patch = STANDARD.decode(response["response"]["patch"].as_str().unwrap()).unwrap();
        let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
        let mut pod = review["request"]["object"].clone();
        json_patch::patch(&mut pod, &patch).unwrap();
        assert_eq!(pod["spec"]["initContainers"][1]["name"], "leno-proxy");
        assert_eq!(pod["metadata"]["labels"]["leno.dev/meshed"], "sidecar");
    }

    #[test]
    fn objects_that_need_no_change_are_allowed() {
        for (operation, label) in [("CREATE", "disabled"), ("UPDATE", "enabled")] {
            let response = response_to(&pod_review(operation, &json!({})), label);
            assert_eq!(response["response"], json!({"uid": "u1", "allowed": true}));
        }
    }

    #[test]
    fn an_invalid_annotation_is_reported_to_the_client() {
        let annotations = json!({"leno.dev/inbound-port-exclusion-list": "http"});
        let response = response_to(&pod_review("CREATE", &annotations), "enabled");
        assert_eq!(response["response"]["allowed"], false);
        expect_test::expect![[r#"
            "leno: no sidecar for pod shop/web-: pod: annotation `leno.dev/inbound-port-exclusion-list`: `http` is not a port; use numbers from 1 to 65535, such as `25, 5432`""#]]
        .assert_eq(&response["response"]["status"]["message"].to_string());
    }

    #[test]
    fn a_body_that_is_not_a_review_is_an_error() {
        for body in
            ["", "{}", r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1"}"#]
        {
            assert_eq!(parse_body(body).unwrap_err(), InvalidReview::NotAReview, "{body}");
        }
    }

    #[test]
    fn a_review_with_an_invalid_namespace_is_an_error() {
        let long = "a".repeat(64);
        for invalid in [
            json!("leno-system/secrets/leno-authority"),
            json!("a?watch=true"),
            json!("a#"),
            json!("a%2fb"),
            json!(".."),
            json!("a\0b"),
            json!("a.b"),
            json!("A"),
            json!(" a"),
            json!(""),
            json!(long),
            json!(7),
            json!(["a"]),
        ] {
            for operation in ["CREATE", "UPDATE"] {
                let mut review = pod_review(operation, &json!({}));
                review["request"]["namespace"] = invalid.clone();
                let result = parse_body(&review.to_string());
                assert_eq!(result.unwrap_err(), InvalidReview::Namespace, "{invalid}");
            }
        }
        // A pod has a namespace; other objects need not have one.
        let mut review = pod_review("CREATE", &json!({}));
        review["request"]["namespace"] = Value::Null;
        let result = parse_body(&review.to_string());
        assert_eq!(result.unwrap_err(), InvalidReview::Namespace);
        review["request"]["kind"]["kind"] = json!("Node");
        assert!(parse_body(&review.to_string()).unwrap().namespace_of_pod().is_none());
    }
}

//! Whether a cluster can have a mesh, and whether the one in it is well.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;

use super::apply::{lacking, try_injection};
use super::kinds::{crd_name, plurals};
use crate::failure::in_words;
use crate::inject::has_native_sidecars;
use crate::webhook::{INJECTOR, TrustState, trust_state};
use crate::words::{CONTROL, ROOTS_CONFIG_MAP};

/// What was looked at, and what was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examined {
    /// What was looked at.
    pub subject: &'static str,
    /// What was found.
    pub finding: Finding,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// It is well; with what is worth knowing.
    Well(String),
    /// It works, and not as well as it could.
    Odd(String),
    /// It does not work; with what to do.
    Wrong(String),
}

/// Looks at everything, one thing after another.
///
/// # Errors
/// When the API server is not there at all.
pub async fn examine(client: &Client, namespace: &str) -> Result<Vec<Examined>, kube::Error> {
    let mut all = Vec::new();
    let mut tell = |subject, finding| all.push(Examined { subject, finding });
    let version = client.apiserver_version().await?;
    tell("version of the API server", of_version(&version.major, &version.minor));
    tell("nodes", nodes(client).await);
    tell("clocks", clocks(client).await);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let found = deployments.get_opt(CONTROL).await;
    let Some(deployment) = found.as_ref().ok().and_then(Option::as_ref) else {
        tell("permissions to install", permissions(client).await);
        let finding = match found {
            Ok(_) => Finding::Odd(format!(
                "there is none in {namespace}: `leno install --apply` installs it"
            )),
            Err(error) => unreadable(&error),
        };
        tell("control plane", finding);
        return Ok(all);
    };
    tell(
        "control plane",
        match lacking(deployment) {
            None => Finding::Well("all pods are there".to_owned()),
            Some(lacks) => Finding::Wrong(format!(
                "{lacks}: see `kubectl -n {namespace} describe pods` and their logs"
            )),
        },
    );
    tell("kinds", kinds(client).await);
    tell("roots of the mesh", roots(client, namespace).await);
    tell("webhook", webhook(client).await);
    Ok(all)
}

fn of_version(major: &str, minor: &str) -> Finding {
    let shown = format!("{major}.{minor}");
    let number: u32 = minor.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
    match has_native_sidecars(major, minor) {
        true => Finding::Well(format!("{shown}, with native sidecars")),
        false if number < MINOR_MIN => {
            Finding::Wrong(format!("{shown}: Leno needs 1.{MINOR_MIN} or newer"))
        }
        false => Finding::Odd(format!(
            "{shown} has no native sidecars: Jobs do not end by themselves, and init containers go \
             around the mesh; 1.29 and newer have them"
        )),
    }
}

/// Kubelets may be older than the API server.
async fn nodes(client: &Client) -> Finding {
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = match nodes.list(&ListParams::default().limit(NODES_MAX)).await {
        Ok(nodes) => nodes.items,
        Err(error) => return unreadable(&error),
    };
    let versions = nodes.iter().filter_map(|node| {
        let version = &node.status.as_ref()?.node_info.as_ref()?.kubelet_version;
        Some((node.metadata.name.as_deref().unwrap_or_default(), version.trim_start_matches('v')))
    });
    let old: Vec<String> = versions
        .filter(|(_, version)| {
            let mut parts = version.split('.');
            !has_native_sidecars(parts.next().unwrap_or(""), parts.next().unwrap_or(""))
        })
        .map(|(name, version)| format!("{name} ({version})"))
        .collect();
    match old.as_slice() {
        [] => Finding::Well(format!("{}, all with native sidecars", nodes.len())),
        old => Finding::Odd(format!("no native sidecars on {}", old.join(", "))),
    }
}

/// Certificates and tokens are valid for a time.
async fn clocks(client: &Client) -> Finding {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/version", "verb": "get"}},
    });
    let request = http::Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        .header("content-type", "application/json")
        .body(kube::client::Body::from(review.to_string().into_bytes()));
    let Ok(request) = request else { return Finding::Odd("cannot be compared".to_owned()) };
    let answer = match client.send(request).await {
        Ok(answer) => answer,
        Err(error) => return unreadable(&error),
    };
    let date = answer.headers().get("date").and_then(|date| date.to_str().ok());
    let theirs = date.and_then(seconds_of_date);
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    match theirs {
        None => Finding::Odd("the API server tells no time".to_owned()),
        Some(theirs) => skew(ours.abs_diff(theirs)),
    }
}

fn skew(between: Duration) -> Finding {
    match between {
        skew if skew <= SKEW_MAX => {
            Finding::Well("of this machine and the API server agree".to_owned())
        }
        skew => Finding::Wrong(format!(
            "the API server's and this machine's are {} s apart: certificates may not be valid yet or \
             any more; set them by NTP",
            skew.as_secs()
        )),
    }
}

/// RFC 9110 §5.6.7: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn seconds_of_date(text: &str) -> Option<Duration> {
    let format = time::format_description::parse_borrowed::<2>(
        "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT",
    );
    let date = time::PrimitiveDateTime::parse(text, &format.ok()?).ok()?;
    u64::try_from(date.assume_utc().unix_timestamp()).ok().map(Duration::from_secs)
}

async fn permissions(client: &Client) -> Finding {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut lacking = Vec::new();
    for (group, resource) in INSTALLED {
        let review = serde_json::from_value(json!({
            "metadata": {},
            "spec": {"resourceAttributes": {"group": group, "resource": resource, "verb": "create"}},
        }));
        let Ok(review) = review else { continue };
        match reviews.create(&PostParams::default(), &review).await {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {}
            Ok(_) => lacking.push(*resource),
            Err(error) => return unreadable(&error),
        }
    }
    match lacking.as_slice() {
        [] => Finding::Well("you have them".to_owned()),
        lacking => Finding::Wrong(format!(
            "you may not create {}: ask for the rights of cluster-admin",
            lacking.join(", ")
        )),
    }
}

async fn kinds(client: &Client) -> Finding {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut absent = Vec::new();
    for name in plurals().map(crd_name) {
        match definitions.get_opt(&name).await {
            Ok(Some(_)) => {}
            Ok(None) => absent.push(name),
            Err(error) => return unreadable(&error),
        }
    }
    match absent.as_slice() {
        [] => Finding::Well("all of leno.dev are known".to_owned()),
        absent => Finding::Wrong(format!(
            "{} are not known: run `leno install --apply` again",
            absent.join(", ")
        )),
    }
}

async fn roots(client: &Client, namespace: &str) -> Finding {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let text = match maps.get_opt(ROOTS_CONFIG_MAP).await {
        Ok(map) => map.and_then(|map| map.data).and_then(|mut data| data.remove("roots.pem")),
        Err(error) => return unreadable(&error),
    };
    let Some(text) = text else {
        return Finding::Wrong(format!(
            "there is no ConfigMap {namespace}/{ROOTS_CONFIG_MAP}: see the log of the control plane"
        ));
    };
    let now = SystemTime::now();
    let ends: Vec<u64> = CertificateDer::pem_slice_iter(text.as_bytes())
        .filter_map(|der| days(&der.ok()?, now))
        .collect();
    match ends.iter().max() {
        None => Finding::Wrong("none is valid: see `leno root --help`".to_owned()),
        Some(days) if *days < DAYS_MIN => Finding::Odd(format!(
            "the last one ends in {days} days: replace it, see `leno root --help`"
        )),
        Some(days) => Finding::Well(format!("{}, valid for {days} days", ends.len())),
    }
}

/// How many days a certificate is still valid, if it is.
fn days(der: &CertificateDer<'_>, now: SystemTime) -> Option<u64> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let end = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    let left = (UNIX_EPOCH + Duration::from_secs(end)).duration_since(now).ok()?;
    Some(left.as_secs() / 86_400)
}

async fn webhook(client: &Client) -> Finding {
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let found = match configurations.get_opt(INJECTOR).await {
        Ok(found) => found,
        Err(error) => return unreadable(&error),
    };
    match trust_state(found.as_ref()) {
        TrustState::Absent => Finding::Wrong(format!(
            "there is no {INJECTOR}, so that pods get no sidecars: run `leno install --apply` again"
        )),
        TrustState::Untrusted => Finding::Wrong(
            "the API server does not know whom to trust: see the log of the control plane"
                .to_owned(),
        ),
        TrustState::Trusted => match try_injection(client).await {
            Ok(()) => Finding::Well("pods get sidecars".to_owned()),
            Err(why) => Finding::Wrong(format!(
                "pods that ask for sidecars are not created: {why}; see the log of the control plane"
            )),
        },
    }
}

fn unreadable(error: &kube::Error) -> Finding {
    Finding::Odd(format!("cannot be looked at: {}", in_words(error)))
}

/// What an installation creates beyond namespaces.
const INSTALLED: &[(&str, &str)] = &[
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("", "namespaces"),
    ("", "serviceaccounts"),
    ("", "services"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("apps", "deployments"),
    ("policy", "poddisruptionbudgets"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
];
/// Server-side apply, rules in schemas and projected tokens are all there.
const MINOR_MIN: u32 = 25;
const NODES_MAX: u32 = 500;
const DAYS_MIN: u64 = 60;
/// Half of what certificates allow for.
const SKEW_MAX: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_apart() {
        let verdict = |minor: &str| match of_version("1", minor) {
            Finding::Well(_) => "well",
            Finding::Odd(_) => "odd",
            Finding::Wrong(_) => "wrong",
        };
        let found = ["34+", "29", "28", "24"].map(verdict);
        assert_eq!(found, ["well", "well", "odd", "wrong"]);
    }

    #[test]
    fn dates_of_http_are_read() {
        let read = seconds_of_date("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(read, Some(Duration::from_secs(784_111_777)));
        assert_eq!(seconds_of_date("yesterday"), None);
    }

    #[test]
    fn clocks_that_are_far_apart_are_told() {
        assert!(matches!(skew(Duration::from_secs(5)), Finding::Well(_)));
        assert!(matches!(skew(Duration::from_secs(500)), Finding::Wrong(_)));
    }
}

//! How long what the mesh is built on stays valid.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::{Finding, unreadable};
use crate::api::{NamespaceName, ObjectApi};
use crate::words::{AUTHORITY_NAME, AUTHORITY_SECRET, ROOTS_CONFIG_MAP, ROOTS_NAME};

/// The certificate that signs those of workloads.
pub(super) async fn issuer(client: &Client, namespace: &NamespaceName, now: SystemTime) -> Finding {
    let secrets: ObjectApi<Secret> = ObjectApi::namespaced(client.clone(), namespace);
    let found = match secrets.get_opt(&AUTHORITY_NAME).await {
        Ok(found) => found,
        Err(error) => return unreadable(&error),
    };
    let data = found.and_then(|secret| secret.data).unwrap_or_default();
    let Some((key, certificates)) = SIGNERS.iter().find_map(|key| Some((*key, data.get(*key)?)))
    else {
        return Finding::wrong(
            format!("there is no Secret {namespace}/{AUTHORITY_SECRET} with a certificate"),
            "see the log of the control plane",
        );
    };
    let remedy = match key {
        INTERMEDIATE => "let whoever made it renew it, as cert-manager does",
        _ => "replace the root: see `leno root --help`",
    };
    // The first is the one that signs.
    match ends(&certificates.0, now).first() {
        Some(Some(days)) if *days < DAYS_MIN_SIGNER && key == INTERMEDIATE => {
            Finding::odd(format!("the intermediate authority ends in {days} days"), remedy)
        }
        Some(Some(days)) if *days < DAYS_MIN && key != INTERMEDIATE => {
            Finding::odd(format!("the authority ends in {days} days"), remedy)
        }
        Some(Some(days)) => Finding::Well(format!("valid for {days} days")),
        Some(None) | None => {
            Finding::wrong("its certificate is not valid: no sidecar gets one", remedy)
        }
    }
}

/// What members of the mesh trust.
pub(super) async fn roots(client: &Client, namespace: &NamespaceName, now: SystemTime) -> Finding {
    let maps: ObjectApi<ConfigMap> = ObjectApi::namespaced(client.clone(), namespace);
    let text = match maps.get_opt(&ROOTS_NAME).await {
        Ok(map) => map.and_then(|map| map.data).and_then(|mut data| data.remove("roots.pem")),
        Err(error) => return unreadable(&error),
    };
    let Some(text) = text else {
        return Finding::wrong(
            format!("there is no ConfigMap {namespace}/{ROOTS_CONFIG_MAP} with roots"),
            "see the log of the control plane",
        );
    };
    let remedy = "replace the root: see `leno root --help`";
    let ends: Vec<u64> = ends(text.as_bytes(), now).into_iter().flatten().collect();
    match ends.iter().max() {
        None => Finding::wrong("none is valid", remedy),
        Some(days) if *days < DAYS_MIN => {
            Finding::odd(format!("the last one ends in {days} days"), remedy)
        }
        Some(days) => Finding::Well(format!("{}, valid for {days} days", ends.len())),
    }
}

/// What the API server verifies the webhook by, which answers it.
pub(super) fn bundle(
    configuration: Option<&MutatingWebhookConfiguration>,
    now: SystemTime,
) -> Finding {
    let webhooks = configuration.and_then(|it| it.webhooks.as_ref()).into_iter().flatten();
    let bundles = webhooks.filter_map(|webhook| webhook.client_config.ca_bundle.as_ref());
    // Each lasts as long as the last of its certificates.
    let ends = bundles.map(|bundle| ends(&bundle.0, now).into_iter().flatten().max());
    match ends.min() {
        Some(Some(days)) if days < DAYS_MIN => Finding::odd(
            format!("pods get sidecars, and what the API server trusts ends in {days} days"),
            "see the log of the control plane, which replaces it a year before",
        ),
        Some(Some(days)) => Finding::Well(format!(
            "pods get sidecars; what the API server trusts is valid for {days} days"
        )),
        Some(None) | None => Finding::wrong(
            "what the API server trusts is not valid",
            "see the log of the control plane",
        ),
    }
}

/// For how many days each of some certificates is still valid, if it is.
fn ends(pem: &[u8], now: SystemTime) -> Vec<Option<u64>> {
    let certificates = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
    certificates.map(|der| days(&der, now)).collect()
}

fn days(der: &CertificateDer<'_>, now: SystemTime) -> Option<u64> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let end = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    let left = (UNIX_EPOCH + Duration::from_secs(end)).duration_since(now).ok()?;
    Some(left.as_secs() / 86_400)
}

/// The key of a certificate that somebody else made, before those of ours.
const SIGNERS: [&str; 2] = [INTERMEDIATE, "ca.pem"];
const INTERMEDIATE: &str = "tls.crt";
const DAYS_MIN: u64 = 60;
/// An intermediate authority that is renewed by a machine lives a short time.
const DAYS_MIN_SIGNER: u64 = 2;

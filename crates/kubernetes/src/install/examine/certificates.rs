//! Checks for expiring certificates, for `leno check`: the signing certificate, the trust roots, and the
//! webhook's CA bundle.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::{ExamineResult, unreadable_finding};
use crate::api::{NamespaceName, ObjectApi};
use crate::well_known::{AUTHORITY_NAME, AUTHORITY_SECRET, ROOTS_CONFIG_MAP, ROOTS_NAME};

/// Checks the signing certificate of the mesh's authority, which issues workload certificates.
pub(super) async fn check_signing_certificate(
    client: &Client,
    namespace: &NamespaceName,
    now: SystemTime,
) -> ExamineResult {
    let secrets: ObjectApi<Secret> = ObjectApi::for_namespace(client.clone(), namespace);
    let secret = match secrets.get_opt(&AUTHORITY_NAME).await {
        Ok(secret) => secret,
        Err(error) => return unreadable_finding(&error),
    };
    let data = secret.and_then(|secret| secret.data).unwrap_or_default();
    let Some((key, certificates)) =
        SIGNING_CERTIFICATE_KEYS.iter().find_map(|key| Some((*key, data.get(*key)?)))
    else {
        return ExamineResult::failure(
            format!("there is no Secret {namespace}/{AUTHORITY_SECRET} with a certificate"),
            "see the log of the control plane",
        );
    };
    let hint = match key {
        INTERMEDIATE_KEY => "renew it with its issuer, such as cert-manager",
        _ => "replace the root: see `leno ca --help`",
    };
    // The first certificate is the signing one.
    match remaining_days(&certificates.0, now).first() {
        Some(Some(days)) if *days < MIN_INTERMEDIATE_DAYS && key == INTERMEDIATE_KEY => {
            ExamineResult::warning(format!("the intermediate CA expires in {days} days"), hint)
        }
        Some(Some(days)) if *days < MIN_REMAINING_DAYS && key != INTERMEDIATE_KEY => {
            ExamineResult::warning(format!("the CA expires in {days} days"), hint)
        }
        Some(Some(days)) => ExamineResult::Passed(format!("valid for {days} days")),
        Some(None) | None => ExamineResult::failure(
            "its certificate is not valid: sidecars get no certificates",
            hint,
        ),
    }
}

/// Checks the trust roots of mesh members.
pub(super) async fn check_roots(
    client: &Client,
    namespace: &NamespaceName,
    now: SystemTime,
) -> ExamineResult {
    let config_maps: ObjectApi<ConfigMap> = ObjectApi::for_namespace(client.clone(), namespace);
    let roots_pem = match config_maps.get_opt(&ROOTS_NAME).await {
        Ok(config_map) => config_map
            .and_then(|config_map| config_map.data)
            .and_then(|mut data| data.remove("roots.pem")),
        Err(error) => return unreadable_finding(&error),
    };
    let Some(roots_pem) = roots_pem else {
        return ExamineResult::failure(
            format!("there is no ConfigMap {namespace}/{ROOTS_CONFIG_MAP} with roots"),
            "see the log of the control plane",
        );
    };
    let hint = "replace the root: see `leno ca --help`";
    let valid_days: Vec<u64> =
        remaining_days(roots_pem.as_bytes(), now).into_iter().flatten().collect();
    match valid_days.iter().max() {
        None => ExamineResult::failure("none is valid", hint),
        Some(days) if *days < MIN_REMAINING_DAYS => {
            ExamineResult::warning(format!("the last valid root expires in {days} days"), hint)
        }
        Some(days) => ExamineResult::Passed(format!("{}, valid for {days} days", valid_days.len())),
    }
}

/// Checks the CA bundle by which the API server verifies the webhook.
pub(super) fn check_bundle(
    configuration: Option<&MutatingWebhookConfiguration>,
    now: SystemTime,
) -> ExamineResult {
    let webhooks = configuration
        .and_then(|configuration| configuration.webhooks.as_ref())
        .into_iter()
        .flatten();
    let bundles = webhooks.filter_map(|webhook| webhook.client_config.ca_bundle.as_ref());
    // A bundle is valid as long as any of its certificates.
    let valid_days =
        bundles.map(|bundle| remaining_days(&bundle.0, now).into_iter().flatten().max());
    match valid_days.min() {
        Some(Some(days)) if days < MIN_REMAINING_DAYS => ExamineResult::warning(
            format!("pods get sidecars; the webhook's CA bundle expires in {days} days"),
            "see the log of the control plane, which renews it a year before expiry",
        ),
        Some(Some(days)) => ExamineResult::Passed(format!(
            "pods get sidecars; the webhook's CA bundle is valid for {days} days"
        )),
        Some(None) | None => ExamineResult::failure(
            "the webhook's CA bundle is not valid",
            "see the log of the control plane",
        ),
    }
}

/// Returns the remaining days of each certificate; `None` for an expired certificate. Invalid PEM is skipped.
fn remaining_days(pem: &[u8], now: SystemTime) -> Vec<Option<u64>> {
    let certificates = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
    certificates.map(|der| days_until_expiry(&der, now)).collect()
}

fn days_until_expiry(der: &CertificateDer<'_>, now: SystemTime) -> Option<u64> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let expiry_seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    let remaining = (UNIX_EPOCH + Duration::from_secs(expiry_seconds)).duration_since(now).ok()?;
    Some(remaining.as_secs() / 86_400)
}

/// The keys of the signing certificate in the Secret: an intermediate certificate takes precedence over the
/// built-in CA's certificate.
const SIGNING_CERTIFICATE_KEYS: [&str; 2] = [INTERMEDIATE_KEY, "ca.pem"];
/// The key of an intermediate certificate, which an external CA such as cert-manager has issued.
const INTERMEDIATE_KEY: &str = "tls.crt";
/// The minimum remaining lifetime without a warning, in days.
const MIN_REMAINING_DAYS: u64 = 60;
/// The minimum remaining lifetime without a warning, in days, of an intermediate certificate, which its issuer
/// renews automatically.
const MIN_INTERMEDIATE_DAYS: u64 = 2;

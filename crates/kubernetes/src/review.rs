//! Verifies service account tokens with the API server (`TokenReview`). Sidecars join the mesh with such
//! tokens.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::Client;
use leno_model::{ServiceAccount, Uid, WorkloadName};
use leno_telemetry::LogLimit;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::api::{ApiError, create_secret_object, escape_text};
use crate::well_known::TOKEN_AUDIENCE;

/// A client that verifies tokens with the API server.
pub struct TokenReviewer {
    client: Client,
    /// The issuers of tokens that the API server has accepted.
    accepted_issuers: Mutex<BTreeSet<String>>,
    /// The limit of concurrent reviews of tokens from other issuers.
    unknown_issuer_reviews: Semaphore,
}

/// The pod to which a token is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodHolder {
    /// The name of the workload in the mesh.
    pub workload: WorkloadName,
    /// The service account of the pod.
    pub account: ServiceAccount,
    /// The UID of the pod, if the review contains it.
    pub uid: Option<Uid>,
}

/// The reason that the pod of a token is unknown. No error contains the token.
#[derive(Debug, thiserror::Error)]
pub enum TokenReviewError {
    /// The token is invalid. The reason may be sent to the client.
    #[error("{0}")]
    Rejected(String),
    /// The API server does not respond, or denies the request.
    #[error(
        "the API server does not review tokens: {0}; the control plane's account needs to create \
         tokenreviews.authentication.k8s.io"
    )]
    Api(#[source] ApiError),
    /// Too many tokens of unknown issuers are being reviewed.
    #[error(
        "too many reviews of tokens from issuers that the API server has not confirmed: try again"
    )]
    TooManyReviews,
    /// The response is not a review.
    #[error("the API server's response to a review cannot be parsed")]
    Malformed,
}

impl TokenReviewer {
    /// Creates a reviewer that uses the permissions of this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            accepted_issuers: Mutex::default(),
            unknown_issuer_reviews: Semaphore::new(MAX_UNKNOWN_ISSUER_REVIEWS),
        }
    }

    /// Returns the pod that a token claims, without verification.
    ///
    /// # Errors
    /// [`TokenReviewError::Rejected`] when the API server could not accept the token: wrong audience, not bound
    /// to a pod, or expired.
    pub fn claimed_pod(&self, token: &str, now: SystemTime) -> Result<PodHolder, TokenReviewError> {
        Ok(parse_claims(token, now)?.holder)
    }

    /// Verifies a token and returns its pod.
    ///
    /// # Errors
    /// When the token is rejected, too many reviews are in progress, or the API server does not respond.
    pub async fn review_token(&self, token: &str) -> Result<PodHolder, TokenReviewError> {
        // Unauthenticated clients must not be able to overload the API server with arbitrary tokens.
        let TokenClaims { issuer, .. } = parse_claims(token, SystemTime::now())?;
        let _permit = match self.is_known_issuer(&issuer) {
            true => None,
            false => Some(
                self.unknown_issuer_reviews
                    .try_acquire()
                    .map_err(|_| TokenReviewError::TooManyReviews)?,
            ),
        };
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: Some(vec![TOKEN_AUDIENCE.to_owned()]),
            },
            ..TokenReview::default()
        };
        let response =
            create_secret_object(&self.client, &review).await.map_err(|error| match error {
                ApiError::Undecodable(_) => TokenReviewError::Malformed,
                error => TokenReviewError::Api(error),
            })?;
        let holder = parse_review(response.status.unwrap_or_default())?;
        self.add_accepted_issuer(issuer);
        Ok(holder)
    }

    /// Returns true if the API server has accepted a token of this issuer, or has not accepted any token yet.
    fn is_known_issuer(&self, issuer: &str) -> bool {
        let issuers = self.accepted_issuers.lock().unwrap_or_else(PoisonError::into_inner);
        issuers.is_empty() || issuers.contains(issuer)
    }

    fn add_accepted_issuer(&self, issuer: String) {
        let mut issuers = self.accepted_issuers.lock().unwrap_or_else(PoisonError::into_inner);
        if issuers.len() < MAX_ISSUERS {
            issuers.insert(issuer);
        }
    }
}

impl fmt::Debug for TokenReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenReviewer")
    }
}

/// The claims of a token: its pod and its issuer, not verified.
#[derive(Debug)]
struct TokenClaims {
    holder: PodHolder,
    issuer: String,
}

/// Parses the claims of a token for our audience that is bound to a pod, as projected service account tokens
/// are (RFC 7519 section 3, RFC 7515 section 7.1). Nothing is verified.
fn parse_claims(token: &str, now: SystemTime) -> Result<TokenClaims, TokenReviewError> {
    let rejection = |reason: &str| TokenReviewError::Rejected(reason.to_owned());
    let mut token_parts = token.split('.');
    let payload =
        match (token_parts.next(), token_parts.next(), token_parts.next(), token_parts.next()) {
            (Some(_), Some(payload), Some(_), None) => URL_SAFE_NO_PAD.decode(payload).ok(),
            _ => None,
        };
    let parsed_claims: Option<ServiceAccountClaims> =
        payload.and_then(|payload| serde_json::from_slice(&payload).ok());
    let leno_claims = parsed_claims.filter(|claims| {
        // The claim is one audience or a list of audiences.
        let aud = claims.aud.as_array().map_or(std::slice::from_ref(&claims.aud), Vec::as_slice);
        aud.iter().any(|audience| audience == TOKEN_AUDIENCE)
            && claims.sub.starts_with(ACCOUNT_PREFIX)
    });
    let claims = leno_claims.ok_or_else(|| {
        TokenReviewError::Rejected(format!(
            "it is not a service account token for the audience `{TOKEN_AUDIENCE}`"
        ))
    })?;
    let unix_time = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    if claims.exp.saturating_add(LEEWAY.as_secs()) <= unix_time.as_secs() {
        return Err(rejection("the token has expired or has no expiration time"));
    }
    let BoundObject { namespace, pod } = claims.kubernetes;
    let subject =
        claims.sub.strip_prefix(ACCOUNT_PREFIX).and_then(|subject| subject.split_once(':'));
    let account_name = subject
        .filter(|(account_namespace, _)| *account_namespace == namespace)
        .map(|(_, name)| name);
    let (Some(account_name), Some(pod)) = (account_name, pod) else {
        return Err(rejection(UNBOUND_TOKEN));
    };
    let workload = WorkloadName::new(&namespace, &pod.name);
    let account = ServiceAccount::new(&namespace, account_name);
    let (Ok(workload), Ok(account)) = (workload, account) else {
        return Err(rejection(UNBOUND_TOKEN));
    };
    let holder = PodHolder { workload, account, uid: Uid::new(&pod.uid).ok() };
    Ok(TokenClaims { holder, issuer: claims.iss })
}

/// The relevant claims of a service account token.
#[derive(Deserialize)]
struct ServiceAccountClaims {
    #[serde(default)]
    aud: Value,
    #[serde(default)]
    sub: String,
    #[serde(default)]
    iss: String,
    #[serde(default)]
    exp: u64,
    #[serde(default, rename = "kubernetes.io")]
    kubernetes: BoundObject,
}

/// The object to which a token is bound.
#[derive(Deserialize, Default)]
#[serde(default)]
struct BoundObject {
    namespace: String,
    pod: Option<BoundPod>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct BoundPod {
    name: String,
    uid: String,
}

/// Returns the pod from the result of a review, or the reason that the token is rejected.
fn parse_review(status: TokenReviewStatus) -> Result<PodHolder, TokenReviewError> {
    let rejection = |reason: String| Err(TokenReviewError::Rejected(reason));
    if status.authenticated != Some(true) {
        // Joining clients have no identity yet: the reason goes to the log, under one shared rate limit.
        let line = INVALID_TOKEN_LOG_LIMIT
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .permit_line(Instant::now());
        if let Some(suppressed) = line.map(|line| line.suppressed) {
            let reason = escape_text(&status.error.unwrap_or_default());
            tracing::info!(reason, suppressed, "the API server does not recognize a join token");
        }
        return rejection(format!(
            "the API server does not recognize the token: it has expired, its pod is gone, or it \
             was issued for another audience than `{TOKEN_AUDIENCE}`"
        ));
    }
    // An API server without audience support accepts any token.
    if !status.audiences.unwrap_or_default().iter().any(|aud| aud == TOKEN_AUDIENCE) {
        return rejection(format!("the token was not issued for the audience `{TOKEN_AUDIENCE}`"));
    }
    let user = status.user.unwrap_or_default();
    let subject = user.username.as_deref().and_then(|name| name.strip_prefix(ACCOUNT_PREFIX));
    let Some((namespace, account_name)) = subject.and_then(|subject| subject.split_once(':'))
    else {
        return rejection("the token is not a service account token".to_owned());
    };
    let mut extra = user.extra.unwrap_or_default();
    let pods = extra.remove(POD_NAME_FIELD).unwrap_or_default();
    let [pod] = pods.as_slice() else {
        return rejection(UNBOUND_TOKEN.to_owned());
    };
    let uids = extra.remove(POD_UID_FIELD).unwrap_or_default();
    let uid = uids.first().and_then(|uid| Uid::new(uid).ok());
    let parsed_names =
        (WorkloadName::new(namespace, pod), ServiceAccount::new(namespace, account_name));
    match parsed_names {
        (Ok(workload), Ok(account)) => Ok(PodHolder { workload, account, uid }),
        (Err(error), _) | (_, Err(error)) => rejection(error.to_string()),
    }
}

/// The rate limit of log lines about invalid join tokens, shared because clients without a certificate are
/// indistinguishable.
static INVALID_TOKEN_LOG_LIMIT: Mutex<LogLimit> = Mutex::new(LogLimit::new());

/// The prefix of service accounts in user names.
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// The extra field with the name of the pod to which a token is bound.
const POD_NAME_FIELD: &str = "authentication.kubernetes.io/pod-name";
/// The extra field with the UID of the pod to which a token is bound.
const POD_UID_FIELD: &str = "authentication.kubernetes.io/pod-uid";
/// The error for a token that is not bound to a pod.
const UNBOUND_TOKEN: &str = "the token is not bound to a pod: use a token from a projected volume of the \
                       pod, not from a Secret and not created manually";
/// The tolerated clock skew between the API server and this control plane.
const LEEWAY: Duration = Duration::from_secs(300);
/// The maximum number of remembered issuers: API servers have one, and a second one during a migration.
const MAX_ISSUERS: usize = 8;
/// The maximum number of concurrent reviews for unknown issuers.
const MAX_UNKNOWN_ISSUER_REVIEWS: usize = 2;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check_status(status: Value) -> Result<PodHolder, String> {
        let status = serde_json::from_value(status).unwrap();
        parse_review(status).map_err(|error| error.to_string())
    }

    /// A response of an API server, edited.
    fn review_response(edit: impl FnOnce(&mut Value)) -> Value {
        let mut status = json!({
            "authenticated": true,
            "audiences": ["leno"],
            "user": {
                "username": "system:serviceaccount:shop:cart",
                "uid": "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:shop"],
                "extra": {
                    "authentication.kubernetes.io/pod-name": ["cart-7d4b9-x2x"],
                    "authentication.kubernetes.io/pod-uid": ["a"],
                    "authentication.kubernetes.io/node-name": ["one"]
                }
            }
        });
        edit(&mut status);
        status
    }

    #[test]
    fn only_tokens_for_leno_and_a_pod_are_reviewed() {
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let valid = json!({
            "aud": ["leno"], "exp": 1_800_000_600, "iss": "https://kubernetes.default.svc",
            "sub": "system:serviceaccount:shop:cart",
            "kubernetes.io": {
                "namespace": "shop", "pod": {"name": "cart-7d4b9-x2x", "uid": "a-b"},
                "serviceaccount": {"name": "cart", "uid": "c"},
            },
        });
        let encode =
            |claims: &Value| format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let with_claim = |pointer: &str, value: Value| {
            let mut claims = valid.clone();
            *claims.pointer_mut(pointer).unwrap() = value;
            encode(&claims)
        };
        for token in [
            encode(&valid),
            with_claim("/aud", json!("leno")),
            with_claim("/exp", json!(1_799_999_800)),
        ] {
            let TokenClaims { holder, issuer } = parse_claims(&token, now).unwrap();
            assert_eq!(holder.workload.to_string(), "shop/cart-7d4b9-x2x");
            assert_eq!(
                (holder.account.to_string().as_str(), holder.uid),
                ("shop/cart", Uid::new("a-b").ok())
            );
            assert_eq!(issuer, "https://kubernetes.default.svc");
        }
        for (token, expected) in [
            (with_claim("/aud", json!("other")), "audience `leno`"),
            (with_claim("/sub", json!("somebody")), "audience `leno`"),
            (with_claim("/aud", Value::Null), "audience `leno`"),
            (encode(&json!([])), "audience `leno`"),
            ("e30.%.c2ln".to_owned(), "audience `leno`"),
            (format!("{}.more", encode(&valid)), "audience `leno`"),
            (String::new(), "audience `leno`"),
            ("a".repeat(10_000), "audience `leno`"),
            (with_claim("/exp", json!(1_799_999_700)), "has expired"),
            (with_claim("/exp", json!(0)), "has expired"),
            (with_claim("/sub", json!("system:serviceaccount:other:cart")), "not bound to a pod"),
            (with_claim("/kubernetes.io", json!({})), "not bound to a pod"),
            (with_claim("/kubernetes.io/pod/name", json!("a/b")), "not bound to a pod"),
        ] {
            let error = parse_claims(&token, now).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("e30"), "{error}");
        }
    }

    #[test]
    fn the_holder_is_the_pod_in_the_namespace_of_its_account() {
        let holder = check_status(review_response(|_| {})).unwrap();
        assert_eq!(holder.workload.to_string(), "shop/cart-7d4b9-x2x");
        assert_eq!(holder.account.to_string(), "shop/cart");
        assert_eq!(holder.uid, Uid::new("a").ok());
    }

    #[test]
    fn a_review_of_another_token_is_rejected_with_a_reason() {
        let rejected = |edit: &dyn Fn(&mut Value)| check_status(review_response(edit)).unwrap_err();
        let pod = "/user/extra/authentication.kubernetes.io~1pod-name";
        for (rejection, expected) in [
            (
                rejected(&|status| status["authenticated"] = json!(false)),
                "does not recognize the token",
            ),
            (rejected(&|status| *status = json!({})), "does not recognize the token"),
            (
                rejected(&|status| *status = json!({"error": SERVER_ERROR})),
                "does not recognize the token",
            ),
            (rejected(&|status| status["audiences"] = json!(["other"])), "audience `leno`"),
            (rejected(&|status| status["audiences"] = Value::Null), "audience `leno`"),
            (
                rejected(&|status| status["user"]["username"] = json!("system:node:one")),
                "not a service account token",
            ),
            (rejected(&|status| status["user"]["extra"] = Value::Null), "not bound to a pod"),
            (
                rejected(&|status| *status.pointer_mut(pod).unwrap() = json!([])),
                "not bound to a pod",
            ),
            (
                rejected(&|status| *status.pointer_mut(pod).unwrap() = json!(["a", "b"])),
                "not bound to a pod",
            ),
            (rejected(&|status| *status.pointer_mut(pod).unwrap() = json!(["A/b"])), "valid name"),
        ] {
            assert!(
                rejection.contains(expected) && !rejection.contains(SERVER_ERROR),
                "{rejection}"
            );
        }
    }

    #[test]
    fn unknown_tokens_do_not_fill_the_log() {
        for _ in 0..100 {
            check_status(review_response(|status| status["authenticated"] = json!(false)))
                .unwrap_err();
        }
        assert_eq!(INVALID_TOKEN_LOG_LIMIT.lock().unwrap().permit_line(Instant::now()), None);
    }

    const SERVER_ERROR: &str = "etcd-1.internal: lookup of key failed";
}

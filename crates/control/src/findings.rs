//! Finds the problems and notices of a mesh, each with a hint, for `leno status` and the browser page.

mod conditions;
mod endpoints;
pub mod rejection_text;
mod rejections;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::rejections::{check_rejections, rejections_explain_failures};
use crate::figures::{
    DEGRADED_BELOW, FAILING_BELOW, format_count, format_duration, format_rate, format_share,
};
use crate::status::{
    CertificateStatus, DirectoryStatus, HistoryStatus, MissingKeysStatus, NamedRateStatus,
    PolicyStatus, ProxyStatus, RECENT_STEPS, RateStatus, RejectedJoinStatus, RouteStatus,
    ServiceStatus, Status, TrafficStatus, WorkloadStatus,
};

/// The inputs of the findings, at one moment.
#[derive(Debug)]
pub struct FindingInputs {
    /// The status of the mesh as a whole.
    pub status: Status,
    /// The status of all workloads.
    pub workloads: Vec<WorkloadStatus>,
    /// The status of the connected sidecars.
    pub proxies: Vec<ProxyStatus>,
    /// The certificates of sidecars.
    pub certificates: Vec<CertificateStatus>,
    /// The status of all routes.
    pub routes: Vec<RouteStatus>,
    /// The status of all policies.
    pub policies: Vec<PolicyStatus>,
    /// The status of all services.
    pub services: Vec<ServiceStatus>,
    /// Joins that were rejected lately.
    pub rejected_joins: Vec<RejectedJoinStatus>,
    /// The status of the control plane's data directory, with the result of a test write; `None` if the control plane is
    /// of an earlier release.
    pub directory: Option<DirectoryStatus>,
    /// The response of `/rejected`: rejected documents, and warnings.
    pub rejected: Value,
    /// The traffic of the last three minutes.
    pub traffic: TrafficStatus,
    /// The most frequent failure reason of each degraded service, by service name; `None` if it has no recent reason.
    pub reasons: BTreeMap<String, Option<String>>,
}

/// A response from a control plane of another release.
#[derive(Debug, thiserror::Error)]
#[error("the response cannot be parsed: the mesh may run another version of leno")]
pub struct UnparsableResponse(#[source] serde_json::Error);

/// A problem or notice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The severity of the finding.
    pub severity: Severity,
    /// The description, as a sentence.
    pub message: String,
    /// The suggested action.
    pub hint: String,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The mesh is unhealthy.
    Problem,
    /// The mesh is healthy; the notice may explain an observation.
    Notice,
}

impl FindingInputs {
    /// Collects all inputs with `query`, which returns the JSON at a path of the admin socket.
    ///
    /// # Errors
    /// Returns the first error of `query`, or a response that cannot be parsed.
    pub async fn collect<E, Q, F>(query: Q) -> Result<Self, E>
    where
        E: From<UnparsableResponse>,
        Q: Fn(String) -> F,
        F: Future<Output = Result<Value, E>>,
    {
        let traffic: TrafficStatus = parse_response(query("/traffic".to_owned()).await?)?;
        let mut reasons = BTreeMap::new();
        for service in traffic.services.iter().filter(|service| is_degraded(&service.rates)) {
            let history: Option<HistoryStatus> =
                parse_response(query(format!("/history?service={}", service.name)).await?)?;
            // Only recent reasons count: those of an hour ago do not explain current failures.
            let recent_reasons = history.into_iter().flat_map(|history| history.recent_reasons);
            let most_frequent_reason =
                recent_reasons.max_by_key(|(_, count)| *count).map(|(reason, _)| reason);
            reasons.insert(service.name.clone(), most_frequent_reason);
        }
        // Control planes of earlier releases do not have these paths.
        let rejected_joins = query("/rejected-joins".to_owned()).await.ok();
        let directory = query("/state".to_owned()).await.ok();
        Ok(Self {
            services: parse_response(query("/services".to_owned()).await?)?,
            rejected_joins: rejected_joins.map(parse_response).transpose()?.unwrap_or_default(),
            directory: directory.map(parse_response).transpose()?,
            status: parse_response(query("/status".to_owned()).await?)?,
            workloads: parse_response(query("/workloads".to_owned()).await?)?,
            proxies: parse_response(query("/proxies".to_owned()).await?)?,
            certificates: parse_response(query("/certificates".to_owned()).await?)?,
            routes: parse_response(query("/routes".to_owned()).await?)?,
            policies: parse_response(query("/policies".to_owned()).await?)?,
            rejected: query("/rejected".to_owned()).await?,
            traffic,
            reasons,
        })
    }
}

/// Parses a response of the admin socket.
fn parse_response<T: DeserializeOwned>(value: Value) -> Result<T, UnparsableResponse> {
    serde_json::from_value(value).map_err(UnparsableResponse)
}

impl Finding {
    /// Creates a problem with its hint.
    pub fn problem(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { severity: Severity::Problem, message: message.into(), hint: hint.into() }
    }

    fn notice(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { severity: Severity::Notice, message: message.into(), hint: hint.into() }
    }
}

/// True if the success rate of a service is below [`DEGRADED_BELOW`], with at least [`MIN_REQUESTS`] requests.
fn is_degraded(rates: &RateStatus) -> bool {
    let recent_requests: u64 =
        rates.recent.iter().rev().take(RECENT_STEPS).map(|requests| u64::from(*requests)).sum();
    rates.success.is_some_and(|share| share < DEGRADED_BELOW) && recent_requests >= MIN_REQUESTS
}

/// Returns the findings: problems first, then notices.
#[must_use]
pub fn collect_findings(inputs: &FindingInputs) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(check_sidecars(inputs));
    findings.extend(conditions::check_conditions(inputs));
    findings.extend(endpoints::check_endpoints(inputs));
    findings.extend(check_certificates(inputs));
    findings.extend(check_documents(inputs));
    findings.extend(check_references(inputs));
    findings.extend(check_keys(inputs));
    // The findings above name causes. The findings below are effects, and may have the same causes.
    findings.extend(check_rejections(inputs));
    findings.extend(check_services(inputs));
    findings.extend(check_transient(&inputs.status, &inputs.traffic));
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Reports workloads without a connected sidecar, and sidecars that reject their configuration or are out of sync.
fn check_sidecars(inputs: &FindingInputs) -> Vec<Finding> {
    let mut findings = Vec::new();
    let names_without_sidecar = |is_revoked: bool| -> Vec<&str> {
        let workloads = inputs.workloads.iter().filter(|workload| !workload.has_sidecar());
        workloads
            .filter(|workload| workload.revoked == is_revoked)
            .map(|workload| workload.name.as_str())
            .collect()
    };
    let (revoked, disconnected) = (names_without_sidecar(true), names_without_sidecar(false));
    if !revoked.is_empty() {
        let verb = if revoked.len() == 1 { "is" } else { "are" };
        findings.push(Finding::notice(
            format!(
                "{} {verb} revoked: {}",
                format_count(revoked.len(), "workload"),
                list_names(&revoked)
            ),
            reinstate_command("NAMESPACE/NAME"),
        ));
    }
    if !disconnected.is_empty() && !inputs.status.starting {
        findings.push(Finding::problem(
            format!(
                "{} without a connected sidecar: {}",
                format_count(disconnected.len(), "workload"),
                list_names(&disconnected)
            ),
            absent_sidecar_hint(&inputs.status, "NAMESPACE/NAME", false),
        ));
    }
    for proxy in &inputs.proxies {
        let out_of_sync_seconds = proxy.out_of_sync_seconds.unwrap_or_default();
        if let Some(rejection) = proxy.rejections.last().filter(|_| proxy.rejected > 0) {
            findings.push(Finding::problem(
                format!("the sidecar of {} rejects its configuration: {rejection}", proxy.workload),
                "correct the named object; the previous configuration stays in use",
            ));
        } else if out_of_sync_seconds > OUT_OF_SYNC_SECONDS {
            let out_of_sync_time =
                Duration::try_from_secs_f64(out_of_sync_seconds).unwrap_or_default();
            findings.push(Finding::problem(
                format!(
                    "the sidecar of {} has been out of sync for {}",
                    proxy.workload,
                    format_duration(out_of_sync_time)
                ),
                "check its log and its machine: it neither applies nor rejects the newest change",
            ));
        }
    }
    limit_findings(findings, "leno get proxies --out-of-sync")
}

/// Returns the command that undoes the revocation of a workload.
fn reinstate_command(workload: &str) -> String {
    format!(
        "to reinstate it: leno revoke {workload} --undo, or remove it from `spec.revoked` of the MeshConfig"
    )
}

/// Returns the hint for a workload without a connected sidecar.
#[must_use]
pub fn absent_sidecar_hint(status: &Status, workload: &str, revoked: bool) -> String {
    match status.supervised {
        _ if revoked => reinstate_command(workload),
        true => {
            "`leno up` runs its sidecar: look for the workload in the log of `leno up`".to_owned()
        }
        false if status.kubernetes => {
            let (namespace, pod) = split_pod_name(workload);
            format!(
                "`kubectl -n {namespace} describe pod {pod}` and `kubectl -n {namespace} logs {pod} -c leno-proxy` show \
                 the reason; a sidecar cannot resolve the control plane if its dnsPolicy excludes the cluster's DNS or search domains: use ClusterFirst"
            )
        }
        false => format!(
            "start `leno proxy` on its machine and check its log; a sidecar that has never connected needs a token: leno token \
             {workload}"
        ),
    }
}

/// Returns the hint for a rejected sidecar of a workload of the mesh.
#[must_use]
pub fn rejected_sidecar_hint(status: &Status, workload: &WorkloadStatus) -> String {
    let (has_sidecar, name) = (workload.has_sidecar(), &workload.name);
    match (status.supervised, has_sidecar) {
        _ if workload.revoked => reinstate_command(name),
        (true, true) => "a workload has one sidecar: stop the one that `leno up` does not run".to_owned(),
        (true, false) => "`leno up` starts its sidecar with a new token within a minute; its log shows each start"
            .to_owned(),
        (false, _) => rejoin_hint(status, name),
    }
}

/// Returns the hint for a sidecar that must join with a new token. In Kubernetes, a new Pod has its own token.
#[must_use]
pub fn rejoin_hint(status: &Status, workload: &str) -> String {
    match status.kubernetes {
        true => {
            let (namespace, pod) = split_pod_name(workload);
            format!(
                "see `kubectl -n {namespace} logs {pod} -c leno-proxy`; a new Pod joins automatically: `kubectl -n \
                 {namespace} delete pod {pod}`"
            )
        }
        false => {
            format!("create a new token and start the sidecar with it: leno token {workload}")
        }
    }
}

/// Splits a workload name into the namespace and name of its Pod.
fn split_pod_name(workload: &str) -> (&str, &str) {
    workload.split_once('/').unwrap_or(("default", workload))
}

/// Reports certificates that have expired or expire soon.
fn check_certificates(inputs: &FindingInputs) -> Vec<Finding> {
    // Sidecars renew before half of the lifetime has passed: less than a fifth left means repeated failures.
    let threshold = inputs.status.certificate_lifetime_seconds / 5;
    let expiring_certificates =
        inputs.certificates.iter().filter(|certificate| certificate.valid_for_seconds <= threshold);
    let findings = expiring_certificates.map(|certificate| {
        let workload = &certificate.workload;
        let hint =
            "its sidecar should have renewed it: check that it runs and reaches the control plane";
        match certificate.valid_for_seconds {
            0 => Finding::problem(
                format!("the certificate of {workload} has expired: peers reject it"),
                match inputs.status.kubernetes {
                    true => rejoin_hint(&inputs.status, workload),
                    false => format!(
                        "create a new token and start the sidecar with it: leno token {workload}"
                    ),
                },
            ),
            remaining => Finding::problem(
                format!(
                    "the certificate of {workload} expires in {}",
                    format_duration(Duration::from_secs(remaining))
                ),
                hint,
            ),
        }
    });
    limit_findings(findings.collect(), "leno get certificates")
}

/// Reports unread paths, rejected documents or objects, a rejected trust domain, and warnings about documents.
fn check_documents(inputs: &FindingInputs) -> Vec<Finding> {
    let rejected_list = |name: &str| inputs.rejected.get(name).and_then(Value::as_array);
    let mut findings = Vec::new();
    if inputs.status.rejected > 0 {
        let hint = "leno get rejected shows the locations and hints; the last version accepted since the start, if any, remains in force";
        let rejected_files = |are_documents: bool| {
            let rejected = rejected_list("rejected").into_iter().flatten();
            // An unread path has neither a line nor a kind.
            let is_document = |document: &&Value| {
                document.get("line").is_some() || document.get("kind").is_some()
            };
            let rejected = rejected.filter(|document| is_document(document) == are_documents);
            let files: BTreeSet<&str> =
                rejected.filter_map(|document| document.get("file")?.as_str()).collect();
            files.into_iter().collect::<Vec<&str>>()
        };
        let unread_paths = rejected_files(false);
        if !unread_paths.is_empty() {
            let message = format!(
                "{} not read: {}",
                format_count(unread_paths.len(), "path"),
                list_names(&unread_paths)
            );
            findings.push(Finding::problem(message, hint));
        }
        let document_count = inputs.status.rejected.saturating_sub(unread_paths.len());
        if document_count > 0 {
            // Objects of a cluster are not in files.
            let (document_files, objects) = (rejected_files(true), rejected_objects(inputs));
            let object_names: Vec<&str> = objects.iter().map(String::as_str).collect();
            let (noun, names) = match document_files.is_empty() {
                true => ("object", object_names),
                false => ("document", document_files),
            };
            let message =
                format!("{} rejected: {}", format_count(document_count, noun), list_names(&names));
            findings.push(Finding::problem(message, hint));
        }
    }
    if let Some(problem) = inputs.rejected.get("trust_domain").and_then(Value::as_str) {
        findings.push(Finding::problem(
            format!("MeshConfig: {problem}"),
            "keep the trust domain of the authority, or start a mesh with another data directory",
        ));
    }
    let warning_count = rejected_list("warnings").map_or(0, Vec::len);
    if warning_count > 0 {
        findings.push(Finding::notice(
            format_count(warning_count, "warning"),
            "leno get rejected shows them",
        ));
    }
    findings
}

/// Returns the rejected objects by kind and name.
fn rejected_objects(inputs: &FindingInputs) -> BTreeSet<String> {
    let rejected = inputs.rejected.get("rejected").and_then(Value::as_array).into_iter().flatten();
    let names = rejected.filter_map(|document| {
        let text_field = |key: &str| document.get(key).and_then(Value::as_str);
        let name = text_field("name")?;
        let name = match text_field("namespace") {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        };
        Some(format!("{} {name}", text_field("kind")?))
    });
    names.collect()
}

/// Reports routes and policies with missing references.
fn check_references(inputs: &FindingInputs) -> Vec<Finding> {
    let routes = inputs.routes.iter().map(|route| (&route.kind, &route.name, &route.problems));
    let policies =
        inputs.policies.iter().map(|policy| (&policy.kind, &policy.name, &policy.problems));
    let objects_with_problems =
        routes.chain(policies).filter(|(.., problems)| !problems.is_empty());
    let findings = objects_with_problems.map(|(kind, name, problems)| {
        Finding::problem(
            format!("{kind} {name}: {}", problems.join("; ")),
            "add the missing object, or correct the reference: until then this part has no effect",
        )
    });
    limit_findings(findings.collect(), "leno get routes, leno get policies")
}

/// Reports JWT policies without the keys of an issuer.
fn check_keys(inputs: &FindingInputs) -> Vec<Finding> {
    let policies_in_effect = inputs.policies.iter().filter(|policy| policy.in_force);
    let findings = policies_in_effect.filter_map(|policy| {
        let MissingKeysStatus { requests, issuers } = policy.missing_keys.as_ref()?;
        let (kind, name) = (&policy.kind, &policy.name);
        let issuers = issuers.join(", ");
        Some(Finding::problem(
            format!("{kind} {name}: {requests} fails: no keys for {issuers}"),
            "make the issuer's JWK set available; leno get rejected shows the field",
        ))
    });
    limit_findings(findings.collect(), "leno get rejected")
}

/// Reports degraded services, except those with failures that rejections explain.
fn check_services(inputs: &FindingInputs) -> Vec<Finding> {
    let is_explained = |service: &NamedRateStatus| {
        rejections_explain_failures(inputs, &service.name, service.rates.success)
    };
    let services = inputs.traffic.services.iter();
    let degraded_services =
        services.filter(|service| is_degraded(&service.rates) && !is_explained(service));
    let findings = degraded_services.map(|service| {
        let rates = &service.rates;
        let reason = inputs.reasons.get(&service.name).cloned().flatten();
        let (cause, hint) = match reason {
            Some(reason) => (
                format!(", most often with {reason}"),
                format!("leno explain {reason} shows its meaning and hint"),
            ),
            None => (
                ", without a reason of the mesh: the application responds with errors".to_owned(),
                "check the application's log".to_owned(),
            ),
        };
        let message = format!(
            "{}: {} of {} succeed{cause}",
            service.name,
            format_share(rates.success),
            format_rate(rates.per_second)
        );
        match rates.success.is_some_and(|share| share < FAILING_BELOW) {
            true => Finding::problem(message, hint),
            false => Finding::notice(message, hint),
        }
    });
    limit_findings(findings.collect(), "leno top --sort success")
}

/// Reports conditions that are transient or intended.
fn check_transient(status: &Status, traffic: &TrafficStatus) -> Vec<Finding> {
    let mut findings = Vec::new();
    if status.starting {
        findings.push(Finding::notice(
            "the control plane has just started and waits for sidecars to reconnect",
            "it takes a few seconds: repeat the command",
        ));
    }
    if status.outdated > 0 {
        findings.push(Finding::notice(
            format!(
                "{} must still renew certificates after the CA change",
                format_count(status.outdated, "sidecar")
            ),
            "they renew automatically; leno ca status lists them",
        ));
    }
    if traffic.report_interval_ms.is_none() {
        findings.push(Finding::notice(
            "failures of services are unknown: sidecars do not report traffic",
            "start the control plane without --report-interval off",
        ));
    }
    findings
}

/// Keeps the first [`MAX_FINDINGS`] findings. Replaces the rest by one finding with their number and the `command` that
/// lists them.
fn limit_findings(mut findings: Vec<Finding>, command: &str) -> Vec<Finding> {
    let remaining_count = findings.len().saturating_sub(MAX_FINDINGS);
    if remaining_count > 0 {
        let remaining = findings.split_off(MAX_FINDINGS);
        // The more severe variant is the smaller one.
        let severity =
            remaining.iter().map(|finding| finding.severity).min().unwrap_or(Severity::Notice);
        let message = format!("and {remaining_count} more of this kind");
        findings.push(Finding { severity, message, hint: command.to_owned() });
    }
    findings
}

/// Returns the first [`MAX_NAMES`] names as text, and the number of further names.
fn list_names(names: &[&str]) -> String {
    let mut text = names.iter().take(MAX_NAMES).copied().collect::<Vec<_>>().join(", ");
    if names.len() > MAX_NAMES {
        text.push_str(&format!(" and {} more", names.len() - MAX_NAMES));
    }
    text
}

/// The minimum number of requests for a meaningful success rate.
const MIN_REQUESTS: u64 = 10;
/// The time in seconds after which a sidecar is reported as out of sync; applying a change takes milliseconds.
const OUT_OF_SYNC_SECONDS: f64 = 10.0;
/// Maximum findings of one kind listed individually.
const MAX_FINDINGS: usize = 5;
/// Maximum names in one finding.
const MAX_NAMES: usize = 5;

#[cfg(test)]
mod tests;

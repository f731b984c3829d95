//! Runs the checks of `leno check` for a cluster and the mesh in it. Each check examines a subject, such as the
//! nodes or the authority, and reports a finding.

mod certificates;
mod connections;
mod control;
mod gateways;
mod members;
mod network;
mod objects;
mod permissions;

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Node, NodeSystemInfo};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use self::objects::ManifestDifferences;
use super::apply::try_injection;
use super::kinds::{crd_name, plurals};
use crate::api::{ApiError, NamespaceName, ObjectApi, ObjectName, server_date, server_version};
use crate::inject::has_native_sidecars;
use crate::webhook::{INJECTOR, INJECTOR_NAME, TrustState, trust_state};

/// An examined subject, with its finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExaminedSubject {
    /// The name of the subject, such as `nodes`.
    pub subject: &'static str,
    /// The finding.
    pub finding: ExamineResult,
}

/// The finding of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExamineResult {
    /// The subject is healthy. The text has details, such as `valid for 90 days`.
    Passed(String),
    /// The subject works, but is degraded or could not be checked.
    Warning(ExamineProblem),
    /// The subject does not work.
    Failed(ExamineProblem),
}

/// A problem and its solution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExamineProblem {
    /// The problem.
    pub problem: String,
    /// The proposed solution.
    pub hint: String,
}

impl ExamineResult {
    fn warning(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Warning(ExamineProblem { problem: problem.into(), hint: hint.into() })
    }

    fn failure(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Failed(ExamineProblem { problem: problem.into(), hint: hint.into() })
    }
}

impl fmt::Display for ExamineResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed(text) => f.write_str(text),
            Self::Warning(ExamineProblem { problem, hint })
            | Self::Failed(ExamineProblem { problem, hint }) => {
                write!(f, "{problem}; {hint}")
            }
        }
    }
}

/// Returns all findings of [`examine_each`].
///
/// # Errors
/// When the API server is unreachable.
pub async fn examine_all(
    client: &Client,
    namespace: Option<&NamespaceName>,
) -> Result<Vec<ExaminedSubject>, ApiError> {
    let mut subjects = Vec::new();
    Box::pin(examine_each(client, namespace, |examined| subjects.push(examined))).await?;
    Ok(subjects)
}

/// Examines all subjects one after another, for the control plane of `namespace` or the one found in the
/// cluster. Reports each finding immediately. Each step has a timeout of 15 seconds, and all steps together
/// have 50 seconds.
///
/// # Errors
/// When the API server is unreachable.
pub async fn examine_each(
    client: &Client,
    namespace: Option<&NamespaceName>,
    report: impl FnMut(ExaminedSubject),
) -> Result<(), ApiError> {
    let mut steps = DeadlineSteps { report, deadline: Instant::now() + TOTAL_TIMEOUT };
    let version_response = steps.with_timeout(server_version(client)).await;
    let server_info =
        version_response.unwrap_or_else(|| Err(ApiError::Client(NO_RESPONSE.to_owned())))?;
    steps.report(
        "version of the API server",
        version_finding(&server_info.major, &server_info.minor),
    );
    steps.run_step("nodes", check_nodes(client)).await;
    steps.run_step("clocks", check_clocks(client)).await;
    steps.run_step("permissions to install", permissions::check_permissions(client)).await;
    let control_plane = steps.with_timeout(control::find_control_plane(client, namespace)).await;
    let (control_namespace, deployment) =
        match control_plane.unwrap_or_else(|| Err(timeout_finding())) {
            Ok(control_plane) => control_plane,
            Err(finding) => {
                steps.report("control plane", finding);
                return Ok(());
            }
        };
    let namespace = &control_namespace;
    steps.report("control plane", control::check_availability(namespace, &deployment));
    steps.run_step("nodes of the control plane", control::check_spread(client, namespace)).await;
    steps.run_step("kinds", check_kinds(client)).await;
    let manifests_result =
        steps.with_timeout(objects::desired_manifests(client, namespace, &deployment)).await;
    let desired_manifests = match manifests_result {
        Some(Ok(manifests)) => manifests,
        Some(Err(error)) => {
            let hint = "run it as a user with read permission";
            let finding = ExamineResult::warning(format!("cannot be checked: {error}"), hint);
            steps.report(OBJECTS_SUBJECT, finding);
            Vec::new()
        }
        None => {
            steps.report(OBJECTS_SUBJECT, timeout_finding());
            Vec::new()
        }
    };
    if !desired_manifests.is_empty() {
        steps.run_step(OBJECTS_SUBJECT, objects::compare_objects(client, &desired_manifests)).await;
    }
    steps.run_step("gateways", gateways::check_gateways(client, &deployment)).await;
    steps.run_step("network of nodes", network::check_agents(client, namespace, &deployment)).await;
    steps.run_step("namespaces", members::check_namespaces(client, namespace, &deployment)).await;
    let sidecars =
        steps.with_timeout(members::check_sidecars(client, namespace, &deployment)).await;
    for (subject, finding) in sidecars.unwrap_or_else(|| vec![("sidecars", timeout_finding())]) {
        steps.report(subject, finding);
    }
    steps.run_step("pods rejected by the webhook", members::check_uncreated_pods(client)).await;
    let now = SystemTime::now();
    steps
        .run_step("authority", certificates::check_signing_certificate(client, namespace, now))
        .await;
    steps.run_step("roots of the mesh", certificates::check_roots(client, namespace, now)).await;
    steps.run_step("webhook", check_webhook(client, &desired_manifests, now)).await;
    Ok(())
}

/// Runs each step with a timeout, and all of them with a common deadline; reports their findings.
struct DeadlineSteps<F> {
    report: F,
    deadline: Instant,
}

impl<F: FnMut(ExaminedSubject)> DeadlineSteps<F> {
    fn report(&mut self, subject: &'static str, finding: ExamineResult) {
        (self.report)(ExaminedSubject { subject, finding });
    }

    async fn run_step(
        &mut self,
        subject: &'static str,
        check: impl Future<Output = ExamineResult>,
    ) {
        let finding = self.with_timeout(check).await.unwrap_or_else(timeout_finding);
        self.report(subject, finding);
    }

    /// Runs a check until the deadline of the step. Returns `None` on timeout.
    async fn with_timeout<T>(&self, check: impl Future<Output = T>) -> Option<T> {
        let remaining_time = self.deadline.saturating_duration_since(Instant::now());
        timeout(remaining_time.min(STEP_TIMEOUT), Box::pin(check)).await.ok()
    }
}

/// Returns the finding of a step without a response in time.
fn timeout_finding() -> ExamineResult {
    ExamineResult::failure(NO_RESPONSE, "check `kubectl get --raw /readyz`, and run this again")
}

fn version_finding(major: &str, minor: &str) -> ExamineResult {
    let version = format!("{major}.{minor}");
    let minor_number: u32 =
        minor.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
    match has_native_sidecars(major, minor) {
        true => ExamineResult::Passed(format!("{version}, with native sidecars")),
        false if minor_number < MIN_MINOR_VERSION => ExamineResult::failure(
            format!("{version} is too old"),
            format!("use 1.{MIN_MINOR_VERSION} or newer"),
        ),
        false => ExamineResult::warning(
            format!(
                "{version} has no native sidecars: Jobs do not complete by themselves, and init \
                 containers bypass the mesh"
            ),
            "use 1.29 or newer",
        ),
    }
}

/// Checks the versions of nodes: kubelets may be older than the API server, and kernels too old for
/// redirection.
async fn check_nodes(client: &Client) -> ExamineResult {
    let node_api: ObjectApi<Node> = ObjectApi::for_all_namespaces(client.clone());
    let nodes = match node_api.list(&ListParams::default().limit(MAX_EXAMINED_NODES)).await {
        Ok(nodes) => nodes.items,
        Err(error) => return unreadable_finding(&error),
    };
    let nodes_with = |outdated_version: fn(&NodeSystemInfo) -> Option<&str>| -> Vec<String> {
        let outdated_nodes = nodes.iter().filter_map(|node| {
            let version = outdated_version(node.status.as_ref()?.node_info.as_ref()?)?;
            Some(format!("{} ({version})", node.name_any()))
        });
        outdated_nodes.collect()
    };
    let old_kernel_nodes =
        nodes_with(|info| Some(&*info.kernel_version).filter(|version| is_old_kernel(version)));
    let old_kubelet_nodes = nodes_with(|info| {
        let version = info.kubelet_version.trim_start_matches('v');
        let mut version_parts = version.split('.');
        let (major, minor) =
            (version_parts.next().unwrap_or(""), version_parts.next().unwrap_or(""));
        (!has_native_sidecars(major, minor)).then_some(version)
    });
    match (old_kernel_nodes.as_slice(), old_kubelet_nodes.as_slice()) {
        ([], []) => ExamineResult::Passed(format!("{}, all with native sidecars", nodes.len())),
        ([], outdated_nodes) => ExamineResult::warning(
            format!("no native sidecars on {}", summarize_names(outdated_nodes)),
            "upgrade their kubelets to 1.29 or newer",
        ),
        // Distributions backport features to kernels with old version numbers.
        (old_kernel_nodes, _) => ExamineResult::warning(
            format!(
                "kernels of {} may not support redirection to sidecars",
                summarize_names(old_kernel_nodes)
            ),
            "use Linux 5.2 or newer, or try one pod there",
        ),
    }
}

/// Returns true if a kernel lacks `inet` tables for nftables, which cover IPv4 and IPv6. Unknown versions may
/// have them.
fn is_old_kernel(version: &str) -> bool {
    let mut version_parts = version.split(['.', '-']).map(str::parse::<u32>);
    match (version_parts.next(), version_parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < MIN_KERNEL_VERSION,
        _ => false,
    }
}

/// Checks the clock skew: certificates and tokens have validity periods.
async fn check_clocks(client: &Client) -> ExamineResult {
    let date = match server_date(client).await {
        Ok(date) => date,
        Err(error) => return unreadable_finding(&error),
    };
    let server_time = date.as_deref().and_then(parse_http_date);
    let local_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    match server_time {
        None => missing_time_finding(),
        Some(server_time) => skew_finding(local_time.abs_diff(server_time)),
    }
}

fn skew_finding(skew: Duration) -> ExamineResult {
    match skew {
        skew if skew <= MAX_CLOCK_SKEW => {
            ExamineResult::Passed("of this machine and the API server agree".to_owned())
        }
        skew => ExamineResult::failure(
            format!(
                "the API server's and this machine's differ by {} s: certificates may be expired \
                 or not yet valid",
                skew.as_secs()
            ),
            "synchronize them with NTP",
        ),
    }
}

fn missing_time_finding() -> ExamineResult {
    ExamineResult::warning(
        "the API server does not report its time",
        "compare the clocks of the nodes yourself",
    )
}

/// Parses a date such as `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110 §5.6.7) into the time since the Unix epoch;
/// `None` for other notations.
fn parse_http_date(text: &str) -> Option<Duration> {
    let format = time::format_description::parse_borrowed::<2>(
        "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT",
    );
    let date = time::PrimitiveDateTime::parse(text, &format.ok()?).ok()?;
    u64::try_from(date.assume_utc().unix_timestamp()).ok().map(Duration::from_secs)
}

/// Checks that the CustomResourceDefinitions of Leno's kinds exist.
async fn check_kinds(client: &Client) -> ExamineResult {
    let definitions: ObjectApi<CustomResourceDefinition> =
        ObjectApi::for_all_namespaces(client.clone());
    let mut absent_kinds = Vec::new();
    for name in plurals().map(crd_name) {
        let definition = match ObjectName::new(&name) {
            Ok(name) => definitions.get_opt(&name).await,
            Err(error) => Err(error.into()),
        };
        match definition {
            Ok(Some(_)) => {}
            Ok(None) => absent_kinds.push(name),
            Err(error) => return unreadable_finding(&error),
        }
    }
    match absent_kinds.as_slice() {
        [] => ExamineResult::Passed("all of leno.dev are installed".to_owned()),
        absent_kinds => ExamineResult::failure(
            format!("{} are not installed", absent_kinds.join(", ")),
            REINSTALL_HINT,
        ),
    }
}

/// Compares the entries of the webhook configuration with those of the installation, and creates a pod with a
/// sidecar request as a dry run. The dry run alone is not enough: the pod matches only one of the entries.
async fn check_webhook(
    client: &Client,
    desired_manifests: &[Value],
    now: SystemTime,
) -> ExamineResult {
    let configurations: ObjectApi<MutatingWebhookConfiguration> =
        ObjectApi::for_all_namespaces(client.clone());
    let configuration = match configurations.get_opt(&INJECTOR_NAME).await {
        Ok(configuration) => configuration,
        Err(error) => return unreadable_finding(&error),
    };
    let log_hint = "see the log of the control plane";
    match trust_state(configuration.as_ref()) {
        TrustState::Absent => ExamineResult::failure(
            format!("there is no {INJECTOR}, so pods get no sidecars"),
            REINSTALL_HINT,
        ),
        TrustState::Untrusted => {
            ExamineResult::failure("the webhook configuration has no CA bundle", log_hint)
        }
        TrustState::Trusted => {
            let ManifestDifferences { differing_fields, surplus_entries } =
                compare_entries(desired_manifests, configuration.as_ref());
            let describe_entries =
                |fields: &[String]| format!("{INJECTOR}: {}", summarize_names(fields));
            if let [_, ..] = differing_fields.as_slice() {
                let problem =
                    format!("{}: pods may get no sidecars", describe_entries(&differing_fields));
                return ExamineResult::failure(problem, REINSTALL_HINT);
            }
            match try_injection(client).await {
                Ok(()) if !surplus_entries.is_empty() => {
                    ExamineResult::warning(describe_entries(&surplus_entries), REINSTALL_HINT)
                }
                Ok(()) => certificates::check_bundle(configuration.as_ref(), now),
                Err(reason) => ExamineResult::failure(
                    format!("pods that request sidecars are not created: {reason}"),
                    log_hint,
                ),
            }
        }
    }
}

/// Returns the differences between the entries of the webhook and those of the installation.
fn compare_entries(
    desired_manifests: &[Value],
    configuration: Option<&MutatingWebhookConfiguration>,
) -> ManifestDifferences {
    let manifest = desired_manifests
        .iter()
        .find(|manifest| manifest["kind"] == "MutatingWebhookConfiguration");
    let Some((manifest, configuration)) = manifest.zip(configuration) else {
        return ManifestDifferences::default();
    };
    let mut differences = ManifestDifferences::compare_manifest(
        manifest,
        &serde_json::to_value(configuration).unwrap_or_default(),
    );
    // No manifest has match conditions, which could exclude pods from injection.
    let conditional = configuration.webhooks.iter().flatten().filter(|webhook| {
        webhook.match_conditions.as_ref().is_some_and(|conditions| !conditions.is_empty())
    });
    differences.surplus_entries.extend(
        conditional.map(|webhook| format!("webhooks[{}].matchConditions are set", webhook.name)),
    );
    differences
}

/// Joins at most `MAX_LISTED_NAMES` names with commas, and appends the number of omitted names.
fn summarize_names(names: &[String]) -> String {
    let listed = names.get(..MAX_LISTED_NAMES).unwrap_or(names).join(", ");
    match names.len().saturating_sub(MAX_LISTED_NAMES) {
        0 => listed,
        omitted => format!("{listed} and {omitted} more"),
    }
}

/// Returns the finding of a check that could not read an object.
fn unreadable_finding(error: &ApiError) -> ExamineResult {
    ExamineResult::warning(
        format!("cannot be checked: {error}"),
        "run it as a user with read permission",
    )
}

/// The maximum duration of one step. A client may retry a rejected request for minutes.
const STEP_TIMEOUT: Duration = Duration::from_secs(15);
/// The maximum duration of all steps together.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(50);
const NO_RESPONSE: &str = "no response in time";
const OBJECTS_SUBJECT: &str = "objects of the installation";
/// The first minor version that supports `matchLabelKeys` and `nodeTaintsPolicy`, used to spread control
/// planes.
const MIN_MINOR_VERSION: u32 = 27;
/// The maximum number of examined nodes: one page of a list.
const MAX_EXAMINED_NODES: u32 = 500;
/// The first kernel with `nat` chains in `inet` tables.
const MIN_KERNEL_VERSION: (u32, u32) = (5, 2);
/// The maximum number of names in a finding, which is one line.
const MAX_LISTED_NAMES: usize = 8;
const REINSTALL_HINT: &str = "run `leno install --apply` again";
/// The maximum clock skew without a finding: half of the tolerance of certificates.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_the_webhook_lacks_are_reported() {
        use crate::install::{InstallOptions, installation_manifests};

        let domain = leno_model::TrustDomain::new("cluster.local").unwrap();
        let desired = installation_manifests(&InstallOptions::new("leno:test".to_owned(), domain));
        let manifest =
            desired.iter().find(|manifest| manifest["kind"] == "MutatingWebhookConfiguration");
        let read = |value: &Value| -> MutatingWebhookConfiguration {
            serde_json::from_value(value.clone()).unwrap()
        };
        let mut configuration = manifest.unwrap().clone();
        assert_eq!(
            compare_entries(&desired, Some(&read(&configuration))),
            ManifestDifferences::default()
        );
        let conditions = serde_json::json!([{"name": "a", "expression": "false"}]);
        configuration["webhooks"][1]["matchConditions"] = conditions;
        let surplus_entries = ["webhooks[pod.sidecar-injector.leno.dev].matchConditions are set"];
        assert_eq!(
            compare_entries(&desired, Some(&read(&configuration))).surplus_entries,
            surplus_entries
        );
        configuration["webhooks"].as_array_mut().unwrap().remove(0);
        let differing_fields = ["webhooks[namespace.sidecar-injector.leno.dev] is absent"];
        assert_eq!(
            compare_entries(&desired, Some(&read(&configuration))).differing_fields,
            differing_fields
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_without_a_response_ends_at_its_deadline() {
        let (start, mut findings) = (Instant::now(), Vec::new());
        let report = |examined: ExaminedSubject| {
            findings.push((examined.subject, examined.finding, start.elapsed()))
        };
        let mut steps = DeadlineSteps { report, deadline: start + TOTAL_TIMEOUT };
        for subject in ["a", "b", "c", "d", "e"] {
            steps.run_step(subject, std::future::pending()).await;
        }
        steps.run_step("f", async { ExamineResult::Passed("at once".to_owned()) }).await;
        assert!(
            findings.iter().take(5).all(|(_, finding, _)| *finding == timeout_finding()),
            "{findings:?}"
        );
        // Timers have a resolution of a millisecond.
        let seconds_at =
            |index: usize| Duration::from_secs((findings[index].2.as_secs_f64()).round() as u64);
        assert_eq!(seconds_at(0), STEP_TIMEOUT);
        assert_eq!(seconds_at(4), TOTAL_TIMEOUT, "all together have a deadline as well");
    }

    #[test]
    fn old_versions_of_the_api_server_are_reported() {
        let verdict = |minor: &str| match version_finding("1", minor) {
            ExamineResult::Passed(_) => "passed",
            ExamineResult::Warning(_) => "warning",
            ExamineResult::Failed(_) => "failed",
        };
        let verdicts = ["34+", "29", "28", "27", "26"].map(verdict);
        assert_eq!(verdicts, ["passed", "passed", "warning", "warning", "failed"]);
    }

    #[test]
    fn old_kernels_are_recognized() {
        for (version, expected) in [
            ("4.19.0-26-amd64", true),
            ("5.1.21", true),
            ("5.2.0", false),
            ("5.15.0-1070-aws", false),
            ("6.1.0-31-amd64", false),
            ("", false),
        ] {
            assert_eq!(is_old_kernel(version), expected, "{version}");
        }
    }

    #[test]
    fn http_dates_are_parsed() {
        let read = parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(read, Some(Duration::from_secs(784_111_777)));
        assert_eq!(parse_http_date("yesterday"), None);
    }

    #[test]
    fn a_large_clock_skew_is_reported() {
        assert!(matches!(skew_finding(Duration::from_secs(5)), ExamineResult::Passed(_)));
        assert!(matches!(skew_finding(Duration::from_secs(500)), ExamineResult::Failed(_)));
    }
}

//! Reports requests that sidecars reject, and decides if rejections explain the failures of a service.

use crate::status::RejectionStatus;

use super::rejection_text::{MeshObjects, describe_rejection, is_notable, rejection_hint};
use super::{Finding, FindingInputs};
use crate::figures::{DEGRADED_BELOW, FAILING_BELOW};

/// Returns one finding per service and reason, the largest share first.
pub(super) fn check_rejections(inputs: &FindingInputs) -> Vec<Finding> {
    let objects = MeshObjects {
        workloads: &inputs.workloads,
        routes: &inputs.routes,
        policies: &inputs.policies,
    };
    let mut notable_rejections: Vec<&RejectionStatus> =
        inputs.traffic.rejections.iter().filter(|rejection| is_notable(rejection)).collect();
    notable_rejections.sort_by(|a, b| b.share.total_cmp(&a.share));
    let hidden_count = notable_rejections.len().saturating_sub(MAX_FINDINGS);
    let findings = notable_rejections.into_iter().take(MAX_FINDINGS).map(|rejection| {
        let (message, hint) = (describe_rejection(rejection, objects), rejection_hint(rejection));
        match 1.0 - rejection.share < FAILING_BELOW {
            true => Finding::problem(message, hint),
            false => Finding::notice(message, hint),
        }
    });
    let count_finding = (hidden_count > 0).then(|| {
        Finding::notice(format!("and {hidden_count} more rejections"), "leno top lists them")
    });
    findings.chain(count_finding).collect()
}

/// True if rejections explain the failures of a service. They do in two cases: without the rejections, the service
/// would not be degraded; or without them it would not be failing, and they are at least half of its failures.
pub(super) fn rejections_explain_failures(
    inputs: &FindingInputs,
    service: &str,
    success_rate: Option<f64>,
) -> bool {
    let service_rejections =
        inputs.traffic.rejections.iter().filter(|rejection| rejection.service == service);
    let rejected_share: f64 = service_rejections
        .filter(|rejection| is_notable(rejection))
        .map(|rejection| rejection.share)
        .sum();
    rejected_share > 0.0
        && success_rate.is_some_and(|success_rate| {
            let explained_share = success_rate + rejected_share;
            explained_share >= DEGRADED_BELOW
                || (explained_share >= FAILING_BELOW
                    && rejected_share >= (1.0 - success_rate) / 2.0)
        })
}

/// Maximum rejection findings; further ones are only counted.
const MAX_FINDINGS: usize = 20;

//! Findings about requests that the mesh rejects.

use crate::status::RejectionStatus;

use super::rejection_text::{Objects, describe_rejection, is_notable, rejection_hint};
use super::{Finding, FindingInputs};
use crate::figures::{AILING, FAILING};

/// Returns one finding per service and reason, the largest share first.
pub(super) fn check_rejections(facts: &FindingInputs) -> Vec<Finding> {
    let objects =
        Objects { workloads: &facts.workloads, routes: &facts.routes, policies: &facts.policies };
    let mut notable: Vec<&RejectionStatus> =
        facts.traffic.rejections.iter().filter(|rejection| is_notable(rejection)).collect();
    notable.sort_by(|one, other| other.share.total_cmp(&one.share));
    let more = notable.len().saturating_sub(FINDINGS_MAX);
    let findings = notable.into_iter().take(FINDINGS_MAX).map(|rejection| {
        let (message, hint) = (describe_rejection(rejection, objects), rejection_hint(rejection));
        match 1.0 - rejection.share < FAILING {
            true => Finding::problem(message, hint),
            false => Finding::notice(message, hint),
        }
    });
    let rest = (more > 0)
        .then(|| Finding::notice(format!("and {more} more rejections"), "leno top lists them"));
    findings.chain(rest).collect()
}

/// True if rejections explain a service's failures: its other failures are not a problem by themselves, or are
/// few and the smaller part.
pub(super) fn explain_failures(facts: &FindingInputs, service: &str, success: Option<f64>) -> bool {
    let of_service = facts.traffic.rejections.iter().filter(|it| it.service == service);
    let rejected: f64 = of_service.filter(|it| is_notable(it)).map(|it| it.share).sum();
    rejected > 0.0
        && success.is_some_and(|success| {
            let explained = success + rejected;
            explained >= AILING || (explained >= FAILING && rejected >= (1.0 - success) / 2.0)
        })
}

/// Maximum rejection findings; further ones are only counted.
const FINDINGS_MAX: usize = 20;

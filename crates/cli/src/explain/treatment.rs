//! What policies say about the requests to a port, in a sentence each.

use leno_model::{
    FailureClasses, OutlierRemoval, RemovalAlgorithm, SermantRemoval, ServicePolicyName, Treatment,
};

/// A policy and what it does.
#[derive(Debug)]
pub(super) struct Treated {
    pub(super) policy: ServicePolicyName,
    pub(super) told: String,
}

/// What is said about a port.
pub(super) fn treated(treatment: &Treatment) -> Vec<Treated> {
    let removal = treatment.removal.iter().map(|removal| Treated {
        policy: removal.policy.clone(),
        told: match &removal.algorithm {
            RemovalAlgorithm::Native(rule) => native(rule),
            RemovalAlgorithm::Sermant(rule) => sermant(rule),
        },
    });
    removal.collect()
}

fn native(rule: &OutlierRemoval) -> String {
    let rate = rule.rate.map(|rate| {
        format!(
            "{} % of at least {} requests in {:?} failed",
            rate.percent, rate.requests_min, rule.window
        )
    });
    let row = rule.consecutive.map(|many| format!("{many} in a row failed"));
    let when: Vec<String> = rate.into_iter().chain(row).collect();
    format!(
        "removes an endpoint when {} ({}), for {:?} to {:?}; at most {} % are out, at least {} stay",
        when.join(" or "),
        classes(&rule.failures),
        rule.back_off.base,
        rule.back_off.most,
        rule.removed_percent_max,
        rule.keep,
    )
}

fn sermant(rule: &SermantRemoval) -> String {
    let share = |ppm: u32| f64::from(ppm) / 1e6;
    format!(
        "removes an instance as Sermant does, from an error rate of {} ({}) in {} windows of {:?}, \
         for {:?}; at most a share of {} is out, at least {} stay",
        share(rule.rule.error_rate_ppm),
        classes(&rule.common.failures),
        rule.common.windows,
        rule.common.window,
        rule.common.recovery,
        share(rule.rule.scale_up_limit_ppm),
        rule.rule.min_instances,
    )
}

fn classes(classes: &FailureClasses) -> String {
    let words = [
        (classes.connect, "connect"),
        (classes.timeout, "timeout"),
        (classes.reset, "reset"),
        (classes.server_errors, "5xx"),
        (classes.gateway_errors, "gateway"),
    ];
    let words = words.into_iter().filter(|(counts, _)| *counts).map(|(_, word)| word.to_owned());
    let grpc = classes.grpc.iter().map(|code| format!("gRPC status {code}"));
    let all: Vec<String> = words.chain(grpc).collect();
    match all.is_empty() {
        true => "no failure counts".to_owned(),
        false => all.join(", "),
    }
}

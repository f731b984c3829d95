//! Tests with the vectors in `tests/vectors/removal`, which other implementations of Sermant's algorithm share.

use std::time::Duration;

use leno_model::{
    EjectionTime, FailureRate, HealthCheck, HealthProbe, Name, OutlierDetection, SermantCommon,
    SermantConfig, SermantRule,
};
use serde_json::Value;

use super::*;

#[test]
fn native_outlier_detection_passes_its_vectors() {
    let vectors = read_vectors("native.json");
    let defaults = &vectors["defaults"];
    for case in vectors["cases"].as_array().unwrap() {
        let rule = |key: &str| match &case["rule"][key] {
            Value::Null => defaults[key].clone(),
            case_value => case_value.clone(),
        };
        let algorithm = OutlierAlgorithm::Native(native_rule(&rule));
        let mut detector = OutlierDetector::new(&algorithm, instance_names(case).len());
        run_steps(case, |step, now| native_step(&mut detector, case, step, now));
    }
}

#[test]
fn sermant_outlier_detection_passes_its_vectors() {
    let vectors = read_vectors("sermant.json");
    let defaults = &vectors["defaults"];
    for case in vectors["cases"].as_array().unwrap() {
        let field = |key: &str| match &case[key] {
            Value::Null => defaults[key].clone(),
            case_value => case_value.clone(),
        };
        let service = Name::new(field("service").as_str().unwrap()).unwrap();
        let rule = sermant_rule(&field).for_service(&service);
        let mut detector = rule.map(|rule| SermantDetector::new(rule, instance_names(case).len()));
        run_steps(case, |step, now| sermant_step(detector.as_mut(), case, step, now));
    }
}

/// The states agree with the filtered list, however often the time advances in between.
#[test]
fn endpoint_states_agree_with_the_filtered_list() {
    let vectors = read_vectors("sermant.json");
    let defaults = &vectors["defaults"];
    let mut comparisons = 0;
    for case in vectors["cases"].as_array().unwrap() {
        let has_repeated_passes =
            case["steps"].as_array().unwrap().iter().any(|step| !step["passes"].is_null());
        let field = |key: &str| match &case[key] {
            Value::Null => defaults[key].clone(),
            case_value => case_value.clone(),
        };
        let service = Name::new("provider").unwrap();
        let Some(rule) =
            sermant_rule(&field).for_service(&service).filter(|_| !has_repeated_passes)
        else {
            continue;
        };
        let mut detector =
            OutlierDetector::new(&OutlierAlgorithm::Sermant(rule), instance_names(case).len());
        run_steps(case, |step, now| {
            let mut events = Vec::new();
            for call in step_calls(step, case) {
                let result = RequestResult { failed: call.1, probe: false, now, random: 0 };
                detector.record_result(call.0, result, &mut events);
            }
            detector.advance_time(now, 0, &mut events);
            detector.advance_time(now, 0, &mut events);
            if let Some(expected_names) = step["kept"].as_array() {
                comparisons += 1;
                let names = instance_names(case);
                let is_in_service =
                    |slot: &usize| detector.endpoint_state(*slot) == EjectionState::InService;
                let remaining =
                    (0..names.len()).filter(is_in_service).map(|slot| names[slot].clone());
                assert_eq!(
                    remaining.collect::<Vec<_>>(),
                    text_values(expected_names),
                    "{}: {step}",
                    case["name"]
                );
            }
        });
    }
    assert!(comparisons > 20);
}

fn native_step(detector: &mut OutlierDetector, case: &Value, step: &Value, now: Duration) {
    let mut events = Vec::new();
    detector.advance_time(now, 0, &mut events);
    for (slot, failed) in step_calls(step, case) {
        let probe = detector.start_request(slot);
        detector.record_result(slot, RequestResult { failed, probe, now, random: 0 }, &mut events);
    }
    for (slot, failed) in call_outcomes(&step["checks"], case) {
        let evidence = if failed { FailureEvidence::Failure } else { FailureEvidence::Success };
        detector.record_check(slot, evidence, now, &mut events);
    }
    for (name, expected) in step["standing"].as_object().into_iter().flatten() {
        let state = match detector.endpoint_state(instance_index(name, case)) {
            EjectionState::InService => "in",
            EjectionState::Ejected => "out",
            EjectionState::Probe => "probe",
        };
        assert_eq!(Some(state), expected.as_str(), "{}: {name} in {step}", case["name"]);
    }
}

fn sermant_step(detector: Option<&mut SermantDetector>, case: &Value, step: &Value, now: Duration) {
    let mut events = Vec::new();
    let names = instance_names(case);
    let mut remaining: Vec<usize> = (0..names.len()).collect();
    if let Some(detector) = detector {
        for (slot, failed) in step_calls(step, case) {
            detector.record_result(
                slot,
                RequestResult { failed, probe: false, now, random: 0 },
                &mut events,
            );
        }
        if !step["kept"].is_null() {
            for _ in 0..step["passes"].as_u64().unwrap_or(1) {
                remaining = detector.filter_instances(&remaining, now, &mut events);
            }
        }
    }
    if let Some(expected_names) = step["kept"].as_array() {
        let remaining: Vec<String> = remaining.iter().map(|slot| names[*slot].clone()).collect();
        assert_eq!(remaining, text_values(expected_names), "{}: {step}", case["name"]);
    }
}

fn run_steps(case: &Value, mut step: impl FnMut(&Value, Duration)) {
    let steps = case["steps"].as_array().unwrap();
    assert!(steps.len() > 1, "{}", case["name"]);
    for step_value in steps {
        step(step_value, Duration::from_millis(step_value["at"].as_u64().unwrap()));
    }
}

/// Returns the calls of a step: the endpoint of each call, and true if the call failed.
fn step_calls(step: &Value, case: &Value) -> Vec<(usize, bool)> {
    call_outcomes(&step["calls"], case)
}

/// Returns the outcomes of calls or checks: the endpoint of each one, and true if it failed.
fn call_outcomes(list: &Value, case: &Value) -> Vec<(usize, bool)> {
    let outcomes_of_call = |call: &Value| {
        let slot = instance_index(call["to"].as_str().unwrap(), case);
        let failed = call["failed"].as_u64().unwrap();
        let calls = (0..call["count"].as_u64().unwrap()).map(move |n| (slot, n < failed));
        calls.collect::<Vec<_>>()
    };
    list.as_array().into_iter().flatten().flat_map(outcomes_of_call).collect()
}

fn instance_index(name: &str, case: &Value) -> usize {
    instance_names(case).iter().position(|listed_name| listed_name == name).unwrap()
}

fn instance_names(case: &Value) -> Vec<String> {
    text_values(case["instances"].as_array().unwrap())
}

fn text_values(list: &[Value]) -> Vec<String> {
    list.iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn native_rule(rule: &dyn Fn(&str) -> Value) -> OutlierDetection {
    let number = |key: &str| u32::try_from(rule(key).as_u64().unwrap()).unwrap();
    let percent = |key: &str| u8::try_from(number(key)).unwrap();
    let time = |key: &str| Duration::from_millis(number(key).into());
    OutlierDetection {
        failures: FailureClasses { server_errors: true, ..FailureClasses::default() },
        window: time("windowMs"),
        buckets: percent("buckets"),
        failure_rate: Some(FailureRate {
            percent: percent("percent"),
            min_requests: number("requestsMin"),
        }),
        consecutive_failures: rule("consecutiveFailures")
            .as_u64()
            .map(|count| u32::try_from(count).unwrap()),
        max_ejection_percent: percent("maxEjectionPercent"),
        min_healthy: number("minHealthy"),
        ejection_time: EjectionTime {
            base: time("baseEjectionMs"),
            max: time("maxEjectionMs"),
            jitter_percent: percent("ejectionJitterPercent"),
        },
        probe_requests: number("probeRequests"),
        health_check: rule("checkFailures").is_u64().then(|| {
            Box::new(HealthCheck {
                probe: HealthProbe::Http { path: "/".to_owned() },
                interval: Duration::from_secs(1),
                timeout: Duration::from_secs(1),
                failures: number("checkFailures"),
                successes: number("checkSuccesses"),
            })
        }),
    }
}

fn sermant_rule(field: &dyn Fn(&str) -> Value) -> SermantConfig {
    let time = |key: &str| Duration::from_millis(field(key).as_u64().unwrap());
    let ppm = |share: &Value| (share.as_f64().unwrap() * 1e6).round() as u32;
    let rules = field("rules");
    let rules = rules.as_array().unwrap().iter().map(|rule| {
        let service_rule = SermantRule {
            scale_up_limit_ppm: ppm(&rule["scaleUpLimit"]),
            min_instances: u32::try_from(rule["minInstanceNum"].as_u64().unwrap()).unwrap(),
            error_rate_ppm: ppm(&rule["errorRate"]),
        };
        (rule["key"].as_str().unwrap().to_owned(), service_rule)
    });
    let (default_rules, service_rules): (Vec<_>, Vec<_>) =
        rules.partition(|(key, _)| key == "default-rule");
    SermantConfig {
        common: SermantCommon {
            failures: FailureClasses { timeout: true, ..FailureClasses::default() },
            expire: time("expireTime"),
            recovery: time("recoveryTime"),
            window: time("windowsTime"),
            windows: u32::try_from(field("windowsNum").as_u64().unwrap()).unwrap(),
        },
        rules: service_rules
            .into_iter()
            .map(|(key, rule)| (Name::new(&key).unwrap(), rule))
            .collect(),
        default_rule: default_rules.first().map(|(_, rule)| *rule),
    }
}

fn read_vectors(file: &str) -> Value {
    let path = format!("{}/../../tests/vectors/removal/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

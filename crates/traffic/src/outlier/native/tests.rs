//! Tests of the native algorithm that the vectors do not cover: changes of endpoints, and random jitter.

use leno_model::{EjectionTime, FailureRate, HealthCheck, HealthProbe};

use super::super::{EndpointResult, FailureEvidence, classify_result};
use super::*;

fn ejection_rule() -> OutlierDetection {
    OutlierDetection {
        failures: FailureClasses { server_errors: true, ..FailureClasses::default() },
        window: Duration::from_secs(10),
        buckets: 10,
        failure_rate: Some(FailureRate { percent: 50, min_requests: 1 }),
        consecutive_failures: None,
        max_ejection_percent: 50,
        min_healthy: 1,
        ejection_time: EjectionTime {
            base: Duration::from_secs(30),
            max: Duration::from_secs(300),
            jitter_percent: 50,
        },
        probe_requests: 1,
        health_check: None,
    }
}

fn failed_request(now: u64, probe: bool) -> RequestResult {
    RequestResult { failed: true, probe, now: Duration::from_secs(now), random: 0 }
}

/// Returns a detector of two endpoints, the first ejected since second 1.
fn ejected_detector() -> (NativeDetector, Vec<EjectionEvent>) {
    let mut detector = NativeDetector::new(ejection_rule(), 2);
    let mut events = Vec::new();
    detector.record_result(0, failed_request(0, false), &mut events);
    detector.advance_time(Duration::from_secs(1), 0, &mut events);
    assert_eq!(detector.endpoint_state(0), EjectionState::Ejected);
    (detector, events)
}

#[test]
fn jitter_shortens_an_ejection_by_at_most_its_share() {
    for (random, expected_ms) in [(0, 30_000), (u64::MAX / 2, 22_500), (u64::MAX, 15_000)] {
        let mut detector = NativeDetector::new(ejection_rule(), 2);
        let mut events = Vec::new();
        detector.record_result(0, failed_request(0, false), &mut events);
        detector.advance_time(Duration::from_secs(1), random, &mut events);
        let [
            EjectionEvent::Ejected {
                slot: 0,
                cause: EjectionCause::FailureRate,
                pause: Some(pause),
            },
        ] = events[..]
        else {
            panic!("{events:?}");
        };
        assert_eq!((pause.as_secs_f64() * 1e3).round() as u64, expected_ms, "{random}");
    }
}

#[test]
fn a_failing_endpoint_within_the_limits_is_reported_until_its_window_ends() {
    let (mut detector, mut events) = ejected_detector();
    detector.record_result(1, failed_request(2, false), &mut events);
    assert!(
        !detector.is_ejection_prevented(1),
        "the failure rate is evaluated at the end of the bucket"
    );
    detector.advance_time(Duration::from_secs(3), 0, &mut events);
    assert_eq!(detector.endpoint_state(1), EjectionState::InService);
    assert_eq!([0, 1, 7].map(|slot| detector.is_ejection_prevented(slot)), [false, true, false]);
    for second in 4..=14 {
        detector.advance_time(Duration::from_secs(second), 0, &mut events);
    }
    assert!(!detector.is_ejection_prevented(1), "the failures are outside the window");
    // Consecutive failures are evaluated at once, and a success resets them.
    let rule = OutlierDetection {
        failure_rate: None,
        consecutive_failures: Some(2),
        min_healthy: 2,
        ..ejection_rule()
    };
    let mut detector = NativeDetector::new(rule, 2);
    for (second, is_ejection_prevented) in [(0, false), (0, true), (1, true)] {
        detector.record_result(0, failed_request(second, false), &mut events);
        assert_eq!(detector.is_ejection_prevented(0), is_ejection_prevented);
    }
    detector.record_result(
        0,
        RequestResult { failed: false, ..failed_request(1, false) },
        &mut events,
    );
    detector.advance_time(Duration::from_secs(2), 0, &mut events);
    assert!(!detector.is_ejection_prevented(0));
    // No results for longer than a window.
    detector.record_result(0, failed_request(2, false), &mut events);
    detector.record_result(0, failed_request(2, false), &mut events);
    assert!(detector.is_ejection_prevented(0));
    detector.advance_time(Duration::from_secs(30), 0, &mut events);
    assert!(!detector.is_ejection_prevented(0));
}

#[test]
fn failed_checks_of_an_endpoint_within_the_limits_are_reported() {
    let mut detector = detector_with_unhealthy_endpoints();
    assert_eq!(
        [0, 1, 2, 3].map(|slot| detector.is_ejection_prevented(slot)),
        [false, false, true, true]
    );
    detector.record_check(2, FailureEvidence::Success, Duration::from_secs(2), &mut Vec::new());
    assert!(!detector.is_ejection_prevented(2));
}

#[test]
fn evidence_moves_with_its_endpoint() {
    let (mut detector, _) = ejected_detector();
    detector.update_endpoints(&[None, Some(1), Some(0)]);
    let states = [0, 1, 2].map(|slot| detector.endpoint_state(slot));
    assert_eq!(
        states,
        [EjectionState::InService, EjectionState::InService, EjectionState::Ejected]
    );
    detector.update_endpoints(&[Some(1)]);
    assert_eq!(detector.endpoint_state(0), EjectionState::InService);
    assert_eq!(
        detector.endpoint_state(7),
        EjectionState::InService,
        "an unknown endpoint is in service"
    );
}

#[test]
fn one_probe_runs_at_a_time_and_an_inconclusive_probe_is_repeated() {
    let (mut detector, mut events) = ejected_detector();
    detector.advance_time(Duration::from_secs(31), 0, &mut events);
    assert_eq!(detector.endpoint_state(0), EjectionState::Probe);
    assert!(detector.start_request(0));
    assert_eq!(detector.endpoint_state(0), EjectionState::Ejected);
    assert!(!detector.start_request(0));
    detector.release_request(0);
    assert_eq!(detector.endpoint_state(0), EjectionState::Probe);
    // A request from before the ejection ends now.
    detector.record_result(0, failed_request(32, false), &mut events);
    assert_eq!(detector.endpoint_state(0), EjectionState::Probe);
    assert!(detector.start_request(0));
    detector.record_result(0, failed_request(32, true), &mut events);
    assert_eq!(detector.endpoint_state(0), EjectionState::Ejected);
    assert_eq!(events.len(), 2);
}

#[test]
fn an_error_of_a_class_that_does_not_count_is_a_success() {
    let response = |status| EndpointResult::Response { status, grpc: None };
    assert_eq!(classify_result(&ejection_rule().failures, response(500)), FailureEvidence::Failure);
    assert_eq!(classify_result(&ejection_rule().failures, response(404)), FailureEvidence::Success);
}

/// Returns a detector of four endpoints, the first two ejected by health checks.
fn detector_with_unhealthy_endpoints() -> NativeDetector {
    let probe = HealthProbe::Http { path: "/".to_owned() };
    let time = Duration::from_secs(1);
    let check = HealthCheck { probe, interval: time, timeout: time, failures: 1, successes: 2 };
    let mut detector = NativeDetector::new(
        OutlierDetection { health_check: Some(Box::new(check)), ..ejection_rule() },
        4,
    );
    let mut events = Vec::new();
    for slot in 0..4 {
        detector.record_check(slot, FailureEvidence::Failure, time, &mut events);
    }
    let ejected =
        |slot| EjectionEvent::Ejected { slot, cause: EjectionCause::HealthCheck, pause: None };
    assert_eq!(events, [ejected(0), ejected(1)]);
    detector
}

#[test]
fn unhealthy_endpoints_return_when_the_limits_require_it() {
    let mut detector = detector_with_unhealthy_endpoints();
    detector.update_endpoints(&[Some(0), Some(1)]);
    assert_eq!(
        [0, 1].map(|slot| detector.endpoint_state(slot)),
        [EjectionState::InService, EjectionState::Ejected]
    );
    let mut events = Vec::new();
    detector.record_check(0, FailureEvidence::Failure, Duration::from_secs(2), &mut events);
    assert_eq!(events, [], "the limits prevent another ejection");
    detector.update_endpoints(&[Some(0), Some(1), None, None]);
    detector.record_check(0, FailureEvidence::Failure, Duration::from_secs(3), &mut events);
    assert_eq!(
        events,
        [EjectionEvent::Ejected { slot: 0, cause: EjectionCause::HealthCheck, pause: None }]
    );
}

#[test]
fn an_ejected_endpoint_with_inconclusive_checks_returns() {
    let mut detector = detector_with_unhealthy_endpoints();
    let (now, mut events) = (Duration::from_secs(2), Vec::new());
    detector.record_check(0, FailureEvidence::Unknown, now, &mut events);
    detector.record_check(3, FailureEvidence::Unknown, now, &mut events);
    assert_eq!(events, []);
    detector.record_check(0, FailureEvidence::Unknown, now, &mut events);
    assert_eq!(events, [EjectionEvent::Unejected { slot: 0 }]);
}

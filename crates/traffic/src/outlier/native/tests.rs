//! Tests beyond the vectors: changes of endpoints, and randomness.

use leno_model::{EjectionTime, FailureRate, HealthCheck, HealthProbe};

use super::super::{EndpointResult, FailureEvidence, classify_ending};
use super::*;

fn ejection_rule() -> OutlierDetection {
    OutlierDetection {
        failures: FailureClasses { server_errors: true, ..FailureClasses::default() },
        window: Duration::from_secs(10),
        buckets: 10,
        failure_rate: Some(FailureRate { percent: 50, requests_min: 1 }),
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
    RequestResult { failed: true, probe, now: Duration::from_secs(now), draw: 0 }
}

/// Two endpoints, the first ejected since second 1.
fn one_out() -> (NativeDetector, Vec<EjectionEvent>) {
    let mut outliers = NativeDetector::new(ejection_rule(), 2);
    let mut events = Vec::new();
    outliers.record_outcome(0, failed_request(0, false), &mut events);
    outliers.advance_time(Duration::from_secs(1), 0, &mut events);
    assert_eq!(outliers.endpoint_state(0), EjectionState::Ejected);
    (outliers, events)
}

#[test]
fn chance_takes_no_more_than_its_share_off_a_pause() {
    for (draw, expected_ms) in [(0, 30_000), (u64::MAX / 2, 22_500), (u64::MAX, 15_000)] {
        let mut outliers = NativeDetector::new(ejection_rule(), 2);
        let mut events = Vec::new();
        outliers.record_outcome(0, failed_request(0, false), &mut events);
        outliers.advance_time(Duration::from_secs(1), draw, &mut events);
        let [EjectionEvent::Ejected { slot: 0, cause: EjectionCause::Rate, pause: Some(pause) }] =
            events[..]
        else {
            panic!("{events:?}");
        };
        assert_eq!((pause.as_secs_f64() * 1e3).round() as u64, expected_ms, "{draw}");
    }
}

#[test]
fn who_stays_for_the_bounds_alone_is_known_until_its_window_is_over() {
    let (mut outliers, mut events) = one_out();
    outliers.record_outcome(1, failed_request(2, false), &mut events);
    assert!(!outliers.is_spared(1), "it was not judged yet");
    outliers.advance_time(Duration::from_secs(3), 0, &mut events);
    assert_eq!(outliers.endpoint_state(1), EjectionState::InService);
    assert_eq!([0, 1, 7].map(|slot| outliers.is_spared(slot)), [false, true, false]);
    for second in 4..=14 {
        outliers.advance_time(Duration::from_secs(second), 0, &mut events);
    }
    assert!(!outliers.is_spared(1), "what failed has left the window");
    // Consecutive failures are evaluated at once, and a success resets them.
    let rule = OutlierDetection {
        failure_rate: None,
        consecutive_failures: Some(2),
        min_healthy: 2,
        ..ejection_rule()
    };
    let mut outliers = NativeDetector::new(rule, 2);
    for (second, is_spared) in [(0, false), (0, true), (1, true)] {
        outliers.record_outcome(0, failed_request(second, false), &mut events);
        assert_eq!(outliers.is_spared(0), is_spared);
    }
    outliers.record_outcome(
        0,
        RequestResult { failed: false, ..failed_request(1, false) },
        &mut events,
    );
    outliers.advance_time(Duration::from_secs(2), 0, &mut events);
    assert!(!outliers.is_spared(0));
    // No results for longer than a window.
    outliers.record_outcome(0, failed_request(2, false), &mut events);
    outliers.record_outcome(0, failed_request(2, false), &mut events);
    assert!(outliers.is_spared(0));
    outliers.advance_time(Duration::from_secs(30), 0, &mut events);
    assert!(!outliers.is_spared(0));
}

#[test]
fn checks_that_fail_for_somebody_who_must_stay_are_known() {
    let mut outliers = two_ill();
    assert_eq!([0, 1, 2, 3].map(|slot| outliers.is_spared(slot)), [false, false, true, true]);
    outliers.record_check(2, FailureEvidence::No, Duration::from_secs(2), &mut Vec::new());
    assert!(!outliers.is_spared(2));
}

#[test]
fn what_is_known_moves_with_its_endpoint() {
    let (mut outliers, _) = one_out();
    outliers.update_endpoints(&[None, Some(1), Some(0)]);
    let standings = [0, 1, 2].map(|slot| outliers.endpoint_state(slot));
    assert_eq!(
        standings,
        [EjectionState::InService, EjectionState::InService, EjectionState::Ejected]
    );
    outliers.update_endpoints(&[Some(1)]);
    assert_eq!(outliers.endpoint_state(0), EjectionState::InService);
    assert_eq!(outliers.endpoint_state(7), EjectionState::InService, "nobody knows it");
}

#[test]
fn only_one_probe_is_under_way_and_one_that_proves_nothing_is_repeated() {
    let (mut outliers, mut events) = one_out();
    outliers.advance_time(Duration::from_secs(31), 0, &mut events);
    assert_eq!(outliers.endpoint_state(0), EjectionState::Probe);
    assert!(outliers.start_request(0));
    assert_eq!(outliers.endpoint_state(0), EjectionState::Ejected);
    assert!(!outliers.start_request(0));
    outliers.release_request(0);
    assert_eq!(outliers.endpoint_state(0), EjectionState::Probe);
    // A request from before the ejection ends now.
    outliers.record_outcome(0, failed_request(32, false), &mut events);
    assert_eq!(outliers.endpoint_state(0), EjectionState::Probe);
    assert!(outliers.start_request(0));
    outliers.record_outcome(0, failed_request(32, true), &mut events);
    assert_eq!(outliers.endpoint_state(0), EjectionState::Ejected);
    assert_eq!(events.len(), 2);
}

#[test]
fn a_success_of_the_class_that_does_not_count_is_one() {
    let answered = |status| EndpointResult::Response { status, grpc: None };
    assert_eq!(classify_ending(&ejection_rule().failures, answered(500)), FailureEvidence::Yes);
    assert_eq!(classify_ending(&ejection_rule().failures, answered(404)), FailureEvidence::No);
}

/// Four endpoints, the first two ejected by health checks.
fn two_ill() -> NativeDetector {
    let probe = HealthProbe::Http { path: "/".to_owned() };
    let time = Duration::from_secs(1);
    let check = HealthCheck { probe, interval: time, timeout: time, failures: 1, successes: 2 };
    let mut outliers = NativeDetector::new(
        OutlierDetection { health_check: Some(Box::new(check)), ..ejection_rule() },
        4,
    );
    let mut events = Vec::new();
    for slot in 0..4 {
        outliers.record_check(slot, FailureEvidence::Yes, time, &mut events);
    }
    let ejected = |slot| EjectionEvent::Ejected { slot, cause: EjectionCause::Check, pause: None };
    assert_eq!(events, [ejected(0), ejected(1)]);
    outliers
}

#[test]
fn when_the_well_ones_leave_as_many_of_the_ill_are_back_as_must_stay() {
    let mut outliers = two_ill();
    outliers.update_endpoints(&[Some(0), Some(1)]);
    assert_eq!(
        [0, 1].map(|slot| outliers.endpoint_state(slot)),
        [EjectionState::InService, EjectionState::Ejected]
    );
    let mut events = Vec::new();
    outliers.record_check(0, FailureEvidence::Yes, Duration::from_secs(2), &mut events);
    assert_eq!(events, [], "there is no room");
    outliers.update_endpoints(&[Some(0), Some(1), None, None]);
    outliers.record_check(0, FailureEvidence::Yes, Duration::from_secs(3), &mut events);
    assert_eq!(
        events,
        [EjectionEvent::Ejected { slot: 0, cause: EjectionCause::Check, pause: None }]
    );
}

#[test]
fn who_is_out_and_cannot_be_asked_any_more_comes_back() {
    let mut outliers = two_ill();
    let (now, mut events) = (Duration::from_secs(2), Vec::new());
    outliers.record_check(0, FailureEvidence::Unknown, now, &mut events);
    outliers.record_check(3, FailureEvidence::Unknown, now, &mut events);
    assert_eq!(events, []);
    outliers.record_check(0, FailureEvidence::Unknown, now, &mut events);
    assert_eq!(events, [EjectionEvent::Unejected { slot: 0 }]);
}

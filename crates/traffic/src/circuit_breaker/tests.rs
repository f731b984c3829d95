//! Tests of circuits: examples, and a comparison with an evaluation of the full history of requests.

use leno_model::{FailureClasses, SlowRequests};
use proptest::prelude::*;

use super::*;

const fn at_second(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn trip_rule() -> TripConditions {
    TripConditions {
        failures: FailureClasses { server_errors: true, ..FailureClasses::default() },
        window: at_second(10),
        buckets: 10,
        min_requests: 4,
        failure_threshold: RequestThreshold { share_ppm: Some(500_000), count: None },
        consecutive_failures: None,
        slow_requests: None,
        open_duration: at_second(20),
        half_open_requests: 2,
    }
}

const SUCCESS: RequestOutcome =
    RequestOutcome { failed: false, duration: Duration::from_millis(10) };
const FAILURE: RequestOutcome =
    RequestOutcome { failed: true, duration: Duration::from_millis(10) };

fn run_request(
    circuit: &mut Circuit,
    outcome: RequestOutcome,
    now: Duration,
) -> Option<Transition> {
    let ticket = circuit.admit_request(now).expect("the circuit admits requests");
    circuit.record_result(ticket, outcome, now)
}

fn opened_by(trigger: Trigger) -> Option<Transition> {
    Some(Transition::Opened(trigger))
}

#[test]
fn a_circuit_opens_by_its_failure_rate_and_closes_after_probes() {
    let mut circuit = Circuit::new(trip_rule());
    for outcome in [SUCCESS, SUCCESS, FAILURE] {
        assert_eq!(run_request(&mut circuit, outcome, at_second(0)), None);
    }
    assert_eq!(
        run_request(&mut circuit, FAILURE, at_second(1)),
        opened_by(Trigger::FailureThreshold)
    );
    assert_eq!(circuit.admit_request(at_second(1)), None);
    assert_eq!(circuit.admit_request(at_second(20)), None, "the open duration has not passed");
    let first_ticket = circuit.admit_request(at_second(21)).unwrap();
    let second_ticket = circuit.admit_request(at_second(21)).unwrap();
    assert_eq!(circuit.admit_request(at_second(21)), None, "two probes are permitted");
    assert_eq!(circuit.record_result(first_ticket, SUCCESS, at_second(21)), None);
    assert_eq!(circuit.admit_request(at_second(21)), None);
    assert_eq!(
        circuit.record_result(second_ticket, SUCCESS, at_second(21)),
        Some(Transition::Closed)
    );
    assert_eq!(
        run_request(&mut circuit, FAILURE, at_second(21)),
        None,
        "earlier failures are not counted"
    );
}

#[test]
fn a_failed_probe_reopens_the_circuit_and_a_released_one_frees_its_slot() {
    let mut circuit = Circuit::new(TripConditions {
        consecutive_failures: Some(2),
        half_open_requests: 1,
        ..trip_rule()
    });
    assert_eq!(run_request(&mut circuit, FAILURE, at_second(0)), None);
    assert_eq!(
        run_request(&mut circuit, FAILURE, at_second(0)),
        opened_by(Trigger::ConsecutiveFailures)
    );
    assert_eq!(run_request(&mut circuit, FAILURE, at_second(20)), opened_by(Trigger::Probe));
    assert_eq!(circuit.admit_request(at_second(39)), None);
    let probe = circuit.admit_request(at_second(40)).unwrap();
    assert_eq!(circuit.admit_request(at_second(40)), None);
    circuit.release_ticket(probe);
    assert_eq!(run_request(&mut circuit, SUCCESS, at_second(40)), Some(Transition::Closed));
}

#[test]
fn a_probe_without_end_blocks_others_for_the_open_duration_only() {
    let mut circuit = Circuit::new(TripConditions {
        consecutive_failures: Some(1),
        half_open_requests: 1,
        ..trip_rule()
    });
    assert_eq!(
        run_request(&mut circuit, FAILURE, at_second(0)),
        opened_by(Trigger::ConsecutiveFailures)
    );
    let stream = circuit.admit_request(at_second(20)).unwrap();
    assert_eq!(circuit.admit_request(at_second(39)), None);
    assert_eq!(run_request(&mut circuit, SUCCESS, at_second(40)), Some(Transition::Closed));
    assert_eq!(
        circuit.record_result(stream, FAILURE, at_second(41)),
        None,
        "the ticket is from an earlier epoch"
    );
}

#[test]
fn requests_started_before_a_transition_are_ignored() {
    let mut circuit = Circuit::new(TripConditions {
        consecutive_failures: Some(1),
        half_open_requests: 1,
        ..trip_rule()
    });
    let tickets: Vec<CircuitTicket> =
        (0..3).map(|_| circuit.admit_request(at_second(0)).unwrap()).collect();
    assert_eq!(
        circuit.record_result(tickets[0], FAILURE, at_second(0)),
        opened_by(Trigger::ConsecutiveFailures)
    );
    assert_eq!(circuit.record_result(tickets[1], SUCCESS, at_second(1)), None);
    let probe = circuit.admit_request(at_second(20)).unwrap();
    assert_eq!(circuit.record_result(tickets[2], FAILURE, at_second(20)), None);
    circuit.release_ticket(tickets[2]);
    assert_eq!(circuit.admit_request(at_second(20)), None, "the probe is still in progress");
    assert_eq!(circuit.record_result(probe, SUCCESS, at_second(20)), Some(Transition::Closed));
}

#[test]
fn slow_responses_open_the_circuit_by_share_or_number() {
    let circuit_for_slow = |share_ppm, number| {
        let slow_requests = SlowRequests {
            min_duration: at_second(2),
            threshold: RequestThreshold { share_ppm, count: number },
        };
        Circuit::new(TripConditions {
            slow_requests: Some(slow_requests),
            failure_threshold: RequestThreshold::default(),
            half_open_requests: 1,
            ..trip_rule()
        })
    };
    let slow_outcome = RequestOutcome { failed: false, duration: at_second(2) };
    let mut by_share = circuit_for_slow(Some(750_000), None);
    for outcome in [slow_outcome, slow_outcome, SUCCESS] {
        assert_eq!(run_request(&mut by_share, outcome, at_second(0)), None);
    }
    assert_eq!(
        run_request(&mut by_share, slow_outcome, at_second(0)),
        opened_by(Trigger::SlowRequests)
    );
    assert_eq!(
        run_request(&mut by_share, slow_outcome, at_second(20)),
        opened_by(Trigger::Probe),
        "a slow probe counts as a failure"
    );
    let mut by_number = circuit_for_slow(None, Some(2));
    for outcome in [slow_outcome, slow_outcome, SUCCESS] {
        assert_eq!(
            run_request(&mut by_number, outcome, at_second(0)),
            None,
            "fewer requests than the minimum do not open the circuit"
        );
    }
    assert_eq!(
        run_request(&mut by_number, SUCCESS, at_second(0)),
        opened_by(Trigger::SlowRequests)
    );
}

#[test]
fn results_outside_the_window_do_not_count() {
    let mut circuit = Circuit::new(trip_rule());
    for _ in 0..3 {
        assert_eq!(run_request(&mut circuit, FAILURE, at_second(0)), None);
    }
    for _ in 0..3 {
        assert_eq!(run_request(&mut circuit, SUCCESS, at_second(10)), None);
    }
    assert_eq!(
        run_request(&mut circuit, FAILURE, at_second(10)),
        None,
        "one failure of four requests is below the threshold"
    );
}

proptest! {
    /// The circuit opens and closes as an evaluation of the full history requires.
    #[test]
    fn the_circuit_agrees_with_a_list_of_all_requests(
        requests in prop::collection::vec((0..700_u64, any::<bool>(), any::<bool>()), 1..200),
        min_requests in 1..8_u32,
        share in prop::option::of(1..1_000_000_u32),
        number in prop::option::of(1..6_u32),
        consecutive_failures in prop::option::of(1..6_u32),
    ) {
        let slow_threshold = Duration::from_millis(50);
        let too_many = RequestThreshold { share_ppm: share, count: number };
        let rule = TripConditions {
            min_requests,
            failure_threshold: too_many,
            consecutive_failures,
            slow_requests: Some(SlowRequests { min_duration: slow_threshold, threshold: RequestThreshold { share_ppm: share, count: None } }),
            window: at_second(1),
            buckets: 10,
            open_duration: at_second(1),
            half_open_requests: 1,
            ..trip_rule()
        };
        let mut circuit = Circuit::new(rule);
        let mut history: Vec<(Duration, bool, bool)> = Vec::new();
        let mut open_until: Option<Duration> = None;
        let mut now = Duration::ZERO;
        for (pause, failed, slow) in requests {
            now += Duration::from_millis(pause);
            let duration = if slow { slow_threshold } else { Duration::ZERO };
            let ticket = circuit.admit_request(now);
            prop_assert_eq!(ticket.is_none(), open_until.is_some_and(|until| now < until));
            let Some(ticket) = ticket else { continue };
            let transition = circuit.record_result(ticket, RequestOutcome { failed, duration }, now);
            if open_until.is_some() {
                open_until = (failed || slow).then(|| now + at_second(1));
                history.clear();
                prop_assert_eq!(transition == Some(Transition::Closed), open_until.is_none());
                continue;
            }
            history.push((now, failed, slow));
            // The window covers this step of 100 ms and the nine before it.
            let step = |time: Duration| time.as_millis() / 100;
            let in_window: Vec<_> = history.iter().filter(|(time, ..)| step(*time) + 10 > step(now)).collect();
            let total = in_window.len() as f64;
            let failed_count = in_window.iter().filter(|(_, failed, _)| *failed).count() as f64;
            let slow_count = in_window.iter().filter(|(.., slow)| *slow).count() as f64;
            let consecutive = history.iter().rev().take_while(|(_, failed, _)| *failed).count();
            let exceeds_share = |count: f64| {
                count > 0.0 && share.is_some_and(|ppm| count * 1e6 >= total * f64::from(ppm))
            };
            let exceeds_number = failed_count > 0.0 && number.is_some_and(|number| failed_count >= f64::from(number));
            let has_minimum = total >= f64::from(min_requests);
            let is_opening = consecutive_failures.is_some_and(|limit| consecutive >= limit as usize)
                || has_minimum && (exceeds_share(failed_count) || exceeds_number || exceeds_share(slow_count));
            prop_assert_eq!(transition.is_some(), is_opening);
            open_until = is_opening.then(|| now + at_second(1));
        }
    }
}

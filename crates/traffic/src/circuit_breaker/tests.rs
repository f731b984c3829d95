//! Tests of circuits, by example and against a full history.

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
        requests_min: 4,
        failed: FailureThreshold { share_ppm: Some(500_000), number: None },
        consecutive_failures: None,
        slow: None,
        open_duration: at_second(20),
        half_open_requests: 2,
    }
}

const WELL: RequestOutcome = RequestOutcome { failed: false, duration: Duration::from_millis(10) };
const FAILED: RequestOutcome = RequestOutcome { failed: true, duration: Duration::from_millis(10) };

fn run_request(circuit: &mut Circuit, shown: RequestOutcome, now: Duration) -> Option<Transition> {
    let ticket = circuit.admit_request(now).expect("it lets requests through");
    circuit.record_result(ticket, shown, now)
}

fn opened_by(trigger: Trigger) -> Option<Transition> {
    Some(Transition::Opened(trigger))
}

#[test]
fn opens_by_the_share_of_failures_and_closes_after_its_probes() {
    let mut circuit = Circuit::new(trip_rule());
    for shown in [WELL, WELL, FAILED] {
        assert_eq!(run_request(&mut circuit, shown, at_second(0)), None);
    }
    assert_eq!(run_request(&mut circuit, FAILED, at_second(1)), opened_by(Trigger::Failed));
    assert_eq!(circuit.admit_request(at_second(1)), None);
    assert_eq!(circuit.admit_request(at_second(20)), None, "20 s since it opened are not over");
    let first = circuit.admit_request(at_second(21)).unwrap();
    let second = circuit.admit_request(at_second(21)).unwrap();
    assert_eq!(circuit.admit_request(at_second(21)), None, "two probes are permitted");
    assert_eq!(circuit.record_result(first, WELL, at_second(21)), None);
    assert_eq!(circuit.admit_request(at_second(21)), None);
    assert_eq!(circuit.record_result(second, WELL, at_second(21)), Some(Transition::Closed));
    assert_eq!(run_request(&mut circuit, FAILED, at_second(21)), None, "with a clean slate");
}

#[test]
fn a_failed_probe_opens_it_again_and_one_that_proves_nothing_makes_room() {
    let mut circuit = Circuit::new(TripConditions {
        consecutive_failures: Some(2),
        half_open_requests: 1,
        ..trip_rule()
    });
    assert_eq!(run_request(&mut circuit, FAILED, at_second(0)), None);
    assert_eq!(run_request(&mut circuit, FAILED, at_second(0)), opened_by(Trigger::Consecutive));
    assert_eq!(run_request(&mut circuit, FAILED, at_second(20)), opened_by(Trigger::Probe));
    assert_eq!(circuit.admit_request(at_second(39)), None);
    let probe = circuit.admit_request(at_second(40)).unwrap();
    assert_eq!(circuit.admit_request(at_second(40)), None);
    circuit.release_ticket(probe);
    assert_eq!(run_request(&mut circuit, WELL, at_second(40)), Some(Transition::Closed));
}

#[test]
fn a_probe_that_does_not_end_is_waited_for_no_longer_than_it_was_open() {
    let mut circuit = Circuit::new(TripConditions {
        consecutive_failures: Some(1),
        half_open_requests: 1,
        ..trip_rule()
    });
    assert_eq!(run_request(&mut circuit, FAILED, at_second(0)), opened_by(Trigger::Consecutive));
    let stream = circuit.admit_request(at_second(20)).unwrap();
    assert_eq!(circuit.admit_request(at_second(39)), None);
    assert_eq!(run_request(&mut circuit, WELL, at_second(40)), Some(Transition::Closed));
    assert_eq!(circuit.record_result(stream, FAILED, at_second(41)), None, "it is of another time");
}

#[test]
fn what_began_before_it_opened_decides_nothing_after() {
    let mut circuit = Circuit::new(TripConditions {
        consecutive_failures: Some(1),
        half_open_requests: 1,
        ..trip_rule()
    });
    let early: Vec<CircuitTicket> =
        (0..3).map(|_| circuit.admit_request(at_second(0)).unwrap()).collect();
    assert_eq!(
        circuit.record_result(early[0], FAILED, at_second(0)),
        opened_by(Trigger::Consecutive)
    );
    assert_eq!(circuit.record_result(early[1], WELL, at_second(1)), None);
    let probe = circuit.admit_request(at_second(20)).unwrap();
    assert_eq!(circuit.record_result(early[2], FAILED, at_second(20)), None);
    circuit.release_ticket(early[2]);
    assert_eq!(circuit.admit_request(at_second(20)), None, "the probe is still under way");
    assert_eq!(circuit.record_result(probe, WELL, at_second(20)), Some(Transition::Closed));
}

#[test]
fn slow_answers_open_it_by_share_or_by_number() {
    let slow = |share_ppm, number| {
        let slow = SlowRequests {
            threshold: at_second(2),
            too_many: FailureThreshold { share_ppm, number },
        };
        Circuit::new(TripConditions {
            slow: Some(slow),
            failed: FailureThreshold::default(),
            half_open_requests: 1,
            ..trip_rule()
        })
    };
    let late = RequestOutcome { failed: false, duration: at_second(2) };
    let mut by_share = slow(Some(750_000), None);
    for shown in [late, late, WELL] {
        assert_eq!(run_request(&mut by_share, shown, at_second(0)), None);
    }
    assert_eq!(run_request(&mut by_share, late, at_second(0)), opened_by(Trigger::Slow));
    assert_eq!(
        run_request(&mut by_share, late, at_second(20)),
        opened_by(Trigger::Probe),
        "a slow probe fails"
    );
    let mut by_number = slow(None, Some(2));
    for shown in [late, late, WELL] {
        assert_eq!(
            run_request(&mut by_number, shown, at_second(0)),
            None,
            "fewer than four prove nothing"
        );
    }
    assert_eq!(run_request(&mut by_number, WELL, at_second(0)), opened_by(Trigger::Slow));
}

#[test]
fn what_left_the_window_does_not_count() {
    let mut circuit = Circuit::new(trip_rule());
    for _ in 0..3 {
        assert_eq!(run_request(&mut circuit, FAILED, at_second(0)), None);
    }
    for _ in 0..3 {
        assert_eq!(run_request(&mut circuit, WELL, at_second(10)), None);
    }
    assert_eq!(run_request(&mut circuit, FAILED, at_second(10)), None, "one of four");
}

proptest! {
    /// Compared with the full history.
    #[test]
    fn is_what_a_list_of_all_requests_says(
        asked in prop::collection::vec((0..700_u64, any::<bool>(), any::<bool>()), 1..200),
        min in 1..8_u32,
        share in prop::option::of(1..1_000_000_u32),
        number in prop::option::of(1..6_u32),
        consecutive_failures in prop::option::of(1..6_u32),
    ) {
        let from = Duration::from_millis(50);
        let too_many = FailureThreshold { share_ppm: share, number };
        let rule = TripConditions {
            requests_min: min,
            failed: too_many,
            consecutive_failures,
            slow: Some(SlowRequests { threshold: from, too_many: FailureThreshold { share_ppm: share, number: None } }),
            window: at_second(1),
            buckets: 10,
            open_duration: at_second(1),
            half_open_requests: 1,
            ..trip_rule()
        };
        let mut circuit = Circuit::new(rule);
        let mut list: Vec<(Duration, bool, bool)> = Vec::new();
        let mut open_until: Option<Duration> = None;
        let mut now = Duration::ZERO;
        for (pause, failed, slow) in asked {
            now += Duration::from_millis(pause);
            let took = if slow { from } else { Duration::ZERO };
            let ticket = circuit.admit_request(now);
            prop_assert_eq!(ticket.is_none(), open_until.is_some_and(|until| now < until));
            let Some(ticket) = ticket else { continue };
            let transition = circuit.record_result(ticket, RequestOutcome { failed, duration: took }, now);
            if open_until.is_some() {
                open_until = (failed || slow).then(|| now + at_second(1));
                list.clear();
                prop_assert_eq!(transition == Some(Transition::Closed), open_until.is_none());
                continue;
            }
            list.push((now, failed, slow));
            // The window covers this step of 100 ms and the nine before it.
            let step = |time: Duration| time.as_millis() / 100;
            let seen: Vec<_> = list.iter().filter(|(t, ..)| step(*t) + 10 > step(now)).collect();
            let all = seen.len() as f64;
            let bad = seen.iter().filter(|(_, failed, _)| *failed).count() as f64;
            let late = seen.iter().filter(|(.., slow)| *slow).count() as f64;
            let row = list.iter().rev().take_while(|(_, failed, _)| *failed).count();
            let over = |count: f64| {
                count > 0.0 && share.is_some_and(|ppm| count * 1e6 >= all * f64::from(ppm))
            };
            let many = bad > 0.0 && number.is_some_and(|number| bad >= f64::from(number));
            let enough = all >= f64::from(min);
            let opens = consecutive_failures.is_some_and(|limit| row >= limit as usize)
                || enough && (over(bad) || many || over(late));
            prop_assert_eq!(transition.is_some(), opens);
            open_until = opens.then(|| now + at_second(1));
        }
    }
}

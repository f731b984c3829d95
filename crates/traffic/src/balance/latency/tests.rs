//! Tests of the average: increase, decay and overflow.

use proptest::prelude::*;

use super::*;

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns the average latency in milliseconds.
fn average_millis(latency: &EndpointLatency) -> f64 {
    (latency.average >> SCALE_BITS) as f64 / 1000.0
}

fn assert_near(value: f64, expected: f64) {
    assert!((value - expected).abs() <= expected * 0.02 + 0.01, "{value} is not {expected}");
}

#[test]
fn a_higher_sample_replaces_the_average_and_a_lower_one_decays_it() {
    let mut latency = EndpointLatency::default();
    latency.record_response(millis(10), millis(0));
    assert_near(average_millis(&latency), 10.0);
    latency.record_response(millis(100), millis(1));
    assert_near(average_millis(&latency), 100.0);
    latency.record_response(millis(10), millis(1));
    assert_near(average_millis(&latency), 100.0);
    // After ten seconds 1/e of the excess is left, after one response or ten thousand.
    let expected = 10.0 + 90.0 / std::f64::consts::E;
    let mut once = latency;
    once.record_response(millis(10), millis(10_001));
    assert_near(average_millis(&once), expected);
    for n in 1..=10_000 {
        latency.record_response(millis(10), millis(1 + n));
    }
    assert_near(average_millis(&latency), expected);
}

#[test]
fn decay_approximates_the_exponential_function() {
    for tenths in 0..=600 {
        let actual = decay(1 << 40, tenths * 100_000) as f64 / (1_u64 << 40) as f64;
        let exact = (-(tenths as f64) / 100.0).exp();
        assert!((actual - exact).abs() <= exact * 0.01, "{tenths}: {actual} {exact}");
    }
    assert_eq!(decay(u64::MAX >> 24, u64::MAX), 0);
}

#[test]
fn failures_do_not_lower_the_average_and_count_until_the_next_response() {
    let mut latency = EndpointLatency::default();
    latency.record_failure(millis(1), millis(0));
    assert_eq!(
        (latency.latency_log2(millis(0)), latency.failure_count(millis(0))),
        (None, 1),
        "an endpoint without responses has no latency"
    );
    latency.record_response(millis(40), millis(1));
    assert_eq!(latency.failure_count(millis(1)), 0);
    for n in 0..300 {
        latency.record_failure(millis(1), millis(2 + n));
    }
    assert_near(average_millis(&latency), 40.0);
    assert_eq!(latency.failure_count(millis(302)), u8::MAX);
    assert_eq!(latency.failure_count(millis(301 + 3_000)), u8::MAX >> 3);
    assert_eq!(latency.failure_count(millis(301 + 60_000)), 0);
    // A slow failure counts as slow as well.
    latency.record_failure(millis(500), millis(400));
    assert_near(average_millis(&latency), 500.0);
}

#[test]
fn an_endpoint_without_successful_responses_never_appears_fast() {
    // Only the slow samples repeat; earlier ones are long decayed.
    let recorders: [fn(&mut EndpointLatency, Duration, Duration); 2] =
        [EndpointLatency::record_pending, EndpointLatency::record_failure];
    for record in recorders {
        let mut latency = EndpointLatency::default();
        latency.record_response(millis(5), millis(0));
        for second in 1..=60 {
            record(&mut latency, millis(900), millis(second * 1000));
        }
        assert_near(average_millis(&latency), 900.0);
        assert_eq!(latency.latency_log2(millis(60_500)), Some(19));
    }
}

#[test]
fn decayed_latency_and_failures_do_not_return() {
    let recorders: [fn(&mut EndpointLatency, Duration, Duration); 2] =
        [EndpointLatency::record_pending, EndpointLatency::record_failure];
    for record in recorders {
        let mut latency = EndpointLatency::default();
        latency.record_response(millis(5_000), millis(0));
        for _ in 0..8 {
            latency.record_failure(millis(1), millis(0));
        }
        let decayed = (latency.latency_log2(millis(40_000)), latency.failure_count(millis(40_000)));
        assert_eq!(decayed, (Some(16), 0));
        record(&mut latency, millis(1), millis(40_000));
        assert_eq!(
            latency.latency_log2(millis(40_000)),
            decayed.0,
            "a short latency does not change the average"
        );
        assert!(latency.failure_count(millis(40_000)) <= 1, "earlier failures do not return");
    }
}

#[test]
fn rejections_between_responses_do_not_stop_the_decay() {
    let mut latency = EndpointLatency::default();
    latency.record_response(millis(2_000), millis(0));
    for n in 1..=6_000 {
        match n % 100 {
            0 => latency.record_response(millis(5), millis(10 * n)),
            _ => latency.record_rejection(millis(5), millis(10 * n)),
        }
    }
    // The excess decays by e in each of six intervals of ten seconds: 9.9 ms. The curve follows the exponential
    // function within 0.5 %, over sixty steps.
    let average = average_millis(&latency);
    assert!((9.4..10.4).contains(&average), "{average}");
    // Attempts with unknown results do not keep old failures alive.
    latency.record_failure(millis(1), millis(60_000));
    latency.record_pending(millis(1), millis(60_900));
    assert_eq!(
        (latency.failure_count(millis(60_900)), latency.failure_count(millis(61_100))),
        (1, 0)
    );
}

#[test]
fn a_rejection_is_neither_a_failure_nor_a_fast_response() {
    let mut latency = EndpointLatency::default();
    latency.record_response(millis(40), millis(0));
    latency.record_failure(millis(1), millis(1));
    latency.record_rejection(millis(1), millis(2));
    assert_near(average_millis(&latency), 40.0);
    assert_eq!(latency.failure_count(millis(2)), 0, "a response ends the consecutive failures");
}

#[test]
fn latency_decays_without_requests() {
    let mut latency = EndpointLatency::default();
    latency.record_response(millis(5_000), millis(0));
    let step = |at| latency.latency_log2(millis(at)).unwrap();
    assert_eq!(step(500), step(0));
    assert!(step(10_000) < step(0) && step(120_000) == 10);
}

proptest! {
    #[test]
    fn an_average_lies_between_the_previous_average_and_the_sample(
        samples in prop::collection::vec((any::<bool>(), any::<u64>(), 0..100_000_u64), 1..60),
    ) {
        let mut latency = EndpointLatency::default();
        let mut now = Duration::ZERO;
        for (failed, latency_nanos, after) in samples {
            now += Duration::from_millis(after);
            let (previous, latency_nanos) = (latency, Duration::from_nanos(latency_nanos));
            match failed {
                true => latency.record_failure(latency_nanos, now),
                false => latency.record_response(latency_nanos, now),
            }
            if failed {
                prop_assert!(latency.latency_log2(now) >= previous.latency_log2(now), "failures do not lower the latency");
            } else {
                prop_assert!(latency.average >= previous.average.min(scaled_micros(latency_nanos)));
            }
            prop_assert!(latency.average <= previous.average.max(scaled_micros(latency_nanos)));
            prop_assert!(latency.average <= MAX_LATENCY_MICROS << SCALE_BITS);
            prop_assert!(latency.latency_log2(now).is_none_or(|step| (10..25).contains(&step)));
            prop_assert!(latency.latency_log2(Duration::MAX).is_none_or(|step| step == 10));
        }
    }
}

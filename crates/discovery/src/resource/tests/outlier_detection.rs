//! Tests of outlier detection: random round trips and rejected values.

use leno_model::{
    EjectionTime, FailureClasses, FailureRate, HealthCheck, HealthProbe, OutlierAlgorithm,
    OutlierDetection, PortOutlierDetection, SermantCommon, SermantRemoval, SermantRule,
    ServicePolicyKind, ServicePolicyName,
};
use proptest::prelude::*;

use super::any_name;
use super::circuit_breaker::any_duration;
use crate::proto;
use crate::resource::traffic_policy;

pub(super) fn any_outlier_detection() -> impl Strategy<Value = PortOutlierDetection> {
    let failures = (any::<[bool; 4]>(), prop::collection::btree_set(any::<u8>(), 0..4));
    let failures =
        failures.prop_map(|([connect, timeout, reset, gateway_errors], grpc)| FailureClasses {
            connect,
            timeout,
            reset,
            server_errors: true,
            gateway_errors,
            grpc: grpc.into_iter().collect(),
        });
    let failure_rate = prop::option::of((1..=100u8, 1..u32::MAX));
    let failure_rate = failure_rate.prop_map(|failure_rate| {
        failure_rate.map(|(percent, min_requests)| FailureRate { percent, min_requests })
    });
    let counts = (1..=60u8, prop::option::of(1..u32::MAX), 0..=100u8, 1..u32::MAX, 0..=100u8);
    let check_and_counts = (prop::option::of(any_health_check().prop_map(Box::new)), counts);
    let native = (failures.clone(), any_duration(), any_duration(), failure_rate, check_and_counts)
        .prop_map(|(failures, window, base, failure_rate, (health_check, counts))| {
            let (buckets, consecutive_failures, percent, min_healthy, jitter_percent) = counts;
            OutlierAlgorithm::Native(OutlierDetection {
                failures,
                window,
                buckets,
                failure_rate,
                consecutive_failures,
                max_ejection_percent: percent,
                min_healthy,
                ejection_time: EjectionTime { base, max: base, jitter_percent },
                probe_requests: min_healthy,
                health_check,
            })
        });
    let sermant = (failures, any_duration(), any_duration(), any::<[u32; 3]>()).prop_map(
        |(failures, expire, window, [scale_up_limit_ppm, min_instances, error_rate_ppm])| {
            let common = SermantCommon { failures, expire, recovery: expire, window, windows: 10 };
            let rule = SermantRule { scale_up_limit_ppm, min_instances, error_rate_ppm };
            OutlierAlgorithm::Sermant(SermantRemoval { common, rule })
        },
    );
    (any_name(), prop_oneof![native, sermant]).prop_map(|(name, algorithm)| PortOutlierDetection {
        policy: ServicePolicyName {
            kind: ServicePolicyKind::OutlierDetection,
            namespace: name.clone(),
            name,
        },
        algorithm,
    })
}

fn any_health_check() -> impl Strategy<Value = HealthCheck> {
    let probe = prop_oneof![
        "/[a-z]{0,9}".prop_map(|path| HealthProbe::Http { path }),
        "[a-z.]{0,9}".prop_map(|service| HealthProbe::Grpc { service }),
    ];
    (probe, any_duration(), any_duration(), 1..u32::MAX, 1..u32::MAX).prop_map(
        |(probe, interval, timeout, failures, successes)| HealthCheck {
            probe,
            interval: interval.max(timeout),
            timeout,
            failures,
            successes,
        },
    )
}

#[test]
fn an_unknown_probe_is_ignored_and_an_invalid_health_check_is_rejected() {
    let policy_with = |check| proto::TrafficPolicy {
        outlier_detection: Some(proto::PortOutlierDetection {
            policy: Some(proto::ServicePolicy {
                kind: "OutlierDetection".to_owned(),
                name: "shop/ratings".to_owned(),
            }),
            algorithm: Some(proto::port_outlier_detection::Algorithm::Native(
                proto::OutlierDetection {
                    failures: Some(proto::FailureClasses { connect: true, ..Default::default() }),
                    window_nanoseconds: 1_000_000_000,
                    buckets: 1,
                    min_healthy: 1,
                    base_ejection_nanoseconds: 1_000_000,
                    max_ejection_nanoseconds: 1_000_000,
                    probe_requests: 1,
                    health_check: Some(check),
                    ..Default::default()
                },
            )),
        }),
        ..Default::default()
    };
    let (interval_nanoseconds, timeout_nanoseconds) = (1_000_000, 1_000_000);
    let times =
        proto::HealthCheck { interval_nanoseconds, timeout_nanoseconds, ..Default::default() };
    let unknown = proto::HealthCheck { failures: 1, successes: 1, ..times };
    let decoded = traffic_policy::from_wire(Some(policy_with(unknown.clone()))).unwrap();
    let OutlierAlgorithm::Native(native) = decoded.outlier_detection.unwrap().algorithm else {
        panic!()
    };
    assert_eq!(native.health_check, None);
    let path = |path: &str| Some(proto::health_check::Probe::HttpPath(path.to_owned()));
    let valid = proto::HealthCheck { probe: path("/"), ..unknown };
    assert!(traffic_policy::from_wire(Some(policy_with(valid.clone()))).is_ok());
    for invalid in [
        proto::HealthCheck { failures: 0, ..valid.clone() },
        proto::HealthCheck { successes: 0, ..valid.clone() },
        proto::HealthCheck { timeout_nanoseconds: 2_000_000, ..valid.clone() },
        proto::HealthCheck { probe: path("/ HTTP/1.1\r\nhost: b"), ..valid.clone() },
        proto::HealthCheck { probe: path("healthz"), ..valid.clone() },
    ] {
        assert!(
            traffic_policy::from_wire(Some(policy_with(invalid.clone()))).is_err(),
            "{invalid:?}"
        );
    }
}

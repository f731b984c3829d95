//! The traffic history computed from sidecars' reports: rates, edges, limits of tables, and plots of random hours.

use leno_discovery::traffic::STATUS_CLASSES;

use leno_model::Reason;

use super::*;
use crate::fixture::{BOOKINFO, mesh_with_sidecars, service_name, workload_name};

fn outbound_series(to: &str, route: Option<&str>, requests: u64, failed: u64) -> TrafficSeries {
    let mut classes = [0; STATUS_CLASSES];
    classes[2] = requests - failed;
    classes[5] = failed;
    TrafficSeries {
        direction: Direction::Outbound,
        service: Some(service_name(to)),
        port: 9080,
        route: route.map(|name| format!("bookinfo/{name}").parse().unwrap()),
        peer: None,
        opened: None,
        classes,
        failed,
        reasons: Vec::new(),
        bytes_in: 0,
        bytes_out: 0,
        durations: vec![(80, requests)],
    }
}

fn inbound_series(from: &str, requests: u64) -> TrafficSeries {
    let peer = ServiceAccount::new("bookinfo", from).ok();
    TrafficSeries {
        direction: Direction::Inbound,
        peer,
        ..outbound_series("details", None, requests, 0)
    }
}

fn traffic_report(series: Vec<TrafficSeries>) -> TrafficReport {
    let cpu = Duration::from_millis(50);
    TrafficReport {
        span: Duration::from_secs(5),
        series,
        overflowed: 0,
        cpu,
        memory_kib: 4_096,
        rules: Vec::new(),
    }
}

fn at_second(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const REPORT_INTERVAL: Option<Duration> = Some(Duration::from_secs(5));

fn find_rates<'a>(
    rates_by_name: &'a [NamedRateStatus],
    name: &str,
) -> &'a crate::status::RateStatus {
    let named_rates =
        rates_by_name.iter().find(|named_rates| named_rates.name == format!("bookinfo/{name}"));
    &named_rates.unwrap_or_else(|| panic!("{name} in {rates_by_name:?}")).rates
}

fn entry_count(history: &History) -> usize {
    history.services.len() + history.routes.len() + history.edges.len()
}

#[test]
fn rates_are_correct_from_the_first_report() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    for seconds in (5..=60).step_by(5) {
        let report = traffic_report(vec![outbound_series("details", None, 50, 5)]);
        history.record_report(&mesh, &workload_name("productpage-1"), &report, at_second(seconds));
        let status = history.traffic_status(&mesh, at_second(seconds), REPORT_INTERVAL);
        let details = find_rates(&status.services, "details");
        assert!((8.0..=14.0).contains(&details.per_second), "{seconds} s: {details:?}");
        assert_eq!(details.success, Some(0.9));
        assert_eq!(details.requests, 10 * seconds);
    }
    let status = history.traffic_status(&mesh, at_second(200), REPORT_INTERVAL);
    let details = find_rates(&status.services, "details");
    assert_eq!((details.per_second, details.success, details.p99_ms), (0.0, None, None));
    assert_eq!((details.requests, details.failed), (600, 60));
}

#[test]
fn connections_that_stay_open_have_a_rate_and_rejected_ones_are_failures() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    let tcp = |opened, ended: u64, rejected| TrafficSeries {
        opened: Some(opened),
        classes: [ended, 0, 0, 0, 0, 0],
        reasons: vec![(Some(Reason::DeniedByPolicy), rejected)],
        failed: rejected,
        durations: Vec::new(),
        ..outbound_series("details", None, 0, 0)
    };
    history.record_report(
        &mesh,
        &workload_name("productpage-1"),
        &traffic_report(vec![tcp(20, 0, 0)]),
        at_second(5),
    );
    let status = history.traffic_status(&mesh, at_second(5), REPORT_INTERVAL);
    let details = find_rates(&status.services, "details");
    assert_eq!((details.per_second, details.success, details.requests), (4.0, Some(1.0), 20));
    assert_eq!(status.sidecars[0].outbound_per_second, 4.0);
    history.record_report(
        &mesh,
        &workload_name("productpage-1"),
        &traffic_report(vec![tcp(20, 10, 10)]),
        at_second(10),
    );
    let status = history.traffic_status(&mesh, at_second(10), REPORT_INTERVAL);
    let details = find_rates(&status.services, "details");
    assert_eq!((details.per_second, details.success), (4.0, Some(0.75)));
    assert_eq!((details.requests, details.failed), (40, 10));
    let [rejection] = &status.rejections[..] else { panic!("{:?}", status.rejections) };
    assert_eq!((&*rejection.reason, rejection.requests), ("denied-by-policy", 10));
    assert_eq!(rejection.share, 0.25);
    // Connections that ended normally have been counted.
    let ended = traffic_report(vec![tcp(0, 30, 0)]);
    history.record_report(&mesh, &workload_name("productpage-1"), &ended, at_second(15));
    assert_eq!(
        find_rates(
            &history.traffic_status(&mesh, at_second(15), REPORT_INTERVAL).services,
            "details"
        )
        .requests,
        40
    );
}

#[test]
fn the_edge_of_a_route_leads_from_the_called_service_to_the_backend() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    let series = vec![
        outbound_series("reviews-v1", Some("reviews"), 9, 0),
        outbound_series("details", None, 1, 0),
    ];
    history.record_report(
        &mesh,
        &workload_name("productpage-1"),
        &traffic_report(series),
        at_second(5),
    );
    let status = history.traffic_status(&mesh, at_second(5), REPORT_INTERVAL);
    let edges: Vec<String> = status
        .edges
        .iter()
        .map(|edge| format!("{} {} → {}", edge.kind, edge.from, edge.to))
        .collect();
    let productpage = edges.iter().find(|edge| edge.ends_with("→ bookinfo/reviews")).unwrap();
    let from = productpage.trim_end_matches(" → bookinfo/reviews").to_owned();
    let mut expected = [
        format!("{from} → bookinfo/details"),
        format!("{from} → bookinfo/reviews"),
        "route bookinfo/reviews → bookinfo/reviews-v1".to_owned(),
    ];
    expected.sort();
    let mut actual = edges.clone();
    actual.sort();
    assert_eq!(actual, expected);
    assert_eq!(find_rates(&status.services, "reviews").requests, 9);
    assert_eq!(find_rates(&status.services, "reviews-v1").requests, 9);
    assert_eq!(find_rates(&status.routes, "reviews").requests, 9);
}

#[test]
fn an_edge_is_mutual_tls_when_the_server_has_verified_the_client() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    let report = traffic_report(vec![outbound_series("details", None, 1, 0)]);
    history.record_report(&mesh, &workload_name("productpage-1"), &report, at_second(5));
    assert!(!history.traffic_status(&mesh, at_second(5), REPORT_INTERVAL).edges[0].mtls);
    history.record_report(
        &mesh,
        &workload_name("details-1"),
        &traffic_report(vec![inbound_series("stranger", 1)]),
        at_second(6),
    );
    assert!(!history.traffic_status(&mesh, at_second(6), REPORT_INTERVAL).edges[0].mtls);
    history.record_report(
        &mesh,
        &workload_name("details-1"),
        &traffic_report(vec![inbound_series("productpage", 1)]),
        at_second(7),
    );
    assert!(history.traffic_status(&mesh, at_second(7), REPORT_INTERVAL).edges[0].mtls);
    assert!(
        !history.traffic_status(&mesh, at_second(7 + 300), REPORT_INTERVAL).edges[0].mtls,
        "the last request was minutes ago"
    );
}

#[test]
fn an_edge_has_no_mutual_tls_for_requests_that_arrived_at_another_service() {
    let mesh = mesh_with_sidecars(
        &BOOKINFO.replace("serviceAccount: reviews,", "serviceAccount: details,"),
    );
    let mut history = History::default();
    let report = traffic_report(vec![outbound_series("details", None, 1, 0)]);
    history.record_report(&mesh, &workload_name("productpage-1"), &report, at_second(5));
    let at_reviews = traffic_report(vec![inbound_series("productpage", 1)]);
    history.record_report(&mesh, &workload_name("reviews-v1-1"), &at_reviews, at_second(6));
    assert_eq!(history.verified_clients.len(), 1);
    assert!(!history.traffic_status(&mesh, at_second(6), REPORT_INTERVAL).edges[0].mtls);
}

#[test]
fn a_workload_has_a_limited_number_of_verified_clients() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    for client in 0..MAX_CLIENTS + 2 {
        let report =
            traffic_report(vec![inbound_series(&format!("c{client}"), 1), inbound_series("c0", 1)]);
        history.record_report(&mesh, &workload_name("details-1"), &report, at_second(5));
    }
    let clients = &history.verified_clients[&workload_name("details-1")];
    assert_eq!(clients.len(), MAX_CLIENTS);
    assert_eq!(history.counters.dropped, 2);
    let is_verified =
        |name: String| clients.contains_key(&ServiceAccount::new("bookinfo", &name).unwrap());
    // The most recently used clients are kept.
    for (client, expected) in
        [(0, true), (1, false), (2, false), (3, true), (MAX_CLIENTS + 1, true)]
    {
        assert_eq!(is_verified(format!("c{client}")), expected, "c{client}");
    }
    history.record_report(
        &mesh,
        &workload_name("productpage-1"),
        &traffic_report(vec![inbound_series("c", 1)]),
        at_second(5),
    );
    assert_eq!(history.verified_clients.len(), 2, "each workload has a limit of its own");
}

#[test]
fn a_sidecar_without_reports_is_idle() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    let series = vec![outbound_series("details", None, 20, 0), inbound_series("stranger", 10)];
    history.record_report(
        &mesh,
        &workload_name("productpage-1"),
        &traffic_report(series),
        at_second(5),
    );
    let sidecar = |seconds| {
        history.traffic_status(&mesh, at_second(seconds), REPORT_INTERVAL).sidecars[0].clone()
    };
    let busy = sidecar(6);
    assert_eq!(
        (busy.cpu_cores, busy.inbound_per_second, busy.outbound_per_second),
        (0.01, 2.0, 4.0)
    );
    let idle = sidecar(21);
    assert_eq!((idle.cpu_cores, idle.inbound_per_second, idle.memory_kib), (0.0, 0.0, 4_096));
}

#[test]
fn series_without_objects_of_the_mesh_are_not_recorded() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    let mut no_service = outbound_series("details", None, 1, 0);
    no_service.service = None;
    let series = vec![outbound_series("invented", None, 1, 0), no_service];
    history.record_report(
        &mesh,
        &workload_name("productpage-1"),
        &traffic_report(series),
        at_second(5),
    );
    let report = traffic_report(vec![outbound_series("details", None, 1, 0)]);
    history.record_report(&mesh, &workload_name("nobody-1"), &report, at_second(5));
    assert_eq!(entry_count(&history), 0);
    assert_eq!(history.counters, ReportCounters { reports: 1, dropped: 2 });
}

#[test]
fn old_and_removed_entries_are_evicted() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    let series = vec![outbound_series("details", None, 1, 0), inbound_series("stranger", 1)];
    history.record_report(
        &mesh,
        &workload_name("productpage-1"),
        &traffic_report(series),
        at_second(5),
    );
    history.evict_expired(&mesh, at_second(304));
    assert_eq!((entry_count(&history), history.verified_clients.len()), (2, 1));
    history.evict_expired(&mesh, at_second(3600));
    assert_eq!((entry_count(&history), history.verified_clients.len()), (2, 0));
    let empty = Mesh::default();
    history.evict_expired(&empty, at_second(3600));
    assert_eq!((entry_count(&history), history.sidecars.len()), (0, 0));
    let series = vec![outbound_series("details", None, 1, 0)];
    history.record_report(
        &mesh,
        &workload_name("productpage-1"),
        &traffic_report(series),
        at_second(4000),
    );
    history.evict_expired(&mesh, at_second(4000 + 3600));
    assert_eq!(entry_count(&history), 0);
}

/// Returns Bookinfo with this number of routes for details.
fn bookinfo_with_routes(count: usize) -> String {
    let route = |number| {
        format!(
            "\n---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: \
             r{number}, namespace: bookinfo}}\nspec:\n  parentRefs: [{{kind: Service, group: \"\", \
             name: details, port: 9080}}]\n  rules: [{{backendRefs: [{{name: details, port: \
             9080}}]}}]\n"
        )
    };
    BOOKINFO.to_owned() + &(0..count).map(route).collect::<String>()
}

#[test]
fn a_missing_route_is_not_recorded() {
    let mesh = mesh_with_sidecars(&bookinfo_with_routes(1));
    let mut history = History::default();
    let series = ["r0", "invented"].map(|route| outbound_series("details", Some(route), 1, 0));
    history.record_report(
        &mesh,
        &workload_name("productpage-1"),
        &traffic_report(series.into()),
        at_second(5),
    );
    let status = history.traffic_status(&mesh, at_second(5), REPORT_INTERVAL);
    assert_eq!((status.routes.len(), find_rates(&status.routes, "r0").requests), (1, 1));
    assert_eq!((find_rates(&status.services, "details").requests, status.series_dropped), (2, 1));
    history.evict_expired(&mesh_with_sidecars(BOOKINFO), at_second(6));
    assert_eq!(history.routes.len(), 0);
}

#[test]
fn each_dropped_series_is_counted_once() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    let mut no_service = outbound_series("details", None, 1, 0);
    no_service.service = None;
    let report = TrafficReport {
        overflowed: 3,
        ..traffic_report(vec![no_service, outbound_series("invented", None, 1, 0)])
    };
    history.record_report(&mesh, &workload_name("productpage-1"), &report, at_second(5));
    assert_eq!(history.counters, ReportCounters { reports: 1, dropped: 4 });
}

#[test]
fn recent_reasons_are_reported_separately() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    let mut history = History::default();
    let failing = |reason| TrafficSeries {
        reasons: vec![(Some(reason), 5)],
        ..outbound_series("details", None, 5, 5)
    };
    let plots = |history: &History, seconds| {
        history
            .subject_history(&PlotSubject::Service(service_name("details")), at_second(seconds))
            .unwrap()
    };
    history.record_report(
        &mesh,
        &workload_name("productpage-1"),
        &traffic_report(vec![failing(Reason::Denied)]),
        at_second(5),
    );
    let later_report = traffic_report(vec![failing(Reason::NoEndpoint)]);
    history.record_report(&mesh, &workload_name("productpage-1"), &later_report, at_second(100));
    let labels = |map: BTreeMap<String, u64>| map.into_keys().collect::<Vec<_>>();
    let actual = plots(&history, 100);
    assert_eq!(labels(actual.recent_reasons), [Reason::NoEndpoint.label()]);
    assert_eq!(actual.reasons.len(), 2);
    assert_eq!(labels(plots(&history, 200).recent_reasons), [""; 0]);
}

#[test]
fn entries_of_each_kind_are_limited() {
    let mesh = mesh_with_sidecars(&bookinfo_with_routes(MAX_ROUTES + 3));
    let mut history = History::default();
    for route in 0..MAX_ROUTES + 3 {
        let series = vec![
            outbound_series("details", Some(&format!("r{route}")), 1, 0),
            outbound_series("details", Some("r0"), 1, 0),
        ];
        history.record_report(
            &mesh,
            &workload_name("productpage-1"),
            &traffic_report(series),
            at_second(5),
        );
    }
    let status = history.traffic_status(&mesh, at_second(5), REPORT_INTERVAL);
    assert_eq!(
        (status.routes.len(), status.services.len(), status.edges.len()),
        (MAX_ROUTES, 1, 1)
    );
    assert_eq!(history.counters.dropped, 3);
    assert_eq!(find_rates(&status.services, "details").requests, 2 * (MAX_ROUTES as u64 + 3));
    // The most recently used routes are kept, and the count of a used route continues.
    assert_eq!(find_rates(&status.routes, "r0").requests, MAX_ROUTES as u64 + 4);
    for (route, is_kept) in [(1, false), (3, false), (4, true), (MAX_ROUTES + 2, true)] {
        let name = format!("bookinfo/r{route}");
        assert_eq!(status.routes.iter().any(|route| route.name == name), is_kept, "{name}");
    }
}

#[test]
fn a_new_service_has_rates_and_rejections_in_a_large_mesh() {
    let name = |number: usize| format!("s{number}");
    let services = (0..MAX_SERVICES + 3).map(|number| {
        let metadata = format!("metadata: {{name: {}, namespace: bookinfo}}", name(number));
        format!(
            "---\napiVersion: v1\nkind: Service\n{metadata}\nspec: {{ports: [{{port: 9080}}]}}\n"
        )
    });
    let mesh = mesh_with_sidecars(&format!("{BOOKINFO}{}", services.collect::<String>()));
    let mut history = History::default();
    let rejected_series = |number: usize| TrafficSeries {
        reasons: vec![(Some(Reason::RateLimited), 5)],
        ..outbound_series(&name(number), None, 5, 5)
    };
    for number in 0..MAX_SERVICES + 3 {
        let report = traffic_report(vec![rejected_series(number), rejected_series(0)]);
        history.record_report(&mesh, &workload_name("productpage-1"), &report, at_second(5));
    }
    let status = history.traffic_status(&mesh, at_second(5), REPORT_INTERVAL);
    let actual: BTreeSet<&str> =
        status.services.iter().map(|service| service.name.as_str()).collect();
    let rejections: BTreeSet<&str> =
        status.rejections.iter().map(|rejection| rejection.service.as_str()).collect();
    assert_eq!((actual.len(), rejections.len()), (MAX_SERVICES, MAX_SERVICES));
    for (number, is_kept) in
        [(0, true), (1, false), (3, false), (4, true), (MAX_SERVICES + 2, true)]
    {
        let name = format!("bookinfo/{}", name(number));
        assert_eq!(
            (actual.contains(&*name), rejections.contains(&*name)),
            (is_kept, is_kept),
            "{name}"
        );
    }
    assert_eq!(status.edges.len(), MAX_SERVICES + 3, "the limit of edges is higher");
    assert_eq!(find_rates(&status.services, "s0").requests, 5 * (MAX_SERVICES as u64 + 4));
}

/// Random hours, by seed: no report within an hour is lost, no count is invented, and the rings keep their
/// size.
#[test]
fn the_plots_of_an_hour_add_up_to_the_reports() {
    let mesh = mesh_with_sidecars(BOOKINFO);
    for seed in 1..=64_u64 {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut random_below = |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % bound
        };
        let mut history = History::default();
        let (mut clock, mut reports) = (5_000_u64, Vec::new());
        for _ in 0..300 {
            clock += random_below(60_000);
            let requests = 1 + random_below(1_000);
            let failed = random_below(requests + 1);
            let report = traffic_report(vec![outbound_series("details", None, requests, failed)]);
            history.record_report(
                &mesh,
                &workload_name("productpage-1"),
                &report,
                Duration::from_millis(clock),
            );
            reports.push((clock, requests, failed));
        }
        let subject = PlotSubject::Service(service_name("details"));
        let now = Duration::from_millis(clock + random_below(600_000));
        let plots = history.subject_history(&subject, now).unwrap().plots;
        for (plot, steps) in plots.iter().zip([36_u64, 60]) {
            assert_eq!(plot.requests.len() as u64, steps, "seed {seed}");
            let step_ms = plot.step_seconds * 1000;
            let now_ms = u64::try_from(now.as_millis()).unwrap();
            let first_step_start = (now_ms / step_ms + 1).saturating_sub(steps) * step_ms;
            let expected = reports.iter().filter(|(clock, ..)| *clock >= first_step_start);
            let expected =
                expected.fold((0, 0), |sum, report| (sum.0 + report.1, sum.1 + report.2));
            let sum = |list: &[u32]| list.iter().map(|count| u64::from(*count)).sum::<u64>();
            assert_eq!((sum(&plot.requests), sum(&plot.failed)), expected, "seed {seed}");
        }
    }
}

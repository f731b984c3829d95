//! Screens of a small mesh, large and tiny.

use super::*;

fn named_rate(name: &str, per_second: f64, success: Option<f64>, p99_ms: f64) -> NamedRateStatus {
    let p99_ms = success.map(|_| p99_ms);
    let p50_ms = p99_ms.map(|ms| ms / 2.0);
    let recent = vec![0, 1, 2, 4];
    NamedRateStatus {
        name: name.to_owned(),
        rates: RateStatus { per_second, success, p50_ms, p99_ms, requests: 10, failed: 1, recent },
    }
}

fn sample_content() -> ScreenContent {
    let sidecar = |workload: &str, cpu_cores| SidecarTraffic {
        workload: workload.to_owned(),
        cpu_cores,
        memory_kib: 4_300,
        inbound_per_second: 10.0,
        outbound_per_second: 0.0,
    };
    ScreenContent {
        status: Status {
            trust_domain: "cluster.local".to_owned(),
            default_policy: "deny".to_owned(),
            workloads: 3,
            proxies: 2,
            ..Status::default()
        },
        traffic: TrafficStatus {
            report_interval_ms: Some(5_000),
            services: vec![
                named_rate("shop/cart", 1.0, Some(0.5), 2.0),
                named_rate("shop/stock", 20.0, Some(1.0), 1.0),
                named_rate("shop/idle", 0.0, None, 0.0),
                named_rate("shop/pay", 3.0, Some(0.98), 250.0),
            ],
            routes: vec![named_rate("shop/canary", 1.0, Some(1.0), 2.0)],
            sidecars: vec![sidecar("shop/a-1", 0.001), sidecar("shop/b-1", 0.041)],
            ..TrafficStatus::default()
        },
        error: None,
    }
}

fn service_names(content: &ScreenContent) -> Vec<&str> {
    content.traffic.services.iter().map(|service| &*service.name).collect()
}

#[test]
fn rows_are_sorted_by_the_selected_column_with_missing_values_last() {
    let mut content = sample_content();
    for (order, first, last) in [
        (SortOrder::Rate, "shop/stock", "shop/idle"),
        (SortOrder::Success, "shop/cart", "shop/idle"),
        (SortOrder::P50, "shop/pay", "shop/idle"),
        (SortOrder::P99, "shop/pay", "shop/idle"),
        (SortOrder::Name, "shop/cart", "shop/stock"),
    ] {
        content.sort(order);
        let names = service_names(&content);
        assert_eq!((names[0], names[3]), (first, last), "{order:?}: {names:?}");
        let busiest = if order == SortOrder::Name { "shop/a-1" } else { "shop/b-1" };
        assert_eq!(content.traffic.sidecars[0].workload, busiest);
    }
}

#[test]
fn a_large_screen_shows_all_rows() {
    let mut content = sample_content();
    content.sort(SortOrder::Rate);
    let style = ScreenStyle { sort_order: SortOrder::Rate, use_color: false };
    let screen = render_screen(&content, ScreenSize { columns: 100, rows: 18 }, style);
    expect_test::expect![[r#"
        leno top · cluster.local · default policy deny · 2 of 3 sidecars, 0 out of sync · 0/s

        SERVICE     RATE    SUCCESS  P50      P99      LAST MINUTES
        shop/stock  20.0/s  100 %    0.50 ms  1.00 ms   ▄█
        shop/pay    3.0/s   98.00 %  125 ms   250 ms    ▄█
        shop/cart   1.0/s   50.00 %  1.00 ms  2.00 ms   ▄█
        shop/idle   0/s     -        -        -         ▄█

        ROUTE        RATE   SUCCESS  P50      P99      LAST MINUTES
        shop/canary  1.0/s  100 %    1.00 ms  2.00 ms   ▄█

        SIDECAR   CPU       MEMORY   IN      OUT
        shop/b-1  41 mCPU   4.2 MiB  10.0/s  0/s
        shop/a-1  1.0 mCPU  4.2 MiB  10.0/s  0/s



        by rate · r rate  s success  5 p50  9 p99  n name  q quit"#]]
    .assert_eq(&screen);
}

#[test]
fn the_content_fits_screens_of_all_sizes() {
    let mut content = sample_content();
    for number in 0..200 {
        content.traffic.services.push(named_rate(&format!("shop/s{number}"), 1.0, Some(1.0), 1.0));
    }
    for rows in 0..60 {
        for columns in [0, 1, 20, 79, 200] {
            let style = ScreenStyle { sort_order: SortOrder::Name, use_color: false };
            let screen = render_screen(&content, ScreenSize { columns, rows }, style);
            assert!(screen.lines().count() <= rows.max(1), "{rows}: {screen}");
            let widest = screen.lines().map(|line| line.chars().count()).max();
            assert!(widest.unwrap_or(0) <= columns, "{columns}: {screen}");
        }
    }
}

#[test]
fn the_update_error_is_truncated_and_escaped() {
    let mut content = sample_content();
    content.error = Some(format!("refused: \u{1b}[2J\n\u{9b}{}", "x".repeat(500)));
    let style = ScreenStyle { sort_order: SortOrder::Name, use_color: false };
    let screen = render_screen(&content, ScreenSize { columns: 120, rows: 20 }, style);
    assert!(screen.contains("not updated: refused: \u{fffd}[2J\u{fffd}\u{fffd}x"), "{screen:?}");
    assert!(screen.lines().all(|line| line.chars().count() <= 120), "{screen}");
}

#[test]
fn colors_mark_failures_and_are_optional() {
    let style = ScreenStyle { sort_order: SortOrder::Rate, use_color: true };
    let screen = render_screen(&sample_content(), ScreenSize { columns: 100, rows: 30 }, style);
    let line = |name: &str| screen.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(line("shop/cart").starts_with("\x1b[31m"), "{screen}");
    assert!(line("shop/pay").starts_with("\x1b[33m"), "{screen}");
    assert!(line("shop/idle").starts_with("\x1b[2m"), "{screen}");
    assert!(line("shop/stock").starts_with("shop/stock"), "{screen}");
}

#[test]
fn a_mesh_without_traffic_shows_the_reason() {
    let mut empty = ScreenContent { traffic: TrafficStatus::default(), ..sample_content() };
    assert!(render_all(&empty, OutputFormat::Table).contains("--report-interval off"));
    empty.traffic.report_interval_ms = Some(5_000);
    assert_eq!(
        render_all(&empty, OutputFormat::Table),
        "no traffic yet: sidecars report it every few seconds\n"
    );
    let style = ScreenStyle { sort_order: SortOrder::Rate, use_color: false };
    assert!(
        render_screen(&empty, ScreenSize { columns: 80, rows: 10 }, style)
            .contains("no traffic yet")
    );
}

#[test]
fn rejections_are_listed_only_if_there_are_any() {
    let mut content = sample_content();
    assert!(!render_all(&content, OutputFormat::Table).contains("REJECTED"));
    content.traffic.rejections = vec![RejectionStatus {
        service: "shop/cart".to_owned(),
        reason: "rate-limited".to_owned(),
        requests: 30,
        share: 0.75,
        side: "server".to_owned(),
        sidecars: vec!["shop/cart-1".to_owned()],
        clients: Vec::new(),
        policies: vec!["RateLimit shop/few".to_owned()],
    }];
    let wide = render_all(&content, OutputFormat::Wide);
    for expected in ["REJECTED", "rate-limited", "75.00 %", "30", "server", "RateLimit shop/few"] {
        assert!(wide.contains(expected), "{expected}: {wide}");
    }
    let style = ScreenStyle { sort_order: SortOrder::Rate, use_color: true };
    let screen = render_screen(&content, ScreenSize { columns: 100, rows: 30 }, style);
    assert!(screen.contains("\u{1b}[31mshop/cart  rate-limited"), "{screen}");
}

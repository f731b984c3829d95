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

fn sample_view() -> View {
    let sidecar = |workload: &str, cpu_cores| SidecarTraffic {
        workload: workload.to_owned(),
        cpu_cores,
        memory_kib: 4_300,
        inbound_per_second: 10.0,
        outbound_per_second: 0.0,
    };
    View {
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
        trouble: None,
    }
}

fn service_names(view: &View) -> Vec<&str> {
    view.traffic.services.iter().map(|service| &*service.name).collect()
}

#[test]
fn what_is_asked_for_comes_first_and_what_has_no_figure_last() {
    let mut view = sample_view();
    for (order, first, last) in [
        (Order::Rate, "shop/stock", "shop/idle"),
        (Order::Success, "shop/cart", "shop/idle"),
        (Order::P50, "shop/pay", "shop/idle"),
        (Order::P99, "shop/pay", "shop/idle"),
        (Order::Name, "shop/cart", "shop/stock"),
    ] {
        view.sort(order);
        let names = service_names(&view);
        assert_eq!((names[0], names[3]), (first, last), "{order:?}: {names:?}");
        let busiest = if order == Order::Name { "shop/a-1" } else { "shop/b-1" };
        assert_eq!(view.traffic.sidecars[0].workload, busiest);
    }
}

#[test]
fn a_screen_shows_all_when_there_is_room() {
    let mut view = sample_view();
    view.sort(Order::Rate);
    let look = Look { order: Order::Rate, colours: false };
    let screen = render_screen(&view, Size { columns: 100, rows: 18 }, look);
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
fn it_fits_any_screen() {
    let mut view = sample_view();
    for number in 0..200 {
        view.traffic.services.push(named_rate(&format!("shop/s{number}"), 1.0, Some(1.0), 1.0));
    }
    for rows in 0..60 {
        for columns in [0, 1, 20, 79, 200] {
            let look = Look { order: Order::Name, colours: false };
            let screen = render_screen(&view, Size { columns, rows }, look);
            assert!(screen.lines().count() <= rows.max(1), "{rows}: {screen}");
            let widest = screen.lines().map(|line| line.chars().count()).max();
            assert!(widest.unwrap_or(0) <= columns, "{columns}: {screen}");
        }
    }
}

#[test]
fn why_nothing_is_newer_fits_and_steers_no_terminal() {
    let mut view = sample_view();
    view.trouble = Some(format!("refused: \u{1b}[2J\n\u{9b}{}", "x".repeat(500)));
    let look = Look { order: Order::Name, colours: false };
    let screen = render_screen(&view, Size { columns: 120, rows: 20 }, look);
    assert!(screen.contains("not updated: refused: \u{fffd}[2J\u{fffd}\u{fffd}x"), "{screen:?}");
    assert!(screen.lines().all(|line| line.chars().count() <= 120), "{screen}");
}

#[test]
fn colours_say_what_fails_and_are_left_out_on_request() {
    let look = Look { order: Order::Rate, colours: true };
    let screen = render_screen(&sample_view(), Size { columns: 100, rows: 30 }, look);
    let line = |name: &str| screen.lines().find(|line| line.contains(name)).unwrap().to_owned();
    assert!(line("shop/cart").starts_with("\x1b[31m"), "{screen}");
    assert!(line("shop/pay").starts_with("\x1b[33m"), "{screen}");
    assert!(line("shop/idle").starts_with("\x1b[2m"), "{screen}");
    assert!(line("shop/stock").starts_with("shop/stock"), "{screen}");
}

#[test]
fn a_mesh_without_traffic_says_why_there_is_nothing() {
    let mut empty = View { traffic: TrafficStatus::default(), ..sample_view() };
    assert!(render_all(&empty, Format::Table).contains("--report-interval off"));
    empty.traffic.report_interval_ms = Some(5_000);
    assert_eq!(
        render_all(&empty, Format::Table),
        "no traffic yet: sidecars report it every few seconds\n"
    );
    let look = Look { order: Order::Rate, colours: false };
    assert!(render_screen(&empty, Size { columns: 80, rows: 10 }, look).contains("no traffic yet"));
}

#[test]
fn rejections_are_listed_where_there_are_any() {
    let mut view = sample_view();
    assert!(!render_all(&view, Format::Table).contains("REJECTED"));
    view.traffic.rejections = vec![RejectionStatus {
        service: "shop/cart".to_owned(),
        reason: "rate-limited".to_owned(),
        requests: 30,
        share: 0.75,
        side: "server".to_owned(),
        sidecars: vec!["shop/cart-1".to_owned()],
        clients: Vec::new(),
        policies: vec!["RateLimit shop/few".to_owned()],
    }];
    let wide = render_all(&view, Format::Wide);
    for word in ["REJECTED", "rate-limited", "75.00 %", "30", "server", "RateLimit shop/few"] {
        assert!(wide.contains(word), "{word}: {wide}");
    }
    let look = Look { order: Order::Rate, colours: true };
    let screen = render_screen(&view, Size { columns: 100, rows: 30 }, look);
    assert!(screen.contains("\u{1b}[31mshop/cart  rate-limited"), "{screen}");
}

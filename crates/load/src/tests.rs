//! Whole runs against a scripted server.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio::task::LocalSet;

use self::server::{OK, OK_TEXT, STALL, ScriptedResponse, ScriptedServer};
use super::*;

mod http2;
mod server;
mod stall;

#[test]
fn kept_connections_carry_all_requests_of_a_closed_run() {
    run_test(async {
        let server = ScriptedServer::start(|_| OK).await;
        let plan = LoadPlan {
            load_model: LoadModel::Closed { connections: 3 },
            ..plan_for(&[get_target(&server)])
        };
        let report = drive_plan(plan).await;
        let target = report.target_report("t").unwrap();
        assert!(target.request_count() > 3);
        assert_eq!(target.success_count(), target.request_count(), "{target:?}");
        assert_eq!(server.requests.borrow().len() as u64, target.request_count());
        assert_eq!(server.connections.get(), 3);
        // Requests in progress at the end are counted, but not in the measured time.
        assert!(target.request_count() - report.responses <= 3, "{report:?}");
        assert!(report.bytes_received.abs_diff(report.responses * OK.bytes().len() as u64) < 200);
        let sent = report.responses * server.requests.borrow()[0].len() as u64;
        assert!(report.bytes_sent.abs_diff(sent) < 200);
        assert!(report.cpu_per_request().is_some_and(|cpu| cpu > Duration::ZERO));
    });
}

#[test]
fn every_form_of_response_is_read_to_its_end() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\n";
    for (method, rest) in [
        ("GET", "content-length: 0\r\n\r\n"),
        (
            "GET",
            "transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n",
        ),
        ("HEAD", "content-length: 1000\r\n\r\n"),
        ("GET", "connection: close\r\n\r\nuntil the end"),
        ("GET", "content-length: 2\r\nconnection: close\r\n\r\nok"),
    ] {
        let response = format!("{HEAD}{rest}");
        // With and without interim responses, in one piece and byte by byte.
        for text in [response.clone(), format!("HTTP/1.1 100 Continue\r\n\r\n{response}")] {
            for bytes_per_write in [usize::MAX, 1] {
                run_test(async {
                    let closes = text.contains("close");
                    let response = ScriptedResponse {
                        bytes_per_write,
                        closes,
                        ..ScriptedResponse::from_text(text.clone())
                    };
                    let server = ScriptedServer::start(move |_| response.clone()).await;
                    let target = LoadTarget { method: method.to_owned(), ..get_target(&server) };
                    let report = drive_plan(plan_for(&[target])).await;
                    let target = report.target_report("t").unwrap();
                    assert!(target.success_count() > 0, "{method} {text:?}");
                    assert_eq!(
                        target.request_count(),
                        target.success_count(),
                        "{text:?} {target:?}"
                    );
                });
            }
        }
    }
}

#[test]
fn statuses_are_counted_one_by_one_and_only_2xx_succeed() {
    run_test(async {
        let responses = [OK_TEXT, "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"];
        let server =
            ScriptedServer::start(move |index| ScriptedResponse::from_text(responses[index % 2]))
                .await;
        let report = drive_plan(plan_for(&[get_target(&server)])).await;
        let target = report.target_report("t").unwrap();
        assert!(target.status_count(200).abs_diff(target.status_count(403)) <= 1);
        assert_eq!(target.success_count(), target.status_count(200));
        assert_eq!(target.request_count(), target.status_count(200) + target.status_count(403));
        assert_eq!(target.latency.count(), target.success_count());
    });
}

#[test]
fn every_error_is_counted_under_its_kind() {
    let text = ScriptedResponse::from_text;
    let broken =
        |text: &'static str| ScriptedResponse { closes: true, ..ScriptedResponse::from_text(text) };
    for (response, kind) in [
        (ScriptedResponse { resets: true, ..text("") }, ErrorKind::Reset),
        (broken(""), ErrorKind::Closed),
        (broken("HTTP/1.1 200 OK\r\ncontent-le"), ErrorKind::Closed),
        (broken("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc"), ErrorKind::Closed),
        (text("HTTP/2 200 OK\r\n\r\n"), ErrorKind::Malformed),
        (text("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n"), ErrorKind::Malformed),
        (text("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab"), ErrorKind::Malformed),
        (text("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc"), ErrorKind::Timeout),
        (text(""), ErrorKind::Timeout),
    ] {
        run_test(async move {
            let server = ScriptedServer::start(move |_| response.clone()).await;
            // Only the timeout case may time out.
            let timeout = if kind == ErrorKind::Timeout { ms(30) } else { ms(10_000) };
            let plan = LoadPlan { timeout, ..plan_for(&[get_target(&server)]) };
            let report = drive_plan(plan).await;
            let target = report.target_report("t").unwrap();
            assert!(target.error_count(kind) > 0, "{kind:?} {target:?}");
            assert_eq!(target.error_count(kind), target.request_count(), "{kind:?} {target:?}");
            assert_eq!(target.latency.count(), 0);
        });
    }
}

#[test]
fn a_closed_port_is_a_connect_error_without_a_busy_loop() {
    run_test(async {
        // Bound to reserve the port, but not listening.
        let unused_socket = TcpSocket::new_v4().unwrap();
        unused_socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = unused_socket.local_addr().unwrap();
        let report = drive_plan(plan_for(&[LoadTarget::get("t", address, "x", "/")])).await;
        let target = report.target_report("t").unwrap();
        assert_eq!(target.error_count(ErrorKind::Connect), target.request_count());
        assert!((1..=11).contains(&target.request_count()), "{}", target.request_count());
    });
}

#[test]
fn a_response_before_the_end_of_the_request_counts() {
    run_test(async {
        let response = ScriptedResponse {
            closes: true,
            ..ScriptedResponse::from_text(
                "HTTP/1.1 413 Content Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            )
        };
        let server = ScriptedServer::start(move |_| response.clone()).await;
        let body = vec![b'x'; 8 << 20];
        let target = LoadTarget { method: "POST".to_owned(), body, ..get_target(&server) };
        let report = drive_plan(plan_for(&[target])).await;
        let target = report.target_report("t").unwrap();
        // Unread parts of the request may reset the connection before the response is read.
        assert_eq!(
            target.status_count(413) + target.error_count(ErrorKind::Reset),
            target.request_count()
        );
        assert!(target.status_count(413) > 0, "{target:?}");
    });
}

#[test]
fn an_open_run_sends_every_due_request() {
    run_test(async {
        let server = ScriptedServer::start(|_| OK).await;
        let load_model = LoadModel::Open { rate: 500, connections: 4 };
        let plan = LoadPlan { load_model, duration: ms(200), ..plan_for(&[get_target(&server)]) };
        let report = drive_plan(plan).await;
        let target = report.target_report("t").unwrap();
        assert_eq!(target.request_count(), 100);
        assert_eq!(
            target.success_count() + target.error_count(ErrorKind::Unsent),
            100,
            "{target:?}"
        );
    });
}

#[test]
fn due_requests_without_a_free_connection_are_reported_unsent() {
    run_test(async {
        let server = ScriptedServer::start(|_| ScriptedResponse::from_text("")).await;
        let load_model = LoadModel::Open { rate: 1000, connections: 2 };
        let plan = LoadPlan { load_model, timeout: ms(250), ..plan_for(&[get_target(&server)]) };
        let report = drive_plan(plan).await;
        let target = report.target_report("t").unwrap();
        assert_eq!(target.request_count(), 100);
        assert!(target.error_count(ErrorKind::Unsent) >= 98, "{target:?}");
    });
}

#[test]
fn a_stall_delays_many_requests_in_an_open_run_and_few_in_a_closed_one() {
    let slow_requests = |load_model| {
        let slow_count = Rc::new(Cell::new(0));
        let shared_slow_count = Rc::clone(&slow_count);
        run_test(async move {
            let server =
                ScriptedServer::start(|index| ScriptedResponse { stalls: index == 20, ..OK }).await;
            let plan =
                LoadPlan { load_model, duration: ms(600), ..plan_for(&[get_target(&server)]) };
            let report = drive_plan(plan).await;
            let target = report.target_report("t").unwrap();
            shared_slow_count
                .set(target.latency.count_from(STALL / 2) + target.error_count(ErrorKind::Unsent));
        });
        slow_count.get()
    };
    // All requests that were due in the first half of the stall are slow. On a busy machine, other requests may be slow
    // as well.
    let open = slow_requests(LoadModel::Open { rate: 1000, connections: 1 });
    assert!(open >= 95, "{open}");
    let closed = slow_requests(LoadModel::Closed { connections: 1 });
    assert!((1..20).contains(&closed), "{closed}");
}

#[test]
fn targets_share_a_run_by_weight_and_seed() {
    run_test(async {
        let first = ScriptedServer::start(|_| OK).await;
        let second = ScriptedServer::start(|_| OK).await;
        let run_and_count = async |seed| {
            for server in [&first, &second] {
                server.requests.borrow_mut().clear();
            }
            let light = LoadTarget { name: "light".to_owned(), weight: 1, ..get_target(&first) };
            let heavy = LoadTarget {
                name: "heavy".to_owned(),
                path: "/heavy".to_owned(),
                weight: 3,
                ..get_target(&second)
            };
            let load_model = LoadModel::Open { rate: 2000, connections: 8 };
            let plan =
                LoadPlan { load_model, seed, duration: ms(400), ..plan_for(&[light, heavy]) };
            let report = drive_plan(plan).await;
            assert_eq!(report.sum_targets().request_count(), 800);
            ["light", "heavy"].map(|name| report.target_report(name).unwrap().request_count())
        };
        let [light, heavy] = run_and_count(1).await;
        assert!(light.abs_diff(200) < 50 && heavy.abs_diff(600) < 50, "{light} {heavy}");
        assert!(first.requests.borrow().iter().all(|request| request.starts_with("GET / ")));
        assert!(second.requests.borrow().iter().all(|request| request.starts_with("GET /heavy ")));
        assert_eq!(run_and_count(1).await, [light, heavy]);
    });
}

#[test]
fn requests_to_a_proxy_use_absolute_form() {
    run_test(async {
        let proxy = ScriptedServer::start(|_| OK).await;
        let target = LoadTarget {
            form: TargetForm::Absolute,
            host: "ratings.bookinfo:9080".to_owned(),
            path: "/ratings/1".to_owned(),
            ..get_target(&proxy)
        };
        let report = drive_plan(plan_for(&[target])).await;
        assert!(report.sum_targets().success_count() > 0);
        let expected = "GET http://ratings.bookinfo:9080/ratings/1 HTTP/1.1\r\n\
                        host: ratings.bookinfo:9080\r\n\r\n";
        assert!(proxy.requests.borrow().iter().all(|request| request == expected));
    });
}

#[test]
fn the_warm_up_is_sent_but_not_reported() {
    run_test(async {
        let server = ScriptedServer::start(|_| OK).await;
        let plan =
            LoadPlan { warm_up: ms(300), duration: ms(3000), ..plan_for(&[get_target(&server)]) };
        let (progress_sender, progress_receiver) = watch::channel(ProgressCounters::default());
        let report = drive_load(plan, progress_sender).await.unwrap();
        let requests = report.sum_targets().request_count();
        assert!(requests > 0 && requests < server.requests.borrow().len() as u64);
        // The runtime records the start and the end to the millisecond.
        assert!(report.elapsed >= ms(290), "{:?}", report.elapsed);
        let last_counters = *progress_receiver.borrow();
        assert!(last_counters.measuring && last_counters.elapsed >= ms(600));
        assert_eq!(
            (last_counters.requests, last_counters.successes, last_counters.failures),
            (requests, requests, 0)
        );
    });
}

#[test]
fn a_connection_closed_while_idle_is_opened_again_without_an_error() {
    run_test(async {
        // Announces keep-alive and then closes: the connection is closed before the next request is due.
        let response = ScriptedResponse { closes: true, ..OK };
        let server = ScriptedServer::start(move |_| response.clone()).await;
        let report = drive_plan(plan_for(&[get_target(&server)])).await;
        let target = report.target_report("t").unwrap();
        assert_eq!(target.success_count(), target.request_count(), "{target:?}");
        assert_eq!(server.connections.get() as u64, target.request_count());
    });
}

#[test]
fn fresh_connections_carry_one_request_each_and_are_closed_by_the_server() {
    run_test(async {
        let response = ScriptedResponse {
            closes: true,
            ..ScriptedResponse::from_text(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
            )
        };
        let server = ScriptedServer::start(move |_| response.clone()).await;
        let load_model = LoadModel::Closed { connections: 2 };
        let plan = LoadPlan {
            load_model,
            reuse: ConnectionReuse::Fresh,
            ..plan_for(&[get_target(&server)])
        };
        let report = drive_plan(plan).await;
        let target = report.target_report("t").unwrap();
        assert!(
            target.request_count() > 2 && target.success_count() == target.request_count(),
            "{target:?}"
        );
        assert_eq!(server.connections.get() as u64, target.request_count());
        assert!(server.requests.borrow().iter().all(|head| head.contains("connection: close\r\n")));
    });
}

#[test]
fn exactly_the_requested_number_of_requests_is_sent() {
    run_test(async {
        let server = ScriptedServer::start(|_| OK).await;
        for load_model in
            [LoadModel::Closed { connections: 3 }, LoadModel::Open { rate: 2000, connections: 3 }]
        {
            server.requests.borrow_mut().clear();
            let duration = Duration::from_secs(20);
            let plan = LoadPlan {
                load_model,
                duration,
                requests: Some(40),
                ..plan_for(&[get_target(&server)])
            };
            let report = drive_plan(plan).await;
            assert_eq!(report.sum_targets().success_count(), 40);
            assert_eq!(report.responses, 40);
            assert_eq!(server.requests.borrow().len(), 40);
            assert!(report.elapsed < Duration::from_secs(10), "{:?}", report.elapsed);
        }
    });
}

#[test]
fn threads_share_connections_and_rate_and_their_counts_add_up() {
    run_test(async {
        let server = ScriptedServer::start(|_| OK).await;
        let load_model = LoadModel::Open { rate: 1000, connections: 5 };
        let plan = LoadPlan { load_model, duration: ms(300), ..plan_for(&[get_target(&server)]) };
        let (progress_sender, progress_receiver) = watch::channel(ProgressCounters::default());
        let report =
            drive_on_threads(2, plan, StopHandle::default(), progress_sender).await.unwrap();
        let total = report.sum_targets();
        assert_eq!(total.request_count(), 300);
        assert_eq!(total.success_count() + total.error_count(ErrorKind::Unsent), 300, "{total:?}");
        assert!(server.connections.get() <= 5, "{}", server.connections.get());
        let timeline: u64 = report.timeline.intervals().map(|interval| interval.requests).sum();
        assert_eq!(timeline, 300);
        assert_eq!(progress_receiver.borrow().requests, 300);
    });
}

#[test]
fn a_stopped_run_reports_its_measurements() {
    run_test(async {
        let server = ScriptedServer::start(|_| OK).await;
        let load_model = LoadModel::Open { rate: 500, connections: 2 };
        let plan = LoadPlan {
            load_model,
            duration: Duration::from_secs(600),
            ..plan_for(&[get_target(&server)])
        };
        let (progress_sender, mut progress_receiver) = watch::channel(ProgressCounters::default());
        let stop = StopHandle::default();
        let stop_handle = stop.clone();
        let (report, ()) = tokio::join!(drive_on_threads(2, plan, stop, progress_sender), async {
            progress_receiver.wait_for(|counters| counters.successes > 10).await.unwrap();
            stop_handle.stop();
        });
        let report = report.unwrap();
        assert!(report.sum_targets().success_count() > 10);
        assert!(report.elapsed < Duration::from_secs(25), "{:?}", report.elapsed);
    });
}

#[test]
fn invalid_plans_are_rejected() {
    type Invalidate = fn(&mut LoadPlan);
    let rejection = |invalidate: Invalidate| {
        let rejection = Rc::new(RefCell::new(None));
        let shared_rejection = Rc::clone(&rejection);
        run_test(async move {
            let address: SocketAddr = "127.0.0.1:9".parse().unwrap();
            let mut plan = plan_for(&[LoadTarget::get("t", address, "x", "/")]);
            invalidate(&mut plan);
            let (progress_sender, _) = watch::channel(ProgressCounters::default());
            match drive_load(plan, progress_sender).await {
                Err(DriveError::Plan(error)) => *shared_rejection.borrow_mut() = Some(error),
                other => panic!("{other:?}"),
            }
        });
        rejection.take().unwrap()
    };
    let cases: [(Invalidate, InvalidPlan); 11] = [
        (|plan| plan.load_model = LoadModel::Closed { connections: 0 }, InvalidPlan::Connections),
        (
            |plan| plan.load_model = LoadModel::Closed { connections: 1 << 20 },
            InvalidPlan::Connections,
        ),
        (|plan| plan.load_model = LoadModel::Open { rate: 0, connections: 1 }, InvalidPlan::Rate),
        (|plan| plan.duration = ms(0), InvalidPlan::Duration),
        (|plan| plan.timeout = ms(0), InvalidPlan::Timeout),
        (|plan| plan.requests = Some(0), InvalidPlan::NoRequests),
        (|plan| plan.protocol = LoadProtocol::Http2 { streams: 0 }, InvalidPlan::Streams),
        (
            |plan| {
                plan.protocol = LoadProtocol::Http2 { streams: 1 };
                plan.targets[0].form = TargetForm::Absolute;
            },
            InvalidPlan::ProxyWithHttp2,
        ),
        (|plan| plan.targets.clear(), InvalidPlan::NoTarget),
        (|plan| plan.targets[0].weight = 0, InvalidPlan::NoTarget),
        (
            |plan| plan.targets.push(plan.targets[0].clone()),
            InvalidPlan::NameRepeated { name: "t".to_owned() },
        ),
    ];
    for (invalidate, expected) in cases {
        assert_eq!(rejection(invalidate), expected);
    }
    let rejection = rejection(|plan| plan.targets[0].path = "no slash".to_owned());
    assert!(matches!(rejection, InvalidPlan::Request { .. }), "{rejection:?}");
}

async fn drive_plan(plan: LoadPlan) -> LoadReport {
    let (progress_sender, _) = watch::channel(ProgressCounters::default());
    drive_load(plan, progress_sender).await.unwrap()
}

/// Returns a closed run of 100 ms over one connection.
fn plan_for(targets: &[LoadTarget]) -> LoadPlan {
    LoadPlan { duration: ms(100), ..LoadPlan::new(targets.to_vec()) }
}

fn get_target(server: &ScriptedServer) -> LoadTarget {
    LoadTarget::get("t", server.address, "test", "/")
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Runs a test on one thread, and ends it if it hangs.
fn run_test(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let bounded = tokio::time::timeout(Duration::from_secs(30), test);
        bounded.await.expect("the test hangs");
    });
}

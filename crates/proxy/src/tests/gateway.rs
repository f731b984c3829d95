//! External clients at a gateway: HTTP with and without TLS, TLS passthrough, TCP.

mod fixture;
mod pending_connections;
mod session_affinity;
mod sessions;

use std::time::Duration;

use leno_model::{
    FieldMatch, GatewayPortRules, Protocol, Redirect, RouteKind, RuleActions, Scheme, ValueMatch,
};
use leno_telemetry::Count;
use tokio::io::AsyncWriteExt as _;

use super::fixture::{Application, Client, End, OK, Setup, ShortConnectionServer, run, wait_until};
use super::http2::{connect_client, grpc_request, read_body, start_application};
use super::prior_knowledge::start_without_http2;
use crate::config::Limits;
use fixture::{
    GatewayFixture, HTTP, TCP, backends_to, gateway_listener, host_rules, http_port, path_rule,
    tcp_rule,
};

/// Starts an application that responds with the head of the request.
async fn start_mirror(name: &'static str) -> Application {
    Application::respond_with(move |request| {
        let text = format!("{name} {}", request.head);
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len())
    })
    .await
}

#[test]
fn requests_are_routed_by_host_and_path() {
    run(async {
        let (meshed, plain) = (start_mirror("meshed").await, start_mirror("plain").await);
        let gateway = GatewayFixture::new(meshed.address, Protocol::Http, plain.address).await;
        let shop = host_rules(
            "shop.example.com",
            vec![
                path_rule("/", backends_to("ratings")),
                path_rule("/plain", backends_to("plain")),
                path_rule("/none", backends_to("idle")),
                path_rule("/absent", backends_to("absent")),
                path_rule("/nobody", Vec::new()),
            ],
        );
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "*.example.com", vec![shop])],
        )]);
        let mut client = Client::connect(gateway.port_address(HTTP).await).await;
        for (host, path, verdict, begin) in [
            ("shop.example.com", "/a", (200, None), "meshed GET /a "),
            ("shop.example.com:8080", "/plain/b?c", (200, None), "plain GET /plain/b?c "),
            ("SHOP.example.com.", "/plain", (200, None), "plain GET /plain "),
            ("shop.example.com", "/none", (503, Some("no-endpoint")), "leno: "),
            ("shop.example.com", "/absent", (500, Some("invalid-backend")), "leno: "),
            ("shop.example.com", "/nobody", (500, Some("invalid-backend")), "leno: "),
            ("other.example.com", "/a", (404, Some("no-route")), "leno: "),
            ("example.com", "/a", (404, Some("no-route")), "leno: "),
        ] {
            let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n");
            let response = client.send_request(&request).await;
            assert_eq!(response.verdict(), verdict, "{host}{path}");
            assert!(
                response.body_text().starts_with(begin),
                "{host}{path}: {}",
                response.body_text()
            );
            if verdict.0 == 200 {
                assert!(
                    response.body_text().contains(&format!("host: {host}\r\n")),
                    "{}",
                    response.body_text()
                );
            }
        }
        let response_without_host = client.send_request("GET / HTTP/1.1\r\n\r\n").await;
        assert_eq!(response_without_host.verdict(), (400, Some("bad-request")));
        // A gateway is a client of the services behind it.
        let series = gateway.mesh.client.series_summaries();
        assert!(series.iter().all(|series| series.labels.direction == "outbound"));
        assert!(series.iter().any(|series| series.labels.service == "bookinfo/plain"));
    });
}

#[test]
fn applications_receive_the_client_address_and_no_claims_of_external_clients() {
    run(async {
        let (meshed, plain) = (start_mirror("meshed").await, start_mirror("plain").await);
        let gateway = GatewayFixture::new(meshed.address, Protocol::Http, plain.address).await;
        let rules =
            vec![path_rule("/", backends_to("ratings")), path_rule("/plain", backends_to("plain"))];
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", rules)])],
        )]);
        let mut client = Client::connect(gateway.port_address(HTTP).await).await;
        for path in ["/", "/plain"] {
            let request = format!(
                "GET {path} HTTP/1.1\r\nhost: a\r\nX-Forwarded-For: 192.0.2.1\r\nForwarded: for=me\r\n\
                 x-forwarded-proto: https\r\nX-Forwarded-Client-Cert: By=me\r\nx-real-ip: 1\r\nX_Forwarded_For: 2\r\nx: y\r\nx-forwarded-prefix: /a\r\n\
                 X-Client-IP: 3\r\nx_envoy-original_path: /b\r\ntrue-client-ip: 4\r\n\
                 x-forwards: z\r\n\r\n"
            );
            let reported = client.send_request(&request).await.body_text().to_ascii_lowercase();
            let fields: Vec<&str> = reported.lines().skip(1).collect();
            let expected = [
                "host: a",
                "x: y",
                "x-forwards: z",
                "x-forwarded-for: 127.0.0.1",
                "x-forwarded-proto: http",
            ];
            assert_eq!(fields, expected, "{path}");
        }
        // Nor do they affect rule matching; and a rule may remove the field.
        let mut idle_rule = path_rule("/", backends_to("idle"));
        idle_rule.matches[0].headers = vec![FieldMatch {
            name: "x-forwarded-for".into(),
            value: ValueMatch::Exact("me".into()),
        }];
        let mut plain_rule = path_rule("/", backends_to("plain"));
        plain_rule.actions.request_headers.remove = vec!["x-forwarded-for".to_owned()];
        let rules = vec![idle_rule, plain_rule];
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", rules)])],
        )]);
        let response =
            client.send_request("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: me\r\n\r\n").await;
        assert_eq!(response.verdict(), (200, None));
        assert!(!response.body_text().contains("x-forwarded-for"), "{}", response.body_text());
    });
}

#[test]
fn claims_of_external_clients_are_removed() {
    run(async {
        let plain = start_mirror("plain").await;
        let gateway = GatewayFixture::new(plain.address, Protocol::Http, plain.address).await;
        let rules = vec![path_rule("/", backends_to("plain"))];
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", rules)])],
        )]);
        let mut client = Client::connect(gateway.port_address(HTTP).await).await;
        for name in CLAIMS.split_whitespace() {
            let upper_case_name = name.to_ascii_uppercase();
            let variants =
                [name.to_owned(), name.replace('-', "_"), upper_case_name.replace('-', ".")];
            for name in variants {
                let request = format!("GET / HTTP/1.1\r\nhost: a\r\n{name}: claimed\r\n\r\n");
                let response = client.send_request(&request).await;
                assert_eq!(response.verdict(), (200, None), "{name}");
                assert!(
                    !response.body_text().contains("claimed"),
                    "{name}: {}",
                    response.body_text()
                );
            }
        }
    });
}

/// Fields that frameworks, load balancers and CDNs are known to trust.
const CLAIMS: &str = "forwarded forwarded-for forwarded-for-ip forwarded-host forwarded-proto x-forwarded x-forwarded-for \
    x-forwarded-for-original x-forwarded-host x-forwarded-proto x-forwarded-port x-forwarded-prefix x-forwarded-server \
    x-forwarded-by x-forwarded-scheme x-forwarded-ssl x-forwarded-path x-forwarded-uri x-forwarded-client-cert \
    x-forwarded-user x-forwarder-for x-forward-for x-original-forwarded-for x-original-host x-original-url \
    x-original-uri x-original-remote-addr x-originating-ip x-real-ip x-realip x-client-ip x-clientip client-ip \
    clientip x-true-client-ip true-client-ip true-client-port x-cluster-client-ip x-remote-ip x-remote-addr \
    x-remote-host remote-addr remote-ip remote-host cf-connecting-ip cf-connecting-ipv6 cf-connecting-o2o \
    cf-pseudo-ipv4 cf-visitor cf-ipcountry cloudfront-viewer-address cloudfront-forwarded-proto fastly-client-ip \
    fastly-client fastly-ssl fastly-temp-xff fly-client-ip fly-forwarded-port do-connecting-ip x-azure-clientip \
    x-azure-socketip x-azure-fdid x-appengine-user-ip x-appengine-remote-addr x-appengine-country \
    x-vercel-forwarded-for x-vercel-ip-country x-nf-client-connection-ip x-akamai-edgescape akamai-client-ip \
    x-sucuri-clientip incap-client-ip ali-cdn-real-ip cdn-src-ip x-cdn-src-ip wl-proxy-client-ip wl-proxy-ssl \
    proxy-client-ip x-proxy-client-ip x-proxyuser-ip x-http-client-ip http-client-ip x-user-ip x-source-ip x-peer-ip \
    x-gateway-client-ip x-lb-client-ip x-envoy-external-address x-envoy-original-path x-host x-host-override \
    x-http-host-override x-rewrite-url x-request-uri x-scheme x-url-scheme front-end-https x-custom-ip-authorization \
    x-coming-from coming-from client-cert client-cert-chain ssl-client-verify ssl-client-cert x-ssl-client-cert \
    x-client-cert x-client-verify x-amzn-mtls-clientcert x-amzn-remapped-host z-forwarded-for ns-client-ip \
    x-arr-clientcert x-arr-ssl x-waws-unencoded-url x-override-url";

#[test]
fn external_clients_receive_reasons_without_names() {
    run(async {
        let plain = Application::respond_with(|_| {
            "HTTP/1.1 403 Forbidden\r\nleno-reason: denied;workload=\"shop/web-1\"\r\n\
             content-length: 0\r\n\r\n"
                .to_owned()
        })
        .await;
        let gateway = GatewayFixture::new(plain.address, Protocol::Http, plain.address).await;
        let rules = vec![
            path_rule("/plain", backends_to("plain")),
            path_rule("/none", backends_to("idle")),
        ];
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", rules)])],
        )]);
        let mut client = Client::connect(gateway.port_address(HTTP).await).await;
        for (path, status, reported) in [
            ("/plain", 403, None),
            ("/none", 503, Some("no-endpoint")),
            ("/a", 404, Some("no-route")),
        ] {
            let response =
                client.send_request(&format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
            assert_eq!(
                (response.status, response.field_value("leno-reason")),
                (status, reported),
                "{path}"
            );
        }
    });
}

#[test]
fn redirects_use_the_port_of_the_external_client() {
    run(async {
        let app = start_mirror("meshed").await;
        let gateway = GatewayFixture::new(app.address, Protocol::Http, app.address).await;
        let redirect = |scheme| RuleActions {
            redirect: Some(Redirect {
                scheme,
                hostname: None,
                path: None,
                port: None,
                status: 301,
            }),
            ..RuleActions::default()
        };
        let mut rules = vec![path_rule("/", Vec::new()), path_rule("/s", Vec::new())];
        rules[0].actions = redirect(None);
        rules[1].actions = redirect(Some(Scheme::Https));
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", rules)])],
        )]);
        let mut client = Client::connect(gateway.port_address(HTTP).await).await;
        for (path, location) in [("/a?b", "http://a.com:8080/a?b"), ("/s/a", "https://a.com/s/a")] {
            let response =
                client.send_request(&format!("GET {path} HTTP/1.1\r\nhost: a.com:9\r\n\r\n")).await;
            assert_eq!((response.status, response.field_value("location")), (301, Some(location)));
        }
    });
}

#[test]
fn a_configuration_change_applies_to_the_next_request_of_a_connection() {
    run(async {
        let (meshed, plain) = (start_mirror("meshed").await, start_mirror("plain").await);
        let gateway = GatewayFixture::new(meshed.address, Protocol::Http, plain.address).await;
        let rule_to = |name: &str| {
            let rules = vec![path_rule("/", backends_to(name))];
            vec![http_port(HTTP, vec![gateway_listener("http", "", vec![host_rules("", rules)])])]
        };
        gateway.set_ports(rule_to("ratings"));
        let mut client = Client::connect(gateway.port_address(HTTP).await).await;
        let request = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        assert!(client.send_request(request).await.body_text().starts_with("meshed"));
        gateway.set_ports(rule_to("plain"));
        assert!(client.send_request(request).await.body_text().starts_with("plain"));
        // The port is gone, or has another protocol.
        gateway.set_ports(Vec::new());
        assert_eq!(client.send_request(request).await.verdict(), (404, Some("no-route")));
        let mut second_client = Client::connect(gateway.port_address(HTTP).await).await;
        second_client.stream.write_all(request.as_bytes()).await.ok();
        second_client.read_rest().await;
    });
}

#[test]
fn an_endpoint_without_a_listener_is_skipped() {
    run(async {
        let app = start_mirror("plain").await;
        let gateway = GatewayFixture::new(app.address, Protocol::Http, app.address).await;
        gateway.add_endpoint_at(super::fixture::closed_port());
        let rules = vec![path_rule("/", backends_to("plain"))];
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", rules)])],
        )]);
        let mut client = Client::connect(gateway.port_address(HTTP).await).await;
        for _ in 0..10 {
            let response = client.send_request("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
            assert_eq!(response.verdict(), (200, None));
        }
    });
}

#[test]
fn an_application_without_http2_is_skipped() {
    run(async {
        let app_without_length =
            start_without_http2("HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n").await;
        let app_with_length = start_application(|_, mut respond| async move {
            respond.send_response(http::Response::new(()), true).unwrap();
        })
        .await;
        let gateway = GatewayFixture::new(
            app_with_length.address,
            Protocol::Http2,
            app_without_length.address,
        )
        .await;
        let rules = || vec![path_rule("/", backends_to("plain"))];
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", rules())])],
        )]);
        // The sidecar does not read the body of a rejected request, so it closes its connection.
        let send = async |request| {
            Client::connect(gateway.port_address(HTTP).await).await.send_request(request).await
        };
        let post = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc";
        assert_eq!(send(post).await.verdict(), (502, Some("protocol-mismatch")));
        wait_until(|| gateway.mesh.client.failure_counts() == [("protocol-mismatch", 1)].into())
            .await;

        gateway.add_endpoint_at(app_with_length.address);
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", rules())])],
        )]);
        let count_before = app_without_length.accepted.get();
        while app_without_length.accepted.get() == count_before
            || app_with_length.accepted.get() == 0
        {
            assert_eq!(send(post).await.verdict(), (200, None));
        }
    });
}

#[test]
fn connections_to_applications_without_a_sidecar_are_reused() {
    run(async {
        let app = Application::with_response(OK).await;
        let gateway = GatewayFixture::new(app.address, Protocol::Http, app.address).await;
        let rules = vec![path_rule("/", backends_to("plain"))];
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", rules)])],
        )]);
        let mut client = Client::connect(gateway.port_address(HTTP).await).await;
        for _ in 0..5 {
            let body = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc";
            assert_eq!(client.send_request(body).await.body_text(), "ok");
        }
        assert_eq!(app.accepted.get(), 1);
        assert!(app.received_requests().iter().all(|request| request.body == b"abc"));
    });
}

#[test]
fn grpc_calls_reach_applications_without_a_sidecar() {
    run(async {
        let app = start_application(|request, mut respond| async move {
            assert_eq!(request.uri().scheme_str(), Some("http"));
            assert!(request.headers().contains_key("x-forwarded-for"));
            let head = http::Response::builder().header("content-type", "application/grpc");
            let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
            let (body, _) = read_body(request.into_body()).await;
            stream.send_data(body.into(), false).unwrap();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            stream.send_trailers(trailers).unwrap();
        })
        .await;
        let gateway = GatewayFixture::new(app.address, Protocol::Grpc, app.address).await;
        let rules = vec![path_rule("/shop.Cart", backends_to("plain"))];
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", rules)])],
        )]);
        let mut client = connect_client(gateway.port_address(HTTP).await).await;
        let (response, mut stream) =
            client.send_request(grpc_request("/shop.Cart/Add"), false).unwrap();
        stream.send_data("hello".into(), true).unwrap();
        let (body, trailers) = read_body(response.await.unwrap().into_body()).await;
        assert_eq!(
            (&*body, &trailers.unwrap()["grpc-status"]),
            (&b"hello"[..], &"0".parse().unwrap())
        );
        let (response, _) = client.send_request(grpc_request("/shop.Other/Add"), true).unwrap();
        let response = response.await.unwrap();
        // UNIMPLEMENTED, as for a call without a matching rule (grpc/doc/http-grpc-status-mapping.md).
        assert_eq!(response.headers()["grpc-status"], "12");
    });
}

#[test]
fn mirrored_requests_reach_applications_without_a_sidecar() {
    run(async {
        let (app, copied) = (start_mirror("meshed").await, Application::with_response(OK).await);
        let gateway = GatewayFixture::new(app.address, Protocol::Http, copied.address).await;
        let mut copying = path_rule("/", backends_to("ratings"));
        let mut mirrors = backends_to("plain");
        mirrors[0].weight = 1_000_000;
        copying.actions.mirrors = mirrors;
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", vec![copying])])],
        )]);
        let mut client = Client::connect(gateway.port_address(HTTP).await).await;
        for (count, sent) in [
            "GET /a HTTP/1.1\r\nhost: a\r\n\r\n",
            "POST /b HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc",
            "POST /c HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ]
        .into_iter()
        .enumerate()
        {
            assert!(client.send_request(sent).await.body_text().starts_with("meshed "));
            wait_until(|| gateway.mesh.client.telemetry.count(Count::MirrorsResponded) == count as u64 + 1).await;
        }
        let mirrored = copied.received_requests();
        let reported: Vec<_> = mirrored.iter().map(|request| request.body.as_slice()).collect();
        assert_eq!(reported, [&b""[..], b"abc", b"abc"]);
        assert!(mirrored[1].head.starts_with("POST /b "), "{}", mirrored[1].head);
        assert_eq!(copied.accepted.get(), 1, "the connection is reused");
    });
}

#[test]
fn mirrored_requests_that_an_http2_server_did_not_process_are_sent_again() {
    run(async {
        let (app, copied) = (start_mirror("meshed").await, ShortConnectionServer::start(1).await);
        let gateway =
            GatewayFixture::new(app.address, Protocol::Http2, copied.application.address).await;
        let mut copying = path_rule("/", backends_to("ratings"));
        let mut mirrors = backends_to("plain");
        mirrors[0].weight = 1_000_000;
        copying.actions.mirrors = mirrors;
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", vec![copying])])],
        )]);
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = Client::connect(gateway.port_address(HTTP).await).await;
            client.send_bytes("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc").await;
            clients.push(client);
        }
        let count = |count| gateway.mesh.client.telemetry.count(count);
        wait_until(|| count(Count::MirrorsResponded) + count(Count::MirrorsFailed) == 20).await;
        assert_eq!(count(Count::MirrorsFailed), 0);
        assert!(copied.take_refused() > 0, "a connection got more streams than it took");
    });
}

#[test]
fn grpc_calls_use_http2_to_ports_without_a_declared_protocol() {
    run(async {
        let app = start_application(|_, mut respond| async move {
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            let head = http::Response::builder().header("content-type", "application/grpc");
            let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
            stream.send_trailers(trailers).unwrap();
        })
        .await;
        let gateway = GatewayFixture::new(app.address, Protocol::Detect, app.address).await;
        let mut calls = path_rule("/shop.Cart", backends_to("plain"));
        calls.kind = RouteKind::Grpc;
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", vec![calls])])],
        )]);
        let mut client = connect_client(gateway.port_address(HTTP).await).await;
        let (response, _) = client.send_request(grpc_request("/shop.Cart/Add"), true).unwrap();
        let (_, trailers) = read_body(response.await.unwrap().into_body()).await;
        assert_eq!(trailers.unwrap()["grpc-status"], "0");
    });
}

#[test]
fn a_client_that_resets_many_requests_is_disconnected() {
    run(async {
        let app =
            Application::start(
                |mut client| async move { while client.read_head().await.is_some() {} },
            )
            .await;
        let gateway = GatewayFixture::new(app.address, Protocol::Http, app.address).await;
        let rules = vec![path_rule("/", backends_to("plain"))];
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", rules)])],
        )]);
        let mut client = connect_client(gateway.port_address(HTTP).await).await;
        for count in 1..=300 {
            let (response, mut stream) = client.send_request(grpc_request("/"), false).unwrap();
            tokio::select! {
                result = response => {
                    // The error code may be lost with bytes in flight.
                    assert!(result.is_err() && count > 200, "{count}");
                    return;
                }
                () = wait_until(|| app.accepted.get() == count) => stream.send_reset(h2::Reason::CANCEL),
            }
        }
        panic!("it may go on for ever");
    });
}

#[test]
fn external_clients_have_a_shorter_idle_timeout() {
    run(async {
        let app = start_mirror("meshed").await;
        let limits = Limits {
            head_timeout: Duration::from_millis(400),
            idle_external_client: Duration::from_millis(400),
            ..Setup::default().limits
        };
        let gateway =
            GatewayFixture::with_limits(limits, app.address, Protocol::Http, app.address).await;
        let rules = vec![path_rule("/", backends_to("ratings"))];
        gateway.set_ports(vec![http_port(
            HTTP,
            vec![gateway_listener("http", "", vec![host_rules("", rules)])],
        )]);
        let mut silent_client = Client::connect(gateway.port_address(HTTP).await).await;
        assert_eq!(silent_client.read_end().await, End::Clean);
        let mut idle_client = Client::connect(gateway.port_address(HTTP).await).await;
        let response = idle_client.send_request("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert_eq!((response.status, idle_client.read_end().await), (200, End::Clean));
    });
}

#[test]
fn bytes_are_forwarded_to_applications_with_and_without_a_sidecar() {
    run(async {
        for name in ["plain", "ratings"] {
            let app = Application::start(|mut client| async move {
                client.send_bytes("220 ready\r\n").await;
                let bytes = client.read_exactly(4).await;
                client.send_bytes(bytes).await;
            })
            .await;
            let gateway = GatewayFixture::new(app.address, Protocol::Tcp, app.address).await;
            gateway.set_ports(vec![(TCP, GatewayPortRules::Tcp(tcp_rule(backends_to(name))))]);
            let mut client = Client::connect(gateway.port_address(TCP).await).await;
            assert_eq!(client.read_exactly(11).await, b"220 ready\r\n", "{name}");
            client.send_bytes("QUIT").await;
            assert_eq!(client.read_exactly(4).await, b"QUIT");
            assert_eq!(client.read_end().await, End::Clean);
            client.stream.shutdown().await.unwrap();
            wait_until(|| gateway.mesh.client.ended_count() == 1).await;
            let [series] = &gateway.mesh.client.series_summaries()[..] else {
                panic!("one series")
            };
            let summary = (&*series.labels.service, &*series.labels.route, series.success);
            assert_eq!(summary, (&*format!("bookinfo/{name}"), "bookinfo/route", 1));
        }
    });
}

#[test]
fn bytes_without_a_destination_are_reset() {
    run(async {
        let app = Application::with_response(OK).await;
        let gateway = GatewayFixture::new(app.address, Protocol::Tcp, app.address).await;
        for backends in [Vec::new(), backends_to("absent"), backends_to("idle")] {
            gateway.set_ports(vec![(TCP, GatewayPortRules::Tcp(tcp_rule(backends)))]);
            let mut client = Client::connect(gateway.port_address(TCP).await).await;
            assert_eq!(client.read_end().await, End::Reset);
        }
    });
}

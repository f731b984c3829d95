//! Authorization with `defaultPolicy: deny`, and the effect of policy changes.

use leno_model::{
    Access, AccessRule, InboundPolicy, PathMatch, PolicyAction, PolicyName, PolicyRule, PortSet,
    Protocol, RequestMatch,
};
use leno_wire::link::StreamKind;

use super::fixture::{
    Application, Client, End, GET, Mesh, OK, Peer, Setup, proxy_config, run, service_account,
    test_credential, wait_until,
};

fn access_rule(source: &str, paths: &[&str], tcp: PortSet) -> AccessRule {
    let http = paths.iter().map(|path| RequestMatch {
        path: PathMatch::Prefix((*path).to_owned()),
        ..RequestMatch::default()
    });
    AccessRule {
        policy: PolicyName::new("bookinfo", &format!("{source}-reads")).unwrap(),
        sources: vec![service_account(source)],
        http: http.collect(),
        tcp,
    }
}

fn no_ports() -> PortSet {
    PortSet::Only(Vec::new())
}

fn reads_access(source: &str, path: &str) -> Access {
    Access::AllowListed(vec![access_rule(source, &[path], no_ports())])
}

#[test]
fn a_strict_server_enforces_its_policies() {
    run(async {
        let app = Application::with_response(OK).await;
        for (access, verdict) in [
            (Access::AllowAll, (200, None)),
            (reads_access("productpage", "/ratings"), (200, None)),
            (Access::AllowListed(Vec::new()), (403, Some("denied"))),
            (reads_access("reviews", "/ratings"), (403, Some("denied"))),
            (reads_access("productpage", "/other"), (404, Some("no-policy-route"))),
            (
                Access::AllowListed(vec![
                    access_rule("productpage", &["/other"], no_ports()),
                    access_rule("reviews", &["/ratings"], no_ports()),
                ]),
                (403, Some("denied")),
            ),
            // A rule that allows bytes at a port allows no request.
            (
                Access::AllowListed(vec![access_rule("productpage", &[], PortSet::All)]),
                (404, Some("no-policy-route")),
            ),
        ] {
            let count_before = app.requests.borrow().len();
            let mesh = Mesh::with_access(app.address, access.clone()).await;
            let mut client = Client::connect(mesh.listener).await;
            for _ in 0..2 {
                let response = client.send_request(GET).await;
                assert_eq!(response.verdict(), verdict, "{access:?}");
            }
            let request_count = app.requests.borrow().len() - count_before;
            assert_eq!(request_count, if verdict.0 == 200 { 2 } else { 0 });
        }
    });
}

#[test]
fn a_denial_names_the_policy_that_allows_the_request_to_others() {
    run(async {
        let app = Application::with_response(OK).await;
        let rules = vec![
            access_rule("productpage", &["/other"], no_ports()),
            access_rule("reviews", &["/ratings"], no_ports()),
        ];
        let mesh = Mesh::with_access(app.address, Access::AllowListed(rules)).await;
        let response = Client::connect(mesh.listener).await.send_request(GET).await;
        assert!(
            response.body_text().contains("bookinfo/reviews-reads"),
            "{}",
            response.body_text()
        );
        let reason = "denied;side=mesh;workload=\"bookinfo/ratings-1\"";
        assert_eq!(response.field_value("leno-reason"), Some(reason));
    });
}

#[test]
fn opaque_bytes_need_a_tcp_policy() {
    run(async {
        let app = Application::start(|mut client| async move {
            client.send_bytes("hello").await;
        })
        .await;
        let port = app.address.port();
        for (access, allowed) in [
            (Access::AllowAll, true),
            (Access::AllowListed(vec![access_rule("productpage", &[], PortSet::All)]), true),
            (
                Access::AllowListed(vec![access_rule(
                    "productpage",
                    &[],
                    PortSet::Only(vec![port]),
                )]),
                true,
            ),
            (
                Access::AllowListed(vec![access_rule("productpage", &[], PortSet::Only(vec![1]))]),
                false,
            ),
            (Access::AllowListed(vec![access_rule("reviews", &[], PortSet::All)]), false),
            (Access::AllowListed(vec![access_rule("productpage", &["/"], no_ports())]), false),
            (Access::AllowListed(Vec::new()), false),
        ] {
            let count_before = app.accepted.get();
            let setup = Setup { access, protocol: Protocol::Tcp, ..Setup::default() };
            let mesh = Mesh::new(app.address, setup.clone()).await;
            let mut client = Client::connect(mesh.listener).await;
            let expected =
                if allowed { (b"hello".to_vec(), End::Clean) } else { (Vec::new(), End::Reset) };
            use tokio::io::AsyncWriteExt;
            client.stream.shutdown().await.unwrap();
            assert_eq!(client.read_rest().await, expected, "{:?}", setup.access);
            assert_eq!(app.accepted.get() - count_before, usize::from(allowed));
            wait_until(|| mesh.server.ended_count() == 1).await;
            let denied_count = mesh.server.failure_counts().get("denied").copied();
            assert_eq!(denied_count, (!allowed).then_some(1));
        }
    });
}

#[test]
fn a_policy_change_applies_to_the_next_request_of_open_connections_and_links() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::with_access(app.address, reads_access("productpage", "/ratings")).await;
        let mut client = Client::connect(mesh.listener).await;
        let identity = test_credential(&mesh.authority, "productpage");
        let mut peer = Peer::connect_link(mesh.inbound, &identity).await;
        for (access, status) in [
            (None, 200),
            (Some(Access::AllowListed(Vec::new())), 403),
            (Some(reads_access("productpage", "/ratings")), 200),
            (Some(reads_access("reviews", "/ratings")), 403),
            (Some(reads_access("productpage", "/other")), 404),
            (Some(Access::AllowAll), 200),
        ] {
            if let Some(access) = access {
                mesh.set_access(access);
            }
            assert_eq!(client.send_request(GET).await.status, status);
            let stream = peer.open_stream(StreamKind::Http, GET, true);
            let (head, _, whole) = peer.read_response(stream).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")) && whole, "{head}");
        }
    });
}

#[test]
fn a_removed_port_is_not_served_on_open_links() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        assert_eq!(client.send_request(GET).await.status, 200);
        mesh.server.apply_config(proxy_config("ratings", Access::AllowAll), Vec::new());
        assert_eq!(client.send_request(GET).await.verdict(), (404, Some("unknown-service")));
    });
}

fn deny_rule(requests: Vec<RequestMatch>) -> PolicyRule {
    PolicyRule {
        policy: PolicyName::new("bookinfo", "guard").unwrap(),
        name: "closed".to_owned(),
        action: PolicyAction::Deny,
        peers: Vec::new(),
        requests,
        claims: Vec::new(),
        ports: PortSet::All,
    }
}

#[test]
fn dry_run_allows_and_counts_denials_by_reason_and_peer() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        let audited = || {
            let mut page = String::new();
            mesh.server.telemetry.expose(leno_telemetry::ExpositionFormat::Prometheus, &mut page);
            let is = |line: &&str| line.starts_with("leno_dry_run_denials_total{");
            page.lines().filter(is).map(str::to_owned).collect::<Vec<_>>()
        };
        let rules = || vec![deny_rule(vec![RequestMatch::default()])];
        for (is_dry_run, rules, verdict) in [
            (true, Vec::new(), (200, None)),
            (true, rules(), (200, None)),
            (false, rules(), (403, Some("denied-by-policy"))),
        ] {
            mesh.set_access_and_policy(
                Access::AllowListed(Vec::new()),
                InboundPolicy { is_dry_run, rules },
            );
            assert_eq!(client.send_request(GET).await.verdict(), verdict, "{is_dry_run}");
        }
        wait_until(|| mesh.server.ended_count() == 3).await;
        let denials = audited();
        assert_eq!(denials.len(), 2, "{denials:?}");
        for (line, reason) in denials.iter().zip(["denied", "denied-by-policy"]) {
            let end = format!("protocol=\"http\",reason=\"{reason}\"}} 1");
            assert!(line.ends_with(&end), "{line}");
            assert!(line.contains("peer=\"bookinfo/productpage\""), "{line}");
        }
        assert_eq!(mesh.server.failure_counts().get("denied-by-policy"), Some(&1));
    });
}

#[test]
fn a_denial_names_the_rule() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let inbound =
            InboundPolicy { rules: vec![deny_rule(Vec::new())], ..InboundPolicy::default() };
        mesh.set_access_and_policy(Access::AllowAll, inbound);
        let response = Client::connect(mesh.listener).await.send_request(GET).await;
        assert_eq!(response.verdict(), (403, Some("denied-by-policy")));
        let rule_description = "(AccessPolicy bookinfo/guard rule closed)";
        assert!(response.body_text().contains(rule_description), "{}", response.body_text());
    });
}

#[test]
fn an_open_tcp_stream_ends_once_it_is_denied() {
    run(async {
        let app = Application::start(|mut client| async move {
            loop {
                let Some(bytes) = client.try_read(1).await else { return };
                client.send_bytes(bytes).await;
            }
        })
        .await;
        let setup = Setup { protocol: Protocol::Tcp, ..Setup::default() };
        let mesh = Mesh::new(app.address, setup).await;
        let open_client = || async {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes("a").await;
            assert_eq!(client.read_exactly(1).await, b"a");
            client
        };
        let allow_all = || Access::AllowListed(vec![access_rule("productpage", &[], PortSet::All)]);
        let rules = || vec![deny_rule(Vec::new())];
        for (access, inbound) in [
            (Access::AllowListed(Vec::new()), InboundPolicy::default()),
            (allow_all(), InboundPolicy { rules: rules(), ..InboundPolicy::default() }),
        ] {
            mesh.set_access(Access::AllowAll);
            let mut client = open_client().await;
            // Requests that remain allowed, or are denied in a dry run only, continue.
            mesh.set_access(allow_all());
            mesh.set_access_and_policy(
                Access::AllowListed(Vec::new()),
                InboundPolicy { is_dry_run: true, rules: rules() },
            );
            client.send_bytes("b").await;
            assert_eq!(client.read_exactly(1).await, b"b");
            mesh.set_access_and_policy(access, inbound);
            assert_eq!(client.read_end().await, End::Reset);
        }
        wait_until(|| mesh.server.ended_count() == 2).await;
        let failures = mesh.server.failure_counts();
        assert_eq!((failures["denied"], failures["denied-by-policy"]), (1, 1));
    });
}

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
fn a_strict_server_answers_as_its_policies_say() {
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
            let before = app.seen.borrow().len();
            let mesh = Mesh::with_access(app.address, access.clone()).await;
            let mut client = Client::connect(mesh.listener).await;
            for _ in 0..2 {
                let answer = client.send_request(GET).await;
                assert_eq!(answer.verdict(), verdict, "{access:?}");
            }
            let asked = app.seen.borrow().len() - before;
            assert_eq!(asked, if verdict.0 == 200 { 2 } else { 0 });
        }
    });
}

#[test]
fn a_denial_names_the_policy_that_allows_it_to_others() {
    run(async {
        let app = Application::with_response(OK).await;
        let rules = vec![
            access_rule("productpage", &["/other"], no_ports()),
            access_rule("reviews", &["/ratings"], no_ports()),
        ];
        let mesh = Mesh::with_access(app.address, Access::AllowListed(rules)).await;
        let answer = Client::connect(mesh.listener).await.send_request(GET).await;
        assert!(answer.body_text().contains("bookinfo/reviews-reads"), "{}", answer.body_text());
        let reason = "denied;side=mesh;workload=\"bookinfo/ratings-1\"";
        assert_eq!(answer.field_value("leno-reason"), Some(reason));
    });
}

#[test]
fn bytes_need_a_policy_of_their_own() {
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
            let before = app.accepted.get();
            let setup = Setup { access, protocol: Protocol::Tcp, ..Setup::default() };
            let mesh = Mesh::new(app.address, setup.clone()).await;
            let mut client = Client::connect(mesh.listener).await;
            let expected =
                if allowed { (b"hello".to_vec(), End::Clean) } else { (Vec::new(), End::Reset) };
            use tokio::io::AsyncWriteExt;
            client.stream.shutdown().await.unwrap();
            assert_eq!(client.read_rest().await, expected, "{:?}", setup.access);
            assert_eq!(app.accepted.get() - before, usize::from(allowed));
            wait_until(|| mesh.server.ended_count() == 1).await;
            let denied = mesh.server.failure_counts().get("denied").copied();
            assert_eq!(denied, (!allowed).then_some(1));
        }
    });
}

#[test]
fn a_change_decides_the_next_request_of_connections_and_links_that_are_open() {
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
fn a_port_that_left_the_plan_is_not_served_on_links_that_are_open() {
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
fn audit_lets_in_and_counts_by_reason_and_peer() {
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
            mesh.enforce_all(Access::AllowListed(Vec::new()), InboundPolicy { is_dry_run, rules });
            assert_eq!(client.send_request(GET).await.verdict(), verdict, "{is_dry_run}");
        }
        wait_until(|| mesh.server.ended_count() == 3).await;
        let counted = audited();
        assert_eq!(counted.len(), 2, "{counted:?}");
        for (line, reason) in counted.iter().zip(["denied", "denied-by-policy"]) {
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
        mesh.enforce_all(Access::AllowAll, inbound);
        let answer = Client::connect(mesh.listener).await.send_request(GET).await;
        assert_eq!(answer.verdict(), (403, Some("denied-by-policy")));
        let named = "(AccessPolicy bookinfo/guard rule closed)";
        assert!(answer.body_text().contains(named), "{}", answer.body_text());
    });
}

#[test]
fn an_open_stream_of_bytes_ends_when_it_is_not_allowed_any_more() {
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
        let open = || async {
            let mut client = Client::connect(mesh.listener).await;
            client.send_bytes("a").await;
            assert_eq!(client.read_exactly(1).await, b"a");
            client
        };
        let all = || Access::AllowListed(vec![access_rule("productpage", &[], PortSet::All)]);
        let rules = || vec![deny_rule(Vec::new())];
        for (access, inbound) in [
            (Access::AllowListed(Vec::new()), InboundPolicy::default()),
            (all(), InboundPolicy { rules: rules(), ..InboundPolicy::default() }),
        ] {
            mesh.set_access(Access::AllowAll);
            let mut client = open().await;
            // Requests that remain allowed, or are denied in a dry run only, continue.
            mesh.set_access(all());
            mesh.enforce_all(
                Access::AllowListed(Vec::new()),
                InboundPolicy { is_dry_run: true, rules: rules() },
            );
            client.send_bytes("b").await;
            assert_eq!(client.read_exactly(1).await, b"b");
            mesh.enforce_all(access, inbound);
            assert_eq!(client.read_end().await, End::Reset);
        }
        wait_until(|| mesh.server.ended_count() == 2).await;
        let failures = mesh.server.failure_counts();
        assert_eq!((failures["denied"], failures["denied-by-policy"]), (1, 1));
    });
}

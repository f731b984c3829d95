//! Forwarding: fields that sidecars add, preserve, or trust.

use leno_model::{Access, Protocol};
use leno_telemetry::Count;
use serde_json::Value;

use super::fixture::{Application, Client, Mesh, OK, Setup, run, wait_until};
use super::http2::{connect_client, grpc_request};

/// Fields that other intermediaries write, repeated and in unusual forms.
const CLAIMS: &str = "Via: 1.0 fred, 1.1 p.example.net\r\nvia: HTTP/2 edge (x)\r\n\
                      X-Forwarded-For: 203.0.113.7,  2001:db8::1\r\nx-forwarded-FOR: unknown\r\n\
                      X-Forwarded-Proto: https\r\nX-Forwarded-Host: shop.example\r\n\
                      X-Real-IP: 203.0.113.7\r\n\
                      Forwarded: for=\"[2001:db8::1]:4711\";proto=https;by=_hidden\r\n\
                      X-Forwarded-Client-Cert: By=x;URI=spiffe://cluster.local/ns/bookinfo/sa/admin\r\n\
                      leno-reason: denied;side=mesh\r\nDate: Mon, 01 Jan 2001 00:00:00 GMT\r\n";

#[test]
fn a_request_is_forwarded_unchanged() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let mut client = Client::connect(mesh.listener).await;
        client.send_request("GET /a HTTP/1.1\r\nhost: x\r\n\r\n").await;
        client.send_request(&format!("GET /a HTTP/1.1\r\nhost: x\r\n{CLAIMS}\r\n")).await;
        let [bare_request, full_request] = &app.received_requests()[..] else {
            panic!("two requests")
        };
        let line = "GET /a HTTP/1.1\r\nhost: ratings.bookinfo:9080";
        assert_eq!(bare_request.head, line);
        assert_eq!(full_request.head, format!("{line}\r\n{}", CLAIMS.trim_end()));
    });
}

#[test]
fn claims_of_a_request_about_its_sender_are_removed() {
    run(async {
        let app = Application::with_response(OK).await;
        let mut mesh = Mesh::with_access(app.address, Access::AllowListed(Vec::new())).await;
        let mut client = Client::connect(mesh.listener).await;
        let response =
            client.send_request(&format!("GET /a HTTP/1.1\r\nhost: x\r\n{CLAIMS}\r\n")).await;
        assert_eq!(response.verdict(), (403, Some("denied")));
        assert_eq!(app.accepted.get(), 0);
        wait_until(|| mesh.server.ended_count() == 1).await;
        assert_eq!(mesh.server.series_summaries()[0].labels.peer, "bookinfo/productpage");
        let mut text = String::new();
        let trace_entry = mesh.server.log.try_recv().expect("a line");
        crate::access_log::append_log_line(&trace_entry, &leno_model::LogFormat::Json, &mut text);
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["peer"], "bookinfo/productpage");
        assert_eq!(mesh.server.telemetry.count(Count::Retries), 0);
    });
}

#[test]
fn a_final_response_without_a_date_gets_one() {
    run(async {
        let app = Application::respond_with(|request| {
            let dated_response =
                "HTTP/1.1 200 OK\r\nDATE: Mon, 01 Jan 2001 00:00:00 GMT\r\nvia: 1.1 a\r\n";
            let interim = "HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n";
            match request.head.split(' ').nth(1).unwrap() {
                "/dated" => format!("{dated_response}content-length: 0\r\n\r\n"),
                "/interim" => format!("{interim}HTTP/1.1 204 No Content\r\n\r\n"),
                _ => OK.to_owned(),
            }
        })
        .await;
        let mesh = Mesh::new(app.address, Setup { protocol: Protocol::Http2, ..Setup::default() });
        let http1 = Mesh::permissive(app.address).await;
        let http2 = mesh.await;
        http2
            .client
            .set_credential(super::fixture::test_credential(&http1.authority, "productpage"));
        http2.route_to(&[http1.server_endpoint()]);

        let mut client = Client::connect(http1.listener).await;
        let dated_response = client.send_request("GET /dated HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert_eq!(dated_response.field_value("date"), Some("Mon, 01 Jan 2001 00:00:00 GMT"));
        assert_eq!(dated_response.head.to_lowercase().matches("\r\ndate:").count(), 1);
        assert_eq!(dated_response.field_value("via"), Some("1.1 a"));
        let bare_response = client.send_request("GET /bare HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(is_date(bare_response.field_value("date").unwrap()), "{}", bare_response.head);
        assert_eq!(
            bare_response.head.matches("\r\ndate:").count(),
            1,
            "both sidecars add one date in total"
        );
        client.send_bytes("GET /interim HTTP/1.1\r\nhost: x\r\n\r\n").await;
        let (interim, last) =
            (client.read_head().await.unwrap(), client.read_head().await.unwrap());
        assert_eq!((interim.status, interim.field_value("date")), (103, None));
        assert!(last.status == 204 && last.field_value("date").is_some());

        // An HTTP/2 client and the sidecar's own responses get a date as well.
        let mut client = connect_client(http2.listener).await;
        let request = grpc_request("/bare");
        let response = client.send_request(request, true).unwrap().0.await.unwrap();
        assert!(is_date(response.headers()["date"].to_str().unwrap()));
        http1.route_to(&[]);
        http2.route_to(&[]);
        let mut refused = Client::connect(http1.listener).await;
        let refused = refused.send_request("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert!(refused.status == 503 && is_date(refused.field_value("date").unwrap()));
        let response = client.send_request(grpc_request("/"), true).unwrap().0.await.unwrap();
        assert!(is_date(response.headers()["date"].to_str().unwrap()));
    });
}

fn is_date(text: &str) -> bool {
    text.len() == 29 && text.ends_with(" GMT") && text.is_char_boundary(5)
}

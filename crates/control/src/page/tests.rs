//! Access to the page by host, origin and token, and the headers of every response.

use tokio::sync::{mpsc, watch};

use super::*;
use crate::explanation::{Explainer, Explanation};
use crate::state_task::AdminResponse;

fn header_map(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let pair = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
    };
    pairs.iter().map(pair).collect()
}

fn admission_status(
    page_token: Option<&PageToken>,
    pairs: &[(&'static str, &str)],
    target: &str,
) -> u16 {
    match admit_request(page_token, &target.parse().unwrap(), &header_map(pairs), target) {
        PageAdmission::Admitted => 200,
        PageAdmission::Respond(response) => response.status().as_u16(),
    }
}

#[test]
fn a_request_with_another_host_name_is_rejected() {
    for host in ["127.0.0.1", "127.0.0.1:9", "[::1]:80", "[::1]", "localhost:1", "LocalHost"] {
        assert_eq!(admission_status(None, &[("host", host)], "/"), 200, "{host}");
    }
    for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.x", ""] {
        assert_eq!(admission_status(None, &[("host", host)], "/"), 421, "{host}");
    }
    assert_eq!(admission_status(None, &[], "/"), 421);
    let host = ("host", "127.0.0.1");
    assert_eq!(admission_status(None, &[host], "http://evil.example/ready"), 421);
    assert_eq!(admission_status(None, &[host, ("host", "evil.example")], "/"), 400);
}

#[test]
fn a_page_of_another_site_is_rejected() {
    let token = PageToken::new("secret".to_owned(), 80);
    let host = ("host", "127.0.0.1:80");
    let bearer = ("authorization", "Bearer secret");
    let link = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
    for (token, credentials) in [(None, ("accept", "*/*")), (Some(&token), bearer)] {
        for target in ["/api/status", "/api/explain?url=x", "/api/tap?service=a/b", "/main.js", "/"]
        {
            for other_origin in [
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-site", "same-site"),
                ("origin", "http://evil.example"),
                ("origin", "http://127.0.0.1:81"),
                ("origin", "null"),
            ] {
                let pairs = [host, credentials, other_origin];
                assert_eq!(
                    admission_status(token, &pairs, target),
                    403,
                    "{target} {other_origin:?}"
                );
            }
            for own_page in [("sec-fetch-site", "same-origin"), ("origin", "http://127.0.0.1:80")] {
                assert_eq!(
                    admission_status(token, &[host, credentials, own_page], target),
                    200,
                    "{target}"
                );
            }
            let sites = [("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")];
            assert_eq!(
                admission_status(token, &[host, credentials, sites[0], sites[1]], target),
                403,
                "{target}"
            );
            let pairs = [host, credentials, ("sec-fetch-site", "cross-site"), link[0], link[1]];
            let expected = if target.starts_with("/api/") { 403 } else { 200 };
            assert_eq!(admission_status(token, &pairs, target), expected, "a link to {target}");
        }
    }
}

#[test]
fn the_token_is_required_beyond_loopback() {
    let token = PageToken::new("secret".to_owned(), 80);
    let token = Some(&token);
    let host = ("host", "192.0.2.1:80");
    for (pairs, target, expected) in [
        (&[host][..], "/", 401),
        (&[host], "/?token=wrong", 401),
        (&[host], "/?token=secret", 303),
        (&[host], "/?token=secret2", 401),
        (&[host, ("cookie", "leno-page-80=secret")], "/api/status", 200),
        (&[host, ("cookie", "leno-page-81=secret")], "/api/status", 401),
        (&[host, ("cookie", "a=b; leno-page-80=secret")], "/", 200),
        (&[host, ("cookie", "leno-page-80=secre")], "/", 401),
        (&[host, ("cookie", "leno-page-80secret")], "/", 401),
        (&[host, ("authorization", "Bearer secret")], "/", 200),
        (&[host, ("authorization", "Basic secret")], "/", 401),
        (&[("host", "mesh.example")], "/", 401),
        (&[("host", "mesh.example"), ("authorization", "Bearer secret")], "/", 200),
    ] {
        assert_eq!(admission_status(token, pairs, target), expected, "{pairs:?} {target}");
    }
    let PageAdmission::Respond(response) =
        admit_request(token, &"/".parse().unwrap(), &header_map(&[host]), "/?token=secret")
    else {
        panic!("the response is a redirect");
    };
    let cookie = response.headers().get(SET_COOKIE).unwrap().to_str().unwrap();
    assert_eq!(cookie, "leno-page-80=secret; HttpOnly; SameSite=Strict; Path=/");
    assert_eq!(response.headers().get(LOCATION).unwrap(), "/");
}

/// Returns the response of the page over a real connection.
async fn send_request(address: SocketAddr, request: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

#[tokio::test]
async fn the_page_serves_its_files_and_is_read_only() {
    let data = tempfile::tempdir().unwrap();
    let page = Page::open("127.0.0.1:0".parse().unwrap(), data.path()).await.unwrap();
    let address = page.address();
    assert_eq!(page.url(), format!("http://{address}/"));
    let (queries, mut queries_receiver) =
        mpsc::channel::<(_, tokio::sync::oneshot::Sender<AdminResponse>)>(1);
    let (stop, stopping) = watch::channel(false);
    let explainer = Explainer::new(|objects, query| match query.from.as_str() {
        "a/b" => Ok(Explanation {
            text: format!("{} objects, {}", objects.len(), query.url),
            ..Explanation::default()
        }),
        other => Err(format!("there is no {other}")),
    });
    let mut tasks = tokio::task::JoinSet::new();
    let live_url = page.live_url();
    let taps = Arc::new(Taps::new(7));
    let explain_runner = ExplainRunner::with_explainer(Some(explainer));
    let directory = DataDirectory::new(data.path().to_owned());
    let resources = PageResources { explain_runner, taps: Arc::clone(&taps), directory };
    tasks.spawn(page.serve(queries, resources, stopping));
    tasks.spawn(async move {
        while let Some((query, reply)) = queries_receiver.recv().await {
            let response = match query {
                AdminQuery::Objects => AdminResponse::Objects(Vec::new()),
                AdminQuery::Status => {
                    AdminResponse::Json(serde_json::json!({"page": "/?token=x", "live": "x"}))
                }
                query => AdminResponse::Json(format!("{query:?}").into()),
            };
            drop(reply.send(response));
        }
    });
    let request =
        |line: &str| format!("{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    for (path, content_type, _) in FILES {
        let response = send_request(address, &request(&format!("GET {path}"))).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{path}: {response}");
        assert!(response.contains(&format!("content-type: {content_type}")), "{path}");
        assert!(
            response.contains("content-security-policy: default-src 'none'; script-src 'self'")
        );
        assert!(response.contains("x-content-type-options: nosniff"));
    }
    paths_are_read_only(address).await;
    assert!(send_request(address, &request("GET /api/status")).await.ends_with("{}\n"));
    live_requests_need_their_token(address, &live_url).await;
    stop.send_replace(true);
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
}

async fn paths_are_read_only(address: SocketAddr) {
    let request =
        |line: &str| format!("{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    for (line, expected) in [
        ("GET /api/status", "200 OK"),
        ("GET /api/history?service=a/b", "200 OK"),
        ("GET /api/history?service=a", "404 Not Found"),
        ("GET /api/explain?from=a%2Fb&url=x", "200 OK"),
        ("GET /api/explain?from=c&url=x", "400 Bad Request"),
        ("GET /api/explain?to=c", "400 Bad Request"),
        ("POST /api/explain?from=a%2Fb&url=x", "405 Method Not Allowed"),
        ("GET /api/metrics", "404 Not Found"),
        ("GET /status", "404 Not Found"),
        ("GET /api/tap?service=a/b", "401 Unauthorized"),
        ("GET /api/tap", "404 Not Found"),
        ("POST /api/tap?service=a/b", "405 Method Not Allowed"),
        ("GET /api/token", "404 Not Found"),
        ("POST /api/token?workload=a/b", "405 Method Not Allowed"),
        ("POST /api/reload", "405 Method Not Allowed"),
        ("DELETE /", "405 Method Not Allowed"),
        ("GET /../page.css", "404 Not Found"),
    ] {
        let response = send_request(address, &request(line)).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {expected}")), "{line}: {response}");
        assert!(response.contains("frame-ancestors 'none'"), "{line}: {response}");
    }
}

async fn live_requests_need_their_token(address: SocketAddr, live_url: &str) {
    let request =
        |line: &str| format!("{line} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let (_, token) = live_url.rsplit_once('/').unwrap();
    for (sent_token, query, expected) in [
        (token, "service=a/b&status=9xx", "400 Bad Request"),
        (token, "", "400 Bad Request"),
        (&token[1..], "service=a/b", "401 Unauthorized"),
        ("", "service=a/b", "401 Unauthorized"),
    ] {
        let bearer = format!("Authorization: Bearer {sent_token}\r\nHost:");
        let live_request = request(&format!("GET /api/tap?{query}")).replacen("Host:", &bearer, 1);
        let response = send_request(address, &live_request).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {expected}")), "{query}: {response}");
    }
}

/// An explanation compiles the whole mesh: a client that disconnects and reconnects may not have more than one
/// running.
#[tokio::test]
async fn an_explanation_continues_after_its_client_has_disconnected() {
    let (queries, mut queries_receiver) =
        mpsc::channel::<(_, tokio::sync::oneshot::Sender<AdminResponse>)>(1);
    let (started, mut starts) = mpsc::channel(1);
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let explainer = Explainer::new(move |_, _| {
        started.blocking_send(()).unwrap();
        released.lock().unwrap().recv().unwrap();
        Ok(Explanation::default())
    });
    let explain_runner = ExplainRunner::with_explainer(Some(explainer));
    let server = PageHandler {
        queries,
        page_token: None,
        live_token: String::new(),
        explain_runner: explain_runner.clone(),
        taps: Arc::new(Taps::new(7)),
        query_share: QueryShare::new(QUERY_PAUSE_FACTOR),
        explain_share: QueryShare::new(EXPLAIN_PAUSE_FACTOR),
        findings_cache: FindingsCache::new(DataDirectory::new(std::path::PathBuf::new())),
    };
    let state_task = async {
        let (_, reply) = queries_receiver.recv().await.unwrap();
        reply.send(AdminResponse::Objects(Vec::new())).unwrap();
        starts.recv().await.unwrap();
    };
    tokio::select! {
        _ = server.explain_request("from=a/b") => panic!("it does not wait"),
        () = state_task => {}
    }
    // The client has disconnected.
    assert!(!explain_runner.is_idle());
    release.send(()).unwrap();
    explain_runner.wait_until_idle().await;
}

#[tokio::test]
async fn the_page_keeps_its_address_over_a_restart_unless_it_is_in_use() {
    let data = tempfile::tempdir().unwrap();
    let any_port = "127.0.0.1:0".parse().unwrap();
    let first = Page::open(any_port, data.path()).await.unwrap().address();
    assert_eq!(Page::open(any_port, data.path()).await.unwrap().address(), first);
    let blocking_listener = std::net::TcpListener::bind(first).unwrap();
    let second = Page::open(any_port, data.path()).await.unwrap().address();
    assert_ne!(second, first);
    drop(blocking_listener);
    assert_eq!(Page::open(any_port, data.path()).await.unwrap().address(), second);
}

/// A scraper has the token of the last run. A file with access for other users is not trusted.
#[tokio::test]
async fn the_page_keeps_its_token_over_a_restart_beyond_loopback() {
    let data = tempfile::tempdir().unwrap();
    let open = || async {
        let page = Page::open("0.0.0.0:0".parse().unwrap(), data.path()).await;
        page.unwrap().token.unwrap()
    };
    let (first_token, second_token) = (open().await, open().await);
    assert!(first_token.len() >= 32 && first_token == second_token, "{first_token} {second_token}");
    let file = data.path().join(TOKEN_FILE);
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    assert_ne!(open().await, first_token);
    std::fs::remove_file(&file).unwrap();
    assert_ne!(open().await, first_token);
}

/// The page loads nothing from elsewhere, and needs nothing that its policy forbids.
#[test]
fn the_files_comply_with_the_policy() {
    for (path, _, content) in FILES {
        for forbidden in
            ["https://", "//cdn", "@import", " style=", "onclick=", "eval(", "innerHTML"]
        {
            assert!(!content.contains(forbidden), "{path} has {forbidden}");
        }
        let url_count = content.matches("http://").count();
        // An XML namespace, and a sample input.
        let permitted = ["http://www.w3.org/2000/svg", "http://ratings.bookinfo:9080/"];
        let permitted: usize = permitted.iter().map(|text| content.matches(text).count()).sum();
        assert_eq!(url_count, permitted, "{path} names another site");
    }
}

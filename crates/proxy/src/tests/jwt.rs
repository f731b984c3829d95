//! JSON web tokens in requests, verified before all other policies.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leno_model::{
    Access, ClaimHeader, ClaimMatch, InboundPolicy, IssuerKeys, JwtIssuer, JwtLocation,
    JwtValidation, PathMatch, PolicyAction, PolicyName, PolicyRule, PortCheck, PortSet, Protocol,
    RequestCheck, RequestMatch, ServicePolicyKind, ServicePolicyName, TokenRequirement,
};
use serde_json::{Value, json};

use super::fixture::{Application, Client, Mesh, OK, run};
use super::http2;

/// An issuer with one signing key.
pub(super) struct Issuer(EcdsaKeyPair);

impl Issuer {
    pub(super) fn new() -> Self {
        Self(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    fn key_set(&self) -> String {
        let (x, y) = self.0.public_key().as_ref()[1..].split_at(32);
        let [x, y] = [x, y].map(|half| URL_SAFE_NO_PAD.encode(half));
        json!({"keys": [{"kty": "EC", "crv": "P-256", "kid": "1", "x": x, "y": y}]}).to_string()
    }

    fn sign_token(&self, groups: &[&str], seconds: i64) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let end = now.saturating_add_signed(seconds);
        let claims = json!({"iss": "me", "aud": "ratings", "sub": "ann", "exp": end,
                            "groups": groups});
        let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(json!({"alg": "ES256", "kid": "1"})), encode(claims));
        let signature = self.0.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    pub(super) fn token_check(&self, required: TokenRequirement) -> PortCheck {
        let claim = |claim: &str, header: &str| ClaimHeader {
            claim: claim.to_owned(),
            header: header.to_owned(),
        };
        let (name, prefix) = ("authorization".to_owned(), "Bearer ".to_owned());
        let issuer = JwtIssuer {
            issuer: "me".to_owned(),
            aud: vec!["ratings".to_owned()],
            algorithms: BTreeSet::new(),
            keys: IssuerKeys::Inline(self.key_set().into()),
            locations: vec![
                JwtLocation::Header { name, prefix },
                JwtLocation::Query("access_token".to_owned()),
            ],
            clock_skew: std::time::Duration::from_secs(10),
            requires_expiration: true,
            max_age: None,
            claim_to_headers: vec![claim("sub", "x-user"), claim("groups", "x-groups")],
            forward_original_token: false,
        };
        let rule = JwtValidation { issuers: vec![issuer], required };
        let kind = ServicePolicyKind::JwtValidation;
        let policy = ServicePolicyName::new(kind, "bookinfo", "tokens").unwrap();
        PortCheck { policy, check: RequestCheck::Tokens(Box::new(rule)) }
    }
}

fn path_prefix(prefix: &str) -> RequestMatch {
    RequestMatch { path: PathMatch::Prefix(prefix.to_owned()), ..RequestMatch::default() }
}

fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\n{fields}\r\n")
}

fn bearer_request(token: &str) -> String {
    format!("authorization: bearer {token}\r\n")
}

#[test]
fn claims_of_a_client_are_removed_for_http2_applications() {
    run(async {
        let app = http2::start_application(|request, mut respond| async move {
            let reported = |name: &str| {
                let values = request.headers().get_all(name).iter();
                values.map(|value| value.to_str().unwrap()).collect::<Vec<_>>().join(",")
            };
            let head = http::Response::builder()
                .header("saw-user", reported("x-user"))
                .header("saw-groups", reported("x-groups"))
                .header("saw-token", reported("authorization"));
            drop(respond.send_response(head.body(()).unwrap(), true).unwrap());
        });
        let mesh = http2::http2_mesh(app.await.address, Protocol::Grpc).await;
        let issuer = Issuer::new();
        mesh.set_checks(vec![issuer.token_check(TokenRequirement::Never)], Vec::new());
        let mut client = http2::connect_client(mesh.listener).await;
        let token = format!("Bearer {}", issuer.sign_token(&["readers"], 60));
        for (token, reported) in [(Some(token), ["ann", "readers", ""]), (None, ["", "", ""])] {
            let mut call = http2::grpc_request("/ratings/Rate");
            for (name, value) in [("x-user", "eve"), ("x-groups", "admins")] {
                call.headers_mut().insert(name, value.parse().unwrap());
            }
            if let Some(token) = token {
                call.headers_mut().insert("authorization", token.parse().unwrap());
            }
            let (response, _) = client.send_request(call, true).unwrap();
            let response = response.await.unwrap();
            let seen_claims = ["saw-user", "saw-groups", "saw-token"]
                .map(|name| response.headers()[name].to_str().unwrap().to_owned());
            assert_eq!(seen_claims, reported);
        }
    });
}

#[test]
fn a_token_is_verified_and_its_claims_are_forwarded() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let (issuer, other_issuer) = (Issuer::new(), Issuer::new());
        mesh.set_checks(
            vec![issuer.token_check(TokenRequirement::Matching(vec![path_prefix("/ratings")]))],
            Vec::new(),
        );
        let mut client = Client::connect(mesh.listener).await;
        let token = issuer.sign_token(&["readers", "writers"], 60);
        let faked_headers = "x-user: eve\r\nx-groups: admins\r\n";
        let request = get("/ratings", &format!("{}{faked_headers}", bearer_request(&token)));
        assert_eq!(client.send_request(&request).await.status, 200);
        let received = app.received_requests().remove(0);
        assert_eq!(received.field_value("x-user"), Some("ann"));
        assert_eq!(received.field_value("x-groups"), Some("readers,writers"));
        assert_eq!(received.field_value("authorization"), None);
        assert_eq!(received.head.matches("x-user").count(), 1);

        // No token is required there, but forged claims are still removed.
        assert_eq!(client.send_request(&get("/health", faked_headers)).await.status, 200);
        assert_eq!(app.received_requests()[1].field_value("x-user"), None);
        let in_query = get(&format!("/ratings?a=b&access_token={token}"), "");
        assert_eq!(client.send_request(&in_query).await.status, 200);

        for path in ["/ratings", "/%72atings", "/x/../ratings"] {
            let response = client.send_request(&get(path, "")).await;
            assert_eq!(response.verdict(), (401, Some("token-missing")), "{path}");
            assert_eq!(response.field_value("www-authenticate"), Some("Bearer realm=\"tokens\""));
        }
        let expired = issuer.sign_token(&[], -60);
        for (fields, why) in [
            (bearer_request(&expired), "the token has expired"),
            (
                bearer_request(&other_issuer.sign_token(&[], 60)),
                "the token's signature is not valid",
            ),
            (bearer_request("abc"), "the token is not a signed JSON web token"),
            (format!("{0}{0}", bearer_request(&token)), "the token is not a signed JSON web token"),
        ] {
            // An invalid token is rejected also at paths that require none.
            let response = client.send_request(&get("/health", &fields)).await;
            assert_eq!(response.verdict(), (401, Some("token-invalid")), "{why}");
            let challenge = response.field_value("www-authenticate").unwrap();
            assert!(challenge.contains("error=\"invalid_token\""), "{challenge}");
            assert!(challenge.contains(why), "{challenge}");
        }
        // Another scheme is no token of this kind.
        let basic = get("/health", "authorization: Basic YTpi\r\n");
        assert_eq!(client.send_request(&basic).await.status, 200);
        assert_eq!(
            app.received_requests().last().unwrap().field_value("authorization"),
            Some("Basic YTpi")
        );
    });
}

#[test]
fn tokens_are_rejected_until_the_keys_arrive() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let issuer = Issuer::new();
        let mut token_check =
            issuer.token_check(TokenRequirement::Matching(vec![path_prefix("/ratings")]));
        let RequestCheck::Tokens(rule) = &mut token_check.check else { panic!("no tokens") };
        rule.issuers[0].keys = IssuerKeys::Pending;
        mesh.set_checks(vec![token_check], Vec::new());
        let mut client = Client::connect(mesh.listener).await;
        for path in ["/ratings", "/health"] {
            let response =
                client.send_request(&get(path, &bearer_request(&issuer.sign_token(&[], 60)))).await;
            assert_eq!(response.verdict(), (401, Some("token-invalid")), "{path}");
            let challenge = response.field_value("www-authenticate").unwrap();
            assert!(
                challenge.contains("keys of the token's issuer are not available"),
                "{challenge}"
            );
        }
        let response = client.send_request(&get("/ratings", "")).await;
        assert_eq!(response.verdict(), (401, Some("token-missing")));
        assert!(app.received_requests().is_empty());
        assert_eq!(client.send_request(&get("/health", "")).await.status, 200);

        mesh.set_checks(vec![issuer.token_check(TokenRequirement::Always)], Vec::new());
        let response = client
            .send_request(&get("/ratings", &bearer_request(&issuer.sign_token(&[], 60))))
            .await;
        assert_eq!(response.status, 200);
    });
}

#[test]
fn policies_match_claims_of_a_token() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::with_access(app.address, Access::AllowListed(Vec::new())).await;
        let issuer = Issuer::new();
        let rule = PolicyRule {
            policy: PolicyName::new("bookinfo", "writers").unwrap(),
            name: "writers".to_owned(),
            action: PolicyAction::Allow,
            peers: Vec::new(),
            requests: Vec::new(),
            claims: vec![ClaimMatch {
                name: "groups".to_owned(),
                values: vec!["writers".to_owned(), "admins".to_owned()],
            }],
            ports: PortSet::All,
        };
        let inbound = InboundPolicy { is_dry_run: false, rules: vec![rule] };
        mesh.set_checks_and_policy(vec![issuer.token_check(TokenRequirement::Never)], inbound);
        let mut client = Client::connect(mesh.listener).await;
        for (groups, status) in [(&["writers"][..], 200), (&["a", "admins"], 200), (&["a"], 403)] {
            let fields = bearer_request(&issuer.sign_token(groups, 60));
            assert_eq!(client.send_request(&get("/", &fields)).await.status, status, "{groups:?}");
        }
        assert_eq!(client.send_request(&get("/", "")).await.verdict(), (403, Some("denied")));
    });
}

#[test]
fn a_token_cannot_be_hidden_and_two_tokens_are_rejected() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let issuer = Issuer::new();
        mesh.set_checks(vec![issuer.token_check(TokenRequirement::Never)], Vec::new());
        let mut client = Client::connect(mesh.listener).await;
        let (first_token, second_token) =
            (issuer.sign_token(&["a"], 60), issuer.sign_token(&["b"], 60));
        for (path, fields) in [
            // Half of the required claims in each token.
            (format!("/?access_token={first_token}"), bearer_request(&second_token)),
            (format!("/?access_token={first_token}&access_token={second_token}"), String::new()),
            // Forms that an application may read but the sidecar has not verified.
            (format!("/?access%5Ftoken={first_token}"), String::new()),
            (format!("/?access_token={first_token}&access%5ftoken=forged"), String::new()),
            (format!("/?a=b;access_token={first_token};access_token=forged"), String::new()),
            (format!("/?Access_Token={first_token}"), String::new()),
            (format!("/?access.token={first_token}"), String::new()),
            (format!("/?access_token[]={first_token}"), String::new()),
            (format!("/?access_token[a]={first_token}"), String::new()),
            (format!("/?%20access_token={first_token}"), String::new()),
            (format!("/?access%255Ftoken={first_token}"), String::new()),
            (format!("/?access_token%00={first_token}"), String::new()),
            ("/?ACCESS_TOKEN=forged".to_owned(), bearer_request(&first_token)),
            ("/?access_token".to_owned(), String::new()),
            ("/".to_owned(), "authorization: Bearer\tforged\r\n".to_owned()),
        ] {
            let response = client.send_request(&get(&path, &fields)).await;
            assert_eq!(response.verdict(), (401, Some("token-invalid")), "{path} {fields}");
        }
        assert!(app.received_requests().is_empty());
        // A repeated identical token counts once.
        let request_with_two_tokens =
            get(&format!("/?access_token={first_token}"), &bearer_request(&first_token));
        assert_eq!(client.send_request(&request_with_two_tokens).await.status, 200);
        // Names that CGI applications equate with the header.
        for name in ["X_User", "x.user", "x-User", "X~USER"] {
            assert_eq!(
                client.send_request(&get("/", &format!("{name}: eve\r\n"))).await.status,
                200
            );
            let requests = app.received_requests();
            let head = &requests.last().unwrap().head;
            assert!(!head.contains("eve"), "{head}");
        }
    });
}

/// Servers that merge trailer fields into the headers would treat them as verified claims.
#[test]
fn claims_in_trailers_are_removed() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let issuer = Issuer::new();
        mesh.set_checks(vec![issuer.token_check(TokenRequirement::Never)], Vec::new());
        let mut client = Client::connect(mesh.listener).await;
        for (trailers, passed) in [
            ("X-User: eve\r\n", ""),
            ("x_user: eve\r\nx-sum: 1\r\n", "x-sum: 1"),
            ("x-sum: 1\r\nx.groups: admins\r\n", "x-sum: 1"),
            ("x-sum: 1\r\nx-sum: 2\r\n", "x-sum: 1x-sum: 2"),
        ] {
            let request = format!(
                "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n\
                 1\r\na\r\n0\r\n{trailers}\r\n"
            );
            assert_eq!(client.send_request(&request).await.status, 200);
            let received = app.received_requests().pop().unwrap();
            assert_eq!((received.body_text(), &*received.trailers), ("a", passed));
        }
    });
}

/// If a request had both headers, the sidecar might verify one and the application read the other.
#[test]
fn a_token_in_a_variant_of_its_header_is_rejected() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::permissive(app.address).await;
        let issuer = Issuer::new();
        let mut token_check = issuer.token_check(TokenRequirement::Never);
        if let RequestCheck::Tokens(rule) = &mut token_check.check {
            let location =
                JwtLocation::Header { name: "x-token".to_owned(), prefix: String::new() };
            rule.issuers[0].locations = vec![location];
        }
        mesh.set_checks(vec![token_check], Vec::new());
        let mut client = Client::connect(mesh.listener).await;
        let token = issuer.sign_token(&[], 60);
        assert_eq!(
            client.send_request(&get("/", &format!("x-token: {token}\r\n"))).await.status,
            200
        );
        for fields in
            ["X_Token: forged\r\n".to_owned(), format!("x-token: {token}\r\nx.token: forged\r\n")]
        {
            let response = client.send_request(&get("/", &fields)).await;
            assert_eq!(response.verdict(), (401, Some("token-invalid")), "{fields}");
        }
        assert_eq!(app.received_requests().len(), 1);
    });
}

#[test]
fn policies_match_verified_claims_and_not_those_of_clients() {
    run(async {
        let app = Application::with_response(OK).await;
        let mesh = Mesh::with_access(app.address, Access::AllowListed(Vec::new())).await;
        let issuer = Issuer::new();
        let value = leno_model::ValueMatch::Exact("ann".to_owned());
        let user = leno_model::FieldMatch { name: "x-user".to_owned(), value };
        let rule = PolicyRule {
            policy: PolicyName::new("bookinfo", "ann").unwrap(),
            name: "ann".to_owned(),
            action: PolicyAction::Allow,
            peers: Vec::new(),
            requests: vec![RequestMatch { headers: vec![user], ..RequestMatch::default() }],
            claims: Vec::new(),
            ports: PortSet::All,
        };
        let inbound = InboundPolicy { is_dry_run: false, rules: vec![rule] };
        mesh.set_checks_and_policy(vec![issuer.token_check(TokenRequirement::Never)], inbound);
        let mut client = Client::connect(mesh.listener).await;
        let faked_request = get("/", "x-user: ann\r\n");
        assert_eq!(client.send_request(&faked_request).await.verdict(), (403, Some("denied")));
        let request = get("/", &bearer_request(&issuer.sign_token(&[], 60)));
        assert_eq!(client.send_request(&request).await.status, 200);
    });
}

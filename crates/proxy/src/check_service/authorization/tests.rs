//! Check requests and responses of authorization services.

use super::super::protobuf::{BoolValue, HeaderValue, Status};
use super::*;

fn header_option(
    key: &str,
    value: &str,
    append: Option<bool>,
    append_action: i32,
) -> HeaderValueOption {
    let header = HeaderValue { key: key.to_owned(), value: value.to_owned(), raw_value: vec![] };
    let append = append.map(|value| BoolValue { value });
    HeaderValueOption { header: Some(header), append, append_action }
}

fn parse_response(response: &CheckResponse) -> Result<AuthorizationResult, CheckError> {
    let fields: Vec<(String, String)> = vec![("x-there".to_owned(), "1".to_owned())];
    let request_view =
        RequestView { method: "GET", path: "/", query: None, authority: "a", fields: &fields };
    parse_decision(response.encode_to_vec().into(), &request_view)
}

fn edit_lines(edits: &HeaderEdits) -> Vec<String> {
    let set = edits.set.iter().map(|header| format!("set {}={}", header.name, header.value));
    let add = edits.add.iter().map(|header| format!("add {}={}", header.name, header.value));
    set.chain(add).chain(edits.remove.iter().map(|name| format!("remove {name}"))).collect()
}

#[test]
fn an_allowed_request_has_the_changes_of_the_service() {
    let allow_message = OkResponse {
        headers: vec![
            header_option("X-User", "ann", None, 0),
            header_option("x-role", "reader", Some(true), 0),
            header_option("x-there", "2", None, 1),
        ],
        headers_to_remove: vec!["Cookie".to_owned(), "host".to_owned()],
        response_headers_to_add: vec![header_option("x-told", "yes", None, 0)],
        ..OkResponse::default()
    };
    let status = Some(Status { code: 0 });
    let response =
        CheckResponse { status, ok: Some(allow_message.clone()), ..CheckResponse::default() };
    let Ok(AuthorizationResult::Allowed { request, response: response_edits }) =
        parse_response(&response)
    else {
        panic!("not allowed")
    };
    assert_eq!(edit_lines(&request), ["set x-user=ann", "add x-role=reader", "remove cookie"]);
    assert_eq!(edit_lines(&response_edits), ["add x-told=yes"]);
    let bare_response = CheckResponse::default();
    assert!(matches!(parse_response(&bare_response), Ok(AuthorizationResult::Allowed { .. })));
    for invalid in [
        OkResponse { query_parameters_to_remove: vec!["a".to_owned()], ..OkResponse::default() },
        OkResponse {
            headers: vec![header_option("content-length", "1", None, 0)],
            ..OkResponse::default()
        },
        OkResponse {
            headers: vec![header_option("x-a", "b\r\nc: d", None, 0)],
            ..OkResponse::default()
        },
        OkResponse { headers: vec![header_option("x-a", "b", None, 9)], ..OkResponse::default() },
        OkResponse {
            response_headers_to_add: vec![header_option("x-a", "b", None, 1)],
            ..OkResponse::default()
        },
    ] {
        let response = CheckResponse { ok: Some(invalid), ..CheckResponse::default() };
        assert!(matches!(parse_response(&response), Err(CheckError::Unusable(_))), "{response:?}");
    }
}

#[test]
fn a_denied_request_gets_the_response_of_the_service() {
    let deny_message = |code, headers, body: &str| CheckResponse {
        status: Some(Status { code: 7 }),
        denied: Some(DeniedResponse {
            status: Some(Status { code }),
            headers,
            body: body.to_owned(),
        }),
        ..CheckResponse::default()
    };
    let denied_response = deny_message(
        401,
        vec![header_option("WWW-Authenticate", "Basic", None, 0)],
        "who are you?",
    );
    let Ok(AuthorizationResult::Denied(response)) = parse_response(&denied_response) else {
        panic!("not denied")
    };
    assert_eq!((response.status, response.body.as_deref()), (Some(401), Some("who are you?")));
    assert_eq!(response.headers[0].name, "www-authenticate");
    for (code, status) in [(0, 403), (99, 403), (204, 403), (302, 302), (503, 503)] {
        let Ok(AuthorizationResult::Denied(response)) =
            parse_response(&deny_message(code, vec![], ""))
        else {
            panic!("not denied")
        };
        assert_eq!((response.status, response.body), (Some(status), None));
    }
    // A response with invalid headers is still a denial.
    let invalid =
        vec![header_option("x-a", "b", None, 9), header_option("connection", "close", None, 0)];
    let Ok(AuthorizationResult::Denied(response)) = parse_response(&deny_message(401, invalid, ""))
    else {
        panic!("not denied")
    };
    assert_eq!((response.status, response.headers), (Some(401), Vec::new()));
    // An error of the service itself does not allow the request.
    let failed =
        CheckResponse { error: Some(DeniedResponse::default()), ..CheckResponse::default() };
    assert!(parse_response(&failed).is_err());
    let bare_response =
        CheckResponse { status: Some(Status { code: 16 }), ..CheckResponse::default() };
    assert!(matches!(parse_response(&bare_response), Ok(AuthorizationResult::Denied(_))));
    // The service must not change the framing; the request is denied.
    let forbidden_header =
        deny_message(403, vec![header_option("transfer-encoding", "chunked", None, 0)], "");
    let Ok(AuthorizationResult::Denied(response)) = parse_response(&forbidden_header) else {
        panic!("not denied")
    };
    assert!(response.headers.is_empty());
}

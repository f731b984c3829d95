//! HTTP/2 error codes and gRPC statuses pass both sidecars unchanged.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use h2::Reason as Code;
use http::Response;
use leno_model::Protocol;

use super::fixture::{run, wait_until};
use super::http2::{connect_client, grpc_request, http2_mesh, start_application};

const CODES: [Code; 7] = [
    Code::NO_ERROR,
    Code::INTERNAL_ERROR,
    Code::REFUSED_STREAM,
    Code::CANCEL,
    Code::ENHANCE_YOUR_CALM,
    Code::INADEQUATE_SECURITY,
    Code::HTTP_1_1_REQUIRED,
];

#[test]
fn the_code_of_a_reset_after_the_head_reaches_the_client() {
    run(async {
        let code = Rc::new(Cell::new(Code::NO_ERROR));
        let now = code.clone();
        let app = start_application(move |_, mut respond| {
            let code = now.get();
            async move {
                let mut stream = respond.send_response(Response::new(()), false).unwrap();
                stream.send_data(Bytes::from_static(b"x"), false).unwrap();
                // The data leaves before the reset.
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                stream.send_reset(code);
            }
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Grpc).await;
        for expected in CODES {
            code.set(expected);
            let mut client = connect_client(mesh.listener).await;
            let (response, _stream) = client.send_request(grpc_request("/"), true).unwrap();
            let mut body = response.await.unwrap().into_body();
            let error = loop {
                match body.data().await.expect("a reset") {
                    Ok(piece) => assert_eq!(piece, "x"),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.reason(), Some(expected));
        }
    });
}

#[test]
fn the_code_of_a_reset_before_the_head_becomes_a_grpc_status() {
    run(async {
        let code = Rc::new(Cell::new(Code::NO_ERROR));
        let now = code.clone();
        let app = start_application(move |_, mut respond| {
            let code = now.get();
            async move { respond.send_reset(code) }
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Grpc).await;
        for (reset, status) in [
            (Code::CANCEL, "1"),
            (Code::ENHANCE_YOUR_CALM, "8"),
            (Code::REFUSED_STREAM, "14"),
            (Code::INADEQUATE_SECURITY, "7"),
            (Code::INTERNAL_ERROR, "13"),
        ] {
            code.set(reset);
            let mut client = connect_client(mesh.listener).await;
            let (response, _stream) = client.send_request(grpc_request("/"), true).unwrap();
            let response = response.await.unwrap();
            assert_eq!(response.headers()["grpc-status"], status, "{reset:?}");
            assert!(response.headers().contains_key("leno-reason"));
        }
    });
}

#[test]
fn the_code_of_a_client_reaches_the_application() {
    run(async {
        let received_code: Rc<Cell<Option<Code>>> = Rc::default();
        let reset_code = received_code.clone();
        let app = start_application(move |request, mut respond| {
            let reset_code = reset_code.clone();
            async move {
                let _request = request;
                let mut stream = respond.send_response(Response::new(()), false).unwrap();
                reset_code.set(std::future::poll_fn(|cx| stream.poll_reset(cx)).await.ok());
            }
        })
        .await;
        let mesh = http2_mesh(app.address, Protocol::Grpc).await;
        for expected in CODES {
            let mut client = connect_client(mesh.listener).await;
            let (response, mut stream) = client.send_request(grpc_request("/"), false).unwrap();
            let _response = response.await.unwrap();
            stream.send_reset(expected);
            wait_until(|| received_code.get().is_some()).await;
            assert_eq!(received_code.take(), Some(expected));
        }
    });
}

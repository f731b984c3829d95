//! Exports over gRPC: a response that arrives together with the end of its connection still counts.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use leno_model::{Collector, CollectorProtocol, Signal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::pushed::{CountedPoints, TcpConnector};
use super::run;
use crate::{ExportRequest, ExportStatus, Exporter, message};

/// Returns an HTTP/2 frame (RFC 9113 §4.1).
fn http2_frame(frame_type: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, frame_type, flags, 0, 0, 0, stream][..], payload].concat()
}

/// Reads the request to the end of its stream.
async fn read_request(tcp: &mut TcpStream) {
    let mut preface = [0; 24];
    tcp.read_exact(&mut preface).await.unwrap();
    let mut frame_header = [0; 9];
    while tcp.read_exact(&mut frame_header).await.is_ok() {
        let mut payload = vec![0; usize::from(frame_header[1]) << 8 | usize::from(frame_header[2])];
        tcp.read_exact(&mut payload).await.unwrap();
        if (frame_header[3], frame_header[4]) == (DATA, END_STREAM) {
            return;
        }
    }
}

/// Starts a collector that sends `response` in one write and then closes the connection.
async fn start_collector(response: Vec<u8>) -> (SocketAddr, Rc<Cell<u32>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let calls = Rc::<Cell<u32>>::default();
    let call_count = calls.clone();
    tokio::task::spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            read_request(&mut tcp).await;
            call_count.set(call_count.get() + 1);
            tcp.write_all(&response).await.unwrap();
        }
    });
    (address, calls)
}

#[test]
fn a_response_that_arrives_with_the_end_of_its_connection_counts() {
    run(async {
        let settings = http2_frame(SETTINGS, 0, 0, &[]);
        let response_headers = http2_frame(HEADERS, END_HEADERS, 1, &[0x88]);
        let data = http2_frame(DATA, 0, 1, &message::add_prefix(&[]));
        let status = b"\x00\x0bgrpc-status\x010";
        let trailers = http2_frame(HEADERS, END_HEADERS | END_STREAM, 1, status);
        let goaway = http2_frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
        let response = [settings, response_headers, data, trailers].concat();
        for response in [[&*response, &*goaway].concat(), response] {
            let (address, calls) = start_collector(response).await;
            let url = format!("http://{address}");
            let collector =
                Collector::parse(Signal::Traces, CollectorProtocol::OtlpGrpc, &url).unwrap();
            let counts = CountedPoints::default();
            let mut export_status = ExportStatus::new("spans", &counts);
            let export_request = ExportRequest::new_otlp((b"spans".to_vec(), 7));
            Exporter::new(TcpConnector, None)
                .send_request(&collector, &export_request, &mut export_status)
                .await;
            assert_eq!((calls.get(), counts.exported.get(), counts.rejected.get()), (1, 7, 0));
        }
    });
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

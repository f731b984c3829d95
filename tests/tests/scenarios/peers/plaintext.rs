//! Captures the traffic between sidecars, and finds no plaintext in it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leno_tests::manifests::{client_manifest, mesh_config, server_manifest};
use leno_tests::{
    ApplicationResponse, TestApplication, TestConnection, TestMesh, TestProgram, eventually,
    free_port, is_root,
};
use rustix::process::Signal;

use super::loopback_address;

/// A marker that does not occur by chance in certificates, headers or ciphertext.
const MARKER: &str = "8f3a-marker-that-nobody-may-read-c1d7";
const REQUEST_COUNT: usize = 20;

#[test]
fn traffic_between_sidecars_is_encrypted() {
    if !is_root() {
        return eprintln!("skipped: capturing packets needs root");
    }
    let application = TestApplication::start(|request| {
        let body = format!("{MARKER} {}", String::from_utf8_lossy(&request.body)).repeat(100);
        let body_length = body.len();
        let head =
            format!("HTTP/1.1 200 OK\r\nx-m: {MARKER}\r\ncontent-length: {body_length}\r\n\r\n");
        ApplicationResponse::Bytes((head + &body).into_bytes())
    });
    let listener = free_port();
    let manifests = [
        mesh_config("allow"),
        server_manifest("web", application.port(), &[]),
        client_manifest("user", &[], &[("web.shop", listener)]),
    ];
    let mesh = TestMesh::up(&manifests.concat());
    let inbound_port =
        mesh.sidecar("shop/web-1").inbound.expect("the sidecar has an inbound port").port();
    let directory = tempfile::tempdir().unwrap();
    let between_sidecars = PacketCapture::start(inbound_port, &directory.path().join("between"));
    let at_application = PacketCapture::start(application.port(), &directory.path().join("inside"));

    let mut connection = TestConnection::open(loopback_address(listener)).unwrap();
    for index in 0..REQUEST_COUNT {
        let body = MARKER.repeat(100);
        let head = format!(
            "POST /{MARKER}/{index} HTTP/1.1\r\nhost: web\r\nx-m: {MARKER}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        connection.send(head + &body).unwrap();
        let response = connection.receive_response().unwrap();
        assert!(response.status == 200 && response.body.len() > 100 * MARKER.len());
    }

    // Packets that tcpdump has not read when it is stopped are lost.
    eventually("both captures are complete", Duration::from_secs(60), || {
        let last_request = format!("POST /{MARKER}/{} ", REQUEST_COUNT - 1);
        let (between_sidecars, at_application) =
            (between_sidecars.captured_payloads(), at_application.captured_payloads());
        let encrypted_count =
            between_sidecars.iter().filter(|packet| packet.starts_with(APPLICATION_DATA)).count();
        (encrypted_count >= 2 * REQUEST_COUNT
            && any_contains(&at_application, last_request.as_bytes()))
        .then_some(())
    });
    // The first of these connections was opened after the start of the capture, which includes its handshake.
    let (between_sidecars, at_application) =
        (between_sidecars.stop_capture(), at_application.stop_capture());
    let record_count =
        between_sidecars.iter().filter(|packet| packet.starts_with(APPLICATION_DATA)).count();
    eprintln!(
        "{} packets between the sidecars, {record_count} of them TLS records",
        between_sidecars.len()
    );
    assert!(
        record_count >= 2 * REQUEST_COUNT,
        "each request and response is encrypted: {record_count}"
    );
    assert!(!any_contains(&between_sidecars, MARKER.as_bytes()), "the marker is readable");
    for word in ["HTTP/1.1 200", "content-length", "POST /"] {
        assert!(!any_contains(&between_sidecars, word.as_bytes()), "`{word}` is readable");
    }
    assert!(
        any_contains(&at_application, MARKER.as_bytes()),
        "the capture contains readable bytes"
    );
}

/// A running tcpdump on loopback.
struct PacketCapture {
    tcpdump: TestProgram,
    file: std::path::PathBuf,
}

impl PacketCapture {
    fn start(port: u16, file: &Path) -> Self {
        let mut command = Command::new("tcpdump");
        // Runs as root to the end, to write into the private folder of the test; unbuffered, and with enough capture
        // buffer that its counters prove a complete capture.
        command.args(["-Z", "root", "-i", "lo", "--immediate-mode", "-U", "-B", "65536", "-w"]);
        command.arg(file).arg(format!("tcp port {port}"));
        let tcpdump = TestProgram::start("tcpdump", &mut command);
        tcpdump.wait_for_line("listening on", Duration::from_secs(20));
        Self { tcpdump, file: file.to_owned() }
    }

    /// Returns the payloads of the TCP segments captured so far.
    fn captured_payloads(&self) -> Vec<Vec<u8>> {
        parse_payloads(&std::fs::read(&self.file).unwrap())
    }

    /// Stops tcpdump and returns the payloads of the captured TCP segments.
    fn stop_capture(mut self) -> Vec<Vec<u8>> {
        self.tcpdump.send_signal(Signal::INT);
        self.tcpdump.wait_for_exit(Duration::from_secs(20));
        let tcpdump_output = self.tcpdump.printed_output();
        assert!(tcpdump_output.contains("0 packets dropped by kernel"), "{tcpdump_output}");
        parse_payloads(&std::fs::read(&self.file).unwrap())
    }
}

/// True if the bytes occur, in one packet or across two.
fn any_contains(packets: &[Vec<u8>], bytes: &[u8]) -> bool {
    let joined_bytes = packets.concat();
    joined_bytes.windows(bytes.len()).any(|window| window == bytes)
}

/// Parses the payloads of the TCP segments in a capture of Ethernet frames (libpcap format); the last packet
/// may be incomplete.
fn parse_payloads(capture_bytes: &[u8]) -> Vec<Vec<u8>> {
    if capture_bytes.len() < 24 {
        return Vec::new();
    }
    let read_u32 = |position: usize| {
        u32::from_le_bytes(capture_bytes[position..position + 4].try_into().unwrap()) as usize
    };
    assert_eq!((read_u32(0), read_u32(20)), (0xA1B2_C3D4, 1), "Ethernet, in this machine's order");
    let mut payloads = Vec::new();
    let mut position = 24;
    while position + 16 <= capture_bytes.len() {
        let frame_length = read_u32(position + 8);
        if capture_bytes.len() < position + 16 + frame_length {
            break;
        }
        let ip_packet = &capture_bytes[position + 16 + 14..position + 16 + frame_length];
        assert_eq!(ip_packet[0] >> 4, 4, "IPv4");
        let tcp_segment = &ip_packet[usize::from(ip_packet[0] & 15) * 4
            ..usize::from(u16::from_be_bytes([ip_packet[2], ip_packet[3]]))];
        let payload = &tcp_segment[usize::from(tcp_segment[12] >> 4) * 4..];
        if !payload.is_empty() {
            payloads.push(payload.to_vec());
        }
        position += 16 + frame_length;
    }
    payloads
}

/// The start of a TLS record with application data (RFC 8446 §5.1).
const APPLICATION_DATA: &[u8] = &[23, 3, 3];

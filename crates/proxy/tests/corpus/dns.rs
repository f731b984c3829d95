//! Properties of the sidecar's DNS server, for any packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::op::{Message, MessageType, ResponseCode};
use hickory_proto::rr::RecordType;
use leno_model::DnsRecord;
use leno_proxy::ClusterDomain;
use leno_proxy::untrusted::{dns_responses, is_dns_response};

/// The first byte is the number of addresses of each service, the rest is the packet.
///
/// A response is a valid message with the ID and the question of the query. Over UDP it fits into the size that
/// the client offers; over TCP it has all addresses of the IP version in question.
pub(crate) fn check(bytes: &[u8]) {
    let Some((count, packet)) = bytes.split_first() else { return };
    let record = record_with(*count);
    let responses = dns_responses(packet, &ClusterDomain::default(), &record);
    if let Some(failure) = &responses.failure {
        let failure = Message::from_vec(failure).expect("a failure is a message");
        assert_eq!(failure.metadata.response_code, ResponseCode::ServFail);
        assert_eq!(failure.metadata.message_type, MessageType::Response);
        assert!(failure.queries.len() <= 1 && failure.answers.is_empty());
    }
    // Comparing arbitrary packets does not panic, and a query is no response to itself.
    let (query, response) = packet.split_at(packet.len() / 2);
    std::hint::black_box(is_dns_response(query, response));
    assert!(!is_dns_response(packet, packet) || packet[2] & 0x80 != 0);
    let (Some(udp), Some(tcp)) = (&responses.udp, &responses.tcp) else {
        assert!(responses.service.is_none(), "a query of the mesh has a response");
        return;
    };
    let query = Message::from_vec(packet).expect("the packet was understood");
    let max_payload = query.edns.as_ref().map_or(0, |edns| edns.max_payload());
    assert!(udp.len() <= usize::from(max_payload.clamp(512, 1232)), "{} bytes", udp.len());
    let (udp, whole) = (parse_response(udp, &query), parse_response(tcp, &query));
    assert!(!whole.metadata.truncation);
    let expected_addresses =
        record.addresses().iter().filter(|address| match query.queries[0].query_type() {
            RecordType::A => address.is_ipv4(),
            _ => address.is_ipv6(),
        });
    assert_eq!(whole.answers.len(), expected_addresses.count());
    assert!(udp.metadata.truncation || udp == whole);
}

/// True if the packet of an input is a query that the mesh answers.
pub(crate) fn is_answered(bytes: &[u8]) -> bool {
    let responses = dns_responses(&bytes[1..], &ClusterDomain::default(), &record_with(bytes[0]));
    responses.udp.is_some()
}

/// Parses a response and checks the properties that UDP and TCP responses share.
fn parse_response(response: &[u8], query: &Message) -> Message {
    let response = Message::from_vec(response).expect("a response is a message");
    assert_eq!(response.metadata.id, query.metadata.id);
    assert_eq!(response.metadata.message_type, MessageType::Response);
    assert_eq!(response.queries, query.queries);
    assert_eq!(response.edns.is_some(), query.edns.is_some());
    for record in &response.answers {
        assert_eq!(record.name, query.queries[0].name);
        assert_eq!(record.record_type(), query.queries[0].query_type());
    }
    response
}

/// Returns `count` addresses of either version.
fn record_with(count: u8) -> DnsRecord {
    let v4 = (0..count).map(|last| IpAddr::from(Ipv4Addr::new(10, 0, 0, last)));
    let v6 =
        (0..count / 2).map(|last| IpAddr::from(Ipv6Addr::from(u128::from(last) + (0xfd << 120))));
    v4.chain(v6).collect()
}

//! Parses DNS queries for service addresses, and builds the responses, without I/O.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use hickory_proto::op::{Edns, Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, SOA};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use leno_model::{DnsRecord, ServiceName};

use super::DnsTransport;

/// The domain of a cluster, under which its services have names: usually `cluster.local`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterDomain(Vec<String>);

impl Default for ClusterDomain {
    fn default() -> Self {
        Self(vec!["cluster".to_owned(), "local".to_owned()])
    }
}

impl FromStr for ClusterDomain {
    type Err = InvalidDomain;

    fn from_str(text: &str) -> Result<Self, InvalidDomain> {
        let text = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let is_label = |label: &str| {
            let is_valid_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            (1..=MAX_LABEL_BYTES).contains(&label.len())
                && label.bytes().all(is_valid_byte)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        match text.len() <= MAX_DOMAIN_BYTES && text.split('.').all(is_label) {
            true => Ok(Self(text.split('.').map(str::to_owned).collect())),
            false => Err(InvalidDomain),
        }
    }
}

impl ClusterDomain {
    /// Returns the DOMAIN of a `resolv.conf` whose search list contains both `svc.DOMAIN` and
    /// `NAMESPACE.svc.DOMAIN`; `None` if no domain has both entries. One entry is not enough, since a namespace
    /// may have the name `svc`.
    #[must_use]
    pub fn from_resolv_conf(text: &str) -> Option<Self> {
        let search_list = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let is_search_list = words.next() == Some("search");
            is_search_list
                .then(|| words.map(|word| word.trim_end_matches('.').to_ascii_lowercase()))
                .map(Iterator::collect::<Vec<_>>)
        };
        // According to resolv.conf(5), the last list counts.
        let search_domains = text.lines().filter_map(search_list).next_back()?;
        let has_namespace = |services: &str| {
            search_domains
                .iter()
                .any(|word| word.split_once('.').is_some_and(|(_, domain)| domain == services))
        };
        let mut candidates = search_domains.iter().filter(|word| has_namespace(word));
        candidates.find_map(|word| word.strip_prefix("svc.")?.parse().ok())
    }
}

impl fmt::Display for ClusterDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// A text that is not a valid domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is not a cluster domain; use one such as cluster.local")]
pub struct InvalidDomain;

/// The result of parsing a received packet.
#[derive(Debug)]
pub(super) enum ParsedQuery {
    /// The packet is not a DNS query: it is too short, or a response.
    Invalid,
    /// A query that is not for a service of the cluster, or that is not supported: it is forwarded.
    OutsideMesh,
    /// A query for the addresses of a service.
    Service(Box<ServiceQuery>),
}

/// A query for the addresses of a service.
#[derive(Debug)]
pub(super) struct ServiceQuery {
    pub(super) service: ServiceName,
    /// The parsed packet.
    query: Message,
    question: Query,
    /// The cluster domain, for negative responses.
    zone: Name,
}

/// Parses a packet. Queries that are not fully understood count as [`ParsedQuery::OutsideMesh`].
pub(super) fn parse_query(packet: &[u8], domain: &ClusterDomain) -> ParsedQuery {
    // A header has twelve bytes (RFC 1035 §4.1.1).
    let [_, _, flags, _, _, _, _, _, _, _, _, _, ..] = packet else {
        return ParsedQuery::Invalid;
    };
    if flags & RESPONSE_BIT != 0 {
        return ParsedQuery::Invalid;
    }
    match Message::from_vec(packet).ok().and_then(|query| parse_service_query(query, domain)) {
        Some(query) => ParsedQuery::Service(Box::new(query)),
        None => ParsedQuery::OutsideMesh,
    }
}

/// Returns the query for a service; `None` for any other query.
fn parse_service_query(query: Message, domain: &ClusterDomain) -> Option<ServiceQuery> {
    let [question] = query.queries.as_slice() else { return None };
    let is_supported = query.metadata.op_code == OpCode::Query
        && query.answers.is_empty()
        && query.authorities.is_empty()
        && query.additionals.is_empty()
        && query.edns.as_ref().is_none_or(|edns| edns.version() == 0)
        && question.query_class() == DNSClass::IN
        && matches!(question.query_type(), RecordType::A | RecordType::AAAA);
    if !is_supported {
        return None;
    }
    let service = parse_service_name(question.name(), domain)?;
    let zone = Name::from_labels(domain.0.iter().map(String::as_bytes)).ok()?;
    let question = question.clone();
    Some(ServiceQuery { service, query, question, zone })
}

/// Returns the service that `NAME.NAMESPACE.svc.DOMAIN` refers to; `None` for any other name.
fn parse_service_name(dns_name: &Name, domain: &ClusterDomain) -> Option<ServiceName> {
    let mut labels = dns_name.iter();
    let (name, namespace) = (label_text(labels.next()?)?, label_text(labels.next()?)?);
    let suffix = std::iter::once("svc").chain(domain.0.iter().map(String::as_str));
    let has_service_suffix = labels.len() == domain.0.len() + 1
        && labels
            .zip(suffix)
            .all(|(label, expected)| label.eq_ignore_ascii_case(expected.as_bytes()));
    has_service_suffix.then(|| ServiceName::new(&namespace, &name).ok()).flatten()
}

/// Returns a label in lower case; `None` if it is not UTF-8.
fn label_text(label: &[u8]) -> Option<String> {
    std::str::from_utf8(label).ok().map(str::to_ascii_lowercase)
}

impl ServiceQuery {
    /// Builds the response: the addresses of the requested IP version, or an empty answer with an SOA record.
    /// Over UDP, a response that is too long is truncated. Returns `None` if the response cannot be encoded.
    pub(super) fn build_response(
        &self,
        record: &DnsRecord,
        transport: DnsTransport,
    ) -> Option<Vec<u8>> {
        let mut response = empty_response(&self.query);
        response.metadata.authoritative = true;
        response.add_query(self.question.clone());
        let mut records: Vec<Record> =
            record.addresses().iter().filter_map(|address| self.address_record(*address)).collect();
        // Clients use the first address: the order depends on the query ID, which spreads their connections.
        let first_index = usize::from(self.query.metadata.id) % records.len().max(1);
        records.rotate_left(first_index);
        if records.is_empty() {
            response.add_authority(self.soa_record()?);
        }
        response.add_answers(records);
        let bytes = response.to_vec().ok()?;
        let edns = self.query.edns.as_ref();
        let max_size = edns.map_or(0, Edns::max_payload).clamp(MIN_PACKET_BYTES, MAX_PACKET_BYTES);
        if transport == DnsTransport::Tcp || bytes.len() <= usize::from(max_size) {
            return Some(bytes);
        }
        // Clients that do not accept a truncated response query again over TCP.
        let mut fitting_records = std::mem::take(&mut response.answers);
        response.metadata.truncation = true;
        let header_len = response.to_vec().ok()?.len();
        // The records of one response have about the same size.
        let record_len =
            bytes.len().saturating_sub(header_len).div_ceil(fitting_records.len().max(1)).max(1);
        fitting_records.truncate(usize::from(max_size).saturating_sub(header_len) / record_len);
        response.add_answers(fitting_records);
        response.to_vec().ok()
    }

    /// True if an address has the requested IP version.
    pub(super) fn has_requested_version(&self, address: IpAddr) -> bool {
        match self.question.query_type() {
            RecordType::A => address.is_ipv4(),
            RecordType::AAAA => address.is_ipv6(),
            _ => false,
        }
    }

    /// Returns the record of an address; `None` if it does not have the requested IP version.
    fn address_record(&self, address: IpAddr) -> Option<Record> {
        let data = match (self.question.query_type(), address) {
            (RecordType::A, IpAddr::V4(address)) => RData::A(A(address)),
            (RecordType::AAAA, IpAddr::V6(address)) => RData::AAAA(AAAA(address)),
            _ => return None,
        };
        Some(Record::from_rdata(self.question.name().clone(), TTL_SECONDS, data))
    }

    /// Returns the SOA record for a negative response, with its lifetime (RFC 2308 §3). Its names and times are those of
    /// CoreDNS.
    fn soa_record(&self) -> Option<Record> {
        let server = Name::from_ascii("ns.dns").ok()?.append_domain(&self.zone).ok()?;
        let responsible_mailbox =
            Name::from_ascii("hostmaster").ok()?.append_domain(&self.zone).ok()?;
        let (refresh, retry, expire) = (7200, 1800, 86_400);
        let soa = SOA::new(server, responsible_mailbox, 1, refresh, retry, expire, TTL_SECONDS);
        Some(Record::from_rdata(self.zone.clone(), TTL_SECONDS, RData::SOA(soa)))
    }
}

/// Returns a SERVFAIL response; `None` if the packet is not a valid query.
pub(super) fn server_failure(packet: &[u8]) -> Option<Vec<u8>> {
    let query = Message::from_vec(packet).ok()?;
    let mut response = empty_response(&query);
    response.add_queries(query.queries.iter().take(1).cloned());
    response.metadata.response_code = ResponseCode::ServFail;
    response.to_vec().ok()
}

/// Returns a response to a query without records, with the flags and EDNS options of the query.
fn empty_response(query: &Message) -> Message {
    let mut response = Message::response(query.metadata.id, query.metadata.op_code);
    response.metadata.recursion_available = true;
    response.metadata.recursion_desired = query.metadata.recursion_desired;
    response.metadata.checking_disabled = query.metadata.checking_disabled;
    if query.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_PACKET_BYTES).set_version(0);
        response.set_edns(edns);
    }
    response
}

/// The TTL of positive and negative responses, in seconds.
const TTL_SECONDS: u32 = 5;
/// The UDP response size in bytes that every client accepts (RFC 1035 §2.3.4).
const MIN_PACKET_BYTES: u16 = 512;
/// The maximum UDP response size in bytes, which networks do not fragment.
const MAX_PACKET_BYTES: u16 = 1232;
/// The bit of the third header byte that distinguishes responses from queries (RFC 1035 §4.1.1).
const RESPONSE_BIT: u8 = 0x80;
/// The maximum length of a label in bytes (RFC 1035 §2.3.4).
const MAX_LABEL_BYTES: usize = 63;
/// The maximum length of a domain in bytes, which leaves room for service names.
const MAX_DOMAIN_BYTES: usize = 120;

#[cfg(test)]
mod tests;

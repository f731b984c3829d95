//! Tests of DNS query packets for services of the mesh, and of their responses.

use hickory_proto::op::MessageType;

use super::*;

fn query_packet(name: &str, kind: RecordType) -> Vec<u8> {
    packet_with(name, kind, |_| {})
}

fn packet_with(name: &str, kind: RecordType, change: impl FnOnce(&mut Message)) -> Vec<u8> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    change(&mut message);
    message.to_vec().unwrap()
}

fn parse_service(packet: &[u8]) -> Option<ServiceQuery> {
    match parse_query(packet, &ClusterDomain::default()) {
        ParsedQuery::Service(asked) => Some(*asked),
        ParsedQuery::OutsideMesh | ParsedQuery::Invalid => None,
    }
}

fn record_with(count: u8) -> DnsRecord {
    (0..count).map(|last| IpAddr::from([10, 0, 0, last])).collect()
}

#[test]
fn only_full_service_names_are_resolved_by_the_mesh() {
    for (name, expected) in [
        ("web.shop.svc.cluster.local.", Some("shop/web")),
        ("WEB.Shop.SVC.cluster.LOCAL.", Some("shop/web")),
        ("pod-1.web.shop.svc.cluster.local.", None),
        ("shop.svc.cluster.local.", None),
        ("web.shop.pod.cluster.local.", None),
        ("web.shop.svc.", None),
        ("web.shop.", None),
        ("web.shop.svc.cluster.local.shop.svc.cluster.local.", None),
        ("we_b.shop.svc.cluster.local.", None),
        ("example.com.", None),
        (".", None),
    ] {
        let service_name = parse_service(&query_packet(name, RecordType::A))
            .map(|query| query.service.to_string());
        assert_eq!(service_name.as_deref(), expected, "{name}");
    }
    let other_domain: ClusterDomain = "Corp.example.".parse().unwrap();
    let cluster_query = query_packet("web.shop.svc.corp.example.", RecordType::A);
    assert!(matches!(parse_query(&cluster_query, &other_domain), ParsedQuery::Service(_)));
    for invalid in ["", ".", "a..b", "-a", "a_b", &"a.".repeat(70)] {
        assert_eq!(invalid.parse::<ClusterDomain>(), Err(InvalidDomain), "{invalid}");
    }
}

#[test]
fn the_domain_is_read_from_the_search_list() {
    let domain_from_search_list =
        |text| ClusterDomain::from_resolv_conf(text).map(|domain| domain.to_string());
    let text =
        "nameserver 10.96.0.10\nsearch shop.svc.corp.example svc.corp.example corp.example\n";
    assert_eq!(domain_from_search_list(text).as_deref(), Some("corp.example"));
    assert_eq!(domain_from_search_list("search example.com\n"), None);
    // The namespace has the name `svc`. Tabs separate words as well, and only the last list counts.
    let text = "search a.svc.old svc.old\n\tsearch\tsvc.svc.cluster.local\tSVC.cluster.local. cluster.local";
    assert_eq!(domain_from_search_list(text).as_deref(), Some("cluster.local"));
    assert_eq!(domain_from_search_list("search a.svc.old svc.old\nsearch example.com\n"), None);
}

#[test]
fn other_queries_than_for_addresses_are_forwarded() {
    let name = "web.shop.svc.cluster.local.";
    for kind in [RecordType::SRV, RecordType::TXT, RecordType::ANY, RecordType::PTR] {
        assert!(matches!(
            parse_query(&query_packet(name, kind), &ClusterDomain::default()),
            ParsedQuery::OutsideMesh
        ));
    }
    type Change = fn(&mut Message);
    let changes: [Change; 4] = [
        |query| {
            query.metadata.op_code = OpCode::Notify;
        },
        |query| {
            query.add_query(query.queries[0].clone());
        },
        |query| {
            query.queries[0].set_query_class(DNSClass::CH);
        },
        |query| {
            let mut edns = Edns::new();
            edns.set_version(1);
            query.set_edns(edns);
        },
    ];
    for change in changes {
        let packet = packet_with(name, RecordType::A, change);
        assert!(matches!(
            parse_query(&packet, &ClusterDomain::default()),
            ParsedQuery::OutsideMesh
        ));
    }
    let response = packet_with(name, RecordType::A, |message| {
        message.metadata.message_type = MessageType::Response;
    });
    assert!(matches!(parse_query(&response, &ClusterDomain::default()), ParsedQuery::Invalid));
}

#[test]
fn a_response_has_the_addresses_of_the_requested_ip_version() {
    let both_addresses: DnsRecord =
        [IpAddr::from([10, 0, 0, 9]), "fd00::9".parse().unwrap()].into_iter().collect();
    for (kind, expected) in [(RecordType::A, "10.0.0.9"), (RecordType::AAAA, "fd00::9")] {
        let query = parse_service(&query_packet("Web.shop.svc.cluster.local.", kind)).unwrap();
        let reply =
            Message::from_vec(&query.build_response(&both_addresses, DnsTransport::Udp).unwrap())
                .unwrap();
        assert_eq!((reply.metadata.id, reply.metadata.response_code), (7, ResponseCode::NoError));
        assert!(
            reply.metadata.authoritative
                && reply.metadata.recursion_available
                && reply.metadata.recursion_desired
        );
        let [record] = reply.answers.as_slice() else { panic!("{reply}") };
        assert_eq!(record.data.to_string(), expected);
        assert_eq!(
            (record.ttl, record.name.to_ascii()),
            (5, "Web.shop.svc.cluster.local.".to_owned())
        );
    }
    let query =
        parse_service(&query_packet("web.shop.svc.cluster.local.", RecordType::AAAA)).unwrap();
    let reply =
        Message::from_vec(&query.build_response(&record_with(1), DnsTransport::Udp).unwrap())
            .unwrap();
    assert_eq!((reply.answers.len(), reply.metadata.response_code), (0, ResponseCode::NoError));
    assert_eq!(reply.authorities[0].record_type(), RecordType::SOA);
}

#[test]
fn a_response_that_does_not_fit_is_truncated_for_udp() {
    let response_shape = |payload: Option<u16>, transport, count| {
        let packet = packet_with("web.shop.svc.cluster.local.", RecordType::A, |query| {
            if let Some(payload) = payload {
                let mut edns = Edns::new();
                edns.set_max_payload(payload);
                query.set_edns(edns);
            }
        });
        let bytes =
            parse_service(&packet).unwrap().build_response(&record_with(count), transport).unwrap();
        let reply = Message::from_vec(&bytes).unwrap();
        assert_eq!(reply.edns.is_some(), payload.is_some());
        (reply.metadata.truncation, reply.answers.len())
    };
    assert_eq!(response_shape(None, DnsTransport::Udp, 20), (false, 20));
    // Of 512 bytes the header takes 12, the question 33, and each address record 16.
    assert_eq!(response_shape(None, DnsTransport::Udp, 64), (true, 29));
    assert_eq!(response_shape(None, DnsTransport::Tcp, 64), (false, 64));
    assert_eq!(response_shape(Some(1232), DnsTransport::Udp, 64), (false, 64));
    assert_eq!(response_shape(Some(0), DnsTransport::Udp, 64), (true, 28));
    assert_eq!(response_shape(Some(u16::MAX), DnsTransport::Udp, 64), (false, 64));
}

#[test]
fn the_order_of_addresses_depends_on_the_query() {
    let first = |id| {
        let packet = packet_with("web.shop.svc.cluster.local.", RecordType::A, |query| {
            query.metadata.id = id;
        });
        let bytes = parse_service(&packet)
            .unwrap()
            .build_response(&record_with(3), DnsTransport::Udp)
            .unwrap();
        Message::from_vec(&bytes).unwrap().answers[0].data.to_string()
    };
    assert_eq!([0, 1, 2, 3].map(first), ["10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.0"]);
}

#[test]
fn a_failure_response_repeats_the_question() {
    let service_query = query_packet("example.com.", RecordType::TXT);
    let reply = Message::from_vec(&server_failure(&service_query).unwrap()).unwrap();
    assert_eq!((reply.metadata.response_code, reply.queries.len()), (ResponseCode::ServFail, 1));
    assert!(reply.edns.is_none());
    assert_eq!(server_failure(&service_query[..15]), None);
    let service_query = packet_with("example.com.", RecordType::TXT, |query| {
        query.set_edns(Edns::new());
    });
    assert!(Message::from_vec(&server_failure(&service_query).unwrap()).unwrap().edns.is_some());
}

/// Arbitrary packets are parsed safely, and each valid query can be answered.
#[test]
fn arbitrary_packets_are_parsed_without_a_panic() {
    let harmless = |packet: &[u8]| {
        drop(server_failure(packet));
        if let Some(parsed_query) = parse_service(packet) {
            let response =
                parsed_query.build_response(&record_with(64), DnsTransport::Udp).unwrap();
            assert!(response.len() <= usize::from(MAX_PACKET_BYTES));
        }
    };
    let valid_query = packet_with("web.shop.svc.cluster.local.", RecordType::A, |query| {
        query.set_edns(Edns::new());
    });
    for end in 0..=valid_query.len() {
        harmless(&valid_query[..end]);
    }
    // A name that points at itself, or at a pointer back; a count without entries.
    let mut looping_name = valid_query[..12].to_vec();
    looping_name.extend([0xc0, 12, 0, 1, 0, 1]);
    harmless(&looping_name);
    let mut looping_name = valid_query[..12].to_vec();
    looping_name.extend([1, b'a', 0xc0, 16, 0xc0, 12, 0, 1, 0, 1]);
    harmless(&looping_name);
    for count in 4..12 {
        let mut query_with_many_questions = valid_query.clone();
        query_with_many_questions[count] = 0xff;
        harmless(&query_with_many_questions);
    }
    let mut seed = 1_u64;
    for _ in 0..20_000 {
        let mut packet = valid_query.clone();
        for _ in 0..=seed % 4 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let position = usize::try_from(seed >> 33).unwrap() % packet.len();
            packet[position] = (seed >> 25) as u8;
        }
        harmless(&packet);
    }
}

//! DNS query packets: those for the mesh, and their responses.

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
    match read(packet, &ClusterDomain::default()) {
        ParsedQuery::Service(asked) => Some(*asked),
        ParsedQuery::OutsideMesh | ParsedQuery::Invalid => None,
    }
}

fn record_with(count: u8) -> DnsRecord {
    (0..count).map(|last| IpAddr::from([10, 0, 0, last])).collect()
}

#[test]
fn only_full_names_of_services_are_for_the_mesh() {
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
        let found = parse_service(&query_packet(name, RecordType::A))
            .map(|asked| asked.service.to_string());
        assert_eq!(found.as_deref(), expected, "{name}");
    }
    let other: ClusterDomain = "Corp.example.".parse().unwrap();
    let there = query_packet("web.shop.svc.corp.example.", RecordType::A);
    assert!(matches!(read(&there, &other), ParsedQuery::Service(_)));
    for bad in ["", ".", "a..b", "-a", "a_b", &"a.".repeat(70)] {
        assert_eq!(bad.parse::<ClusterDomain>(), Err(InvalidDomain), "{bad}");
    }
}

#[test]
fn the_domain_is_the_one_that_is_searched() {
    let searched = |text| ClusterDomain::from_resolv_conf(text).map(|it| it.to_string());
    let text =
        "nameserver 10.96.0.10\nsearch shop.svc.corp.example svc.corp.example corp.example\n";
    assert_eq!(searched(text).as_deref(), Some("corp.example"));
    assert_eq!(searched("search example.com\n"), None);
    // A namespace of the same name; also tabs, and only the last list counts.
    let text = "search a.svc.old svc.old\n\tsearch\tsvc.svc.cluster.local\tSVC.cluster.local. cluster.local";
    assert_eq!(searched(text).as_deref(), Some("cluster.local"));
    assert_eq!(searched("search a.svc.old svc.old\nsearch example.com\n"), None);
}

#[test]
fn what_is_not_a_plain_look_up_for_an_address_is_for_others() {
    let name = "web.shop.svc.cluster.local.";
    for kind in [RecordType::SRV, RecordType::TXT, RecordType::ANY, RecordType::PTR] {
        assert!(matches!(
            read(&query_packet(name, kind), &ClusterDomain::default()),
            ParsedQuery::OutsideMesh
        ));
    }
    type Change = fn(&mut Message);
    let changes: [Change; 4] = [
        |it| {
            it.metadata.op_code = OpCode::Notify;
        },
        |it| {
            it.add_query(it.queries[0].clone());
        },
        |it| {
            it.queries[0].set_query_class(DNSClass::CH);
        },
        |it| {
            let mut edns = Edns::new();
            edns.set_version(1);
            it.set_edns(edns);
        },
    ];
    for change in changes {
        let packet = packet_with(name, RecordType::A, change);
        assert!(matches!(read(&packet, &ClusterDomain::default()), ParsedQuery::OutsideMesh));
    }
    let answer = packet_with(name, RecordType::A, |it| {
        it.metadata.message_type = MessageType::Response;
    });
    assert!(matches!(read(&answer, &ClusterDomain::default()), ParsedQuery::Invalid));
}

#[test]
fn an_answer_has_the_addresses_of_the_version_that_was_asked_for() {
    let both: DnsRecord =
        [IpAddr::from([10, 0, 0, 9]), "fd00::9".parse().unwrap()].into_iter().collect();
    for (kind, expected) in [(RecordType::A, "10.0.0.9"), (RecordType::AAAA, "fd00::9")] {
        let asked = parse_service(&query_packet("Web.shop.svc.cluster.local.", kind)).unwrap();
        let reply =
            Message::from_vec(&asked.build_response(&both, DnsTransport::Udp).unwrap()).unwrap();
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
    let asked =
        parse_service(&query_packet("web.shop.svc.cluster.local.", RecordType::AAAA)).unwrap();
    let reply =
        Message::from_vec(&asked.build_response(&record_with(1), DnsTransport::Udp).unwrap())
            .unwrap();
    assert_eq!((reply.answers.len(), reply.metadata.response_code), (0, ResponseCode::NoError));
    assert_eq!(reply.authorities[0].record_type(), RecordType::SOA);
}

#[test]
fn an_answer_that_does_not_fit_is_fetched_over_tcp() {
    let read = |payload: Option<u16>, over, count| {
        let packet = packet_with("web.shop.svc.cluster.local.", RecordType::A, |it| {
            if let Some(payload) = payload {
                let mut edns = Edns::new();
                edns.set_max_payload(payload);
                it.set_edns(edns);
            }
        });
        let bytes =
            parse_service(&packet).unwrap().build_response(&record_with(count), over).unwrap();
        let reply = Message::from_vec(&bytes).unwrap();
        assert_eq!(reply.edns.is_some(), payload.is_some());
        (reply.metadata.truncation, reply.answers.len())
    };
    assert_eq!(read(None, DnsTransport::Udp, 20), (false, 20));
    // 12 and 33 bytes of 512, and 16 for each.
    assert_eq!(read(None, DnsTransport::Udp, 64), (true, 29));
    assert_eq!(read(None, DnsTransport::Tcp, 64), (false, 64));
    assert_eq!(read(Some(1232), DnsTransport::Udp, 64), (false, 64));
    assert_eq!(read(Some(0), DnsTransport::Udp, 64), (true, 28));
    assert_eq!(read(Some(u16::MAX), DnsTransport::Udp, 64), (false, 64));
}

#[test]
fn of_many_addresses_not_everybody_gets_the_same_first() {
    let first = |id| {
        let packet = packet_with("web.shop.svc.cluster.local.", RecordType::A, |it| {
            it.metadata.id = id;
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
fn a_failure_repeats_the_question() {
    let asked = query_packet("example.com.", RecordType::TXT);
    let reply = Message::from_vec(&server_failure(&asked).unwrap()).unwrap();
    assert_eq!((reply.metadata.response_code, reply.queries.len()), (ResponseCode::ServFail, 1));
    assert!(reply.edns.is_none());
    assert_eq!(server_failure(&asked[..15]), None);
    let asked = packet_with("example.com.", RecordType::TXT, |it| {
        it.set_edns(Edns::new());
    });
    assert!(Message::from_vec(&server_failure(&asked).unwrap()).unwrap().edns.is_some());
}

/// Arbitrary packets are parsed safely, and each valid query can be answered.
#[test]
fn hostile_packets_do_no_harm() {
    let harmless = |packet: &[u8]| {
        drop(server_failure(packet));
        if let Some(asked) = parse_service(packet) {
            let answer = asked.build_response(&record_with(64), DnsTransport::Udp).unwrap();
            assert!(answer.len() <= usize::from(PACKET_BYTES_MAX));
        }
    };
    let good = packet_with("web.shop.svc.cluster.local.", RecordType::A, |it| {
        it.set_edns(Edns::new());
    });
    for end in 0..=good.len() {
        harmless(&good[..end]);
    }
    // A name that points at itself, or at a pointer back; a count without entries.
    let mut loops = good[..12].to_vec();
    loops.extend([0xc0, 12, 0, 1, 0, 1]);
    harmless(&loops);
    let mut loops = good[..12].to_vec();
    loops.extend([1, b'a', 0xc0, 16, 0xc0, 12, 0, 1, 0, 1]);
    harmless(&loops);
    for count in 4..12 {
        let mut many = good.clone();
        many[count] = 0xff;
        harmless(&many);
    }
    let mut seed = 1_u64;
    for _ in 0..20_000 {
        let mut packet = good.clone();
        for _ in 0..=seed % 4 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = usize::try_from(seed >> 33).unwrap() % packet.len();
            packet[at] = (seed >> 25) as u8;
        }
        harmless(&packet);
    }
}

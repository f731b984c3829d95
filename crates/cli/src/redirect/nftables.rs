//! Replaces Leno's nf_tables table atomically over netlink, because sidecar images contain no `nft` program.

use std::io;
use std::net::IpAddr;

use anyhow::{Context as _, bail};
use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_netfilter::nftables::{
    Bitwise, ChainAttribute, ChainMessage, Cmp, DataAttribute, ExpressionAttribute, Expressions,
    Hook as HookAttribute, HookNumber, Immediate, InetHookNumber, ListAttribute, Meta, MetaKey,
    NfTablesMessage, Operator, Payload, Register, RuleAttribute, RuleMessage, TableAttribute,
    TableMessage, Verdict as VerdictCode, VerdictAttribute,
};
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;

use leno_kubernetes::inject::INTERFACE_BYTES;

use super::rules::{NetfilterHook, NftChain, NftMatch, NftRule, NftVerdict, PRIORITY, TABLE};

/// Replaces Leno's table in one transaction.
///
/// # Errors
/// If the kernel rejects the table; the previous rules stay active.
pub(super) fn replace_table(chains: &[NftChain]) -> anyhow::Result<()> {
    let mut requests = vec![
        // Creates the table if absent, so that the deletion succeeds.
        ("the table", NfTablesMessage::NewTable(build_table_message())),
        ("the old table", NfTablesMessage::DeleteTable(build_table_message())),
        ("the table", NfTablesMessage::NewTable(build_table_message())),
    ];
    for chain in chains {
        requests.push(("a chain", NfTablesMessage::NewChain(build_chain_message(chain.hook))));
        let to_request =
            |rule| ("a rule", NfTablesMessage::NewRule(build_rule_message(chain.hook, rule)));
        requests.extend(chain.rules.iter().map(to_request));
    }
    send_batch(&requests)
}

/// Sends a batch and waits for the reply to each of its requests.
fn send_batch(requests: &[(&str, NfTablesMessage)]) -> anyhow::Result<()> {
    let mut socket =
        Socket::new(NETLINK_NETFILTER).context("cannot communicate with the kernel")?;
    socket.bind_auto().context("cannot communicate with the kernel")?;
    let mut batch = Vec::new();
    append_message(&mut batch, 0, build_control_message(ControlMessage::BatchBegin), NLM_F_REQUEST);
    // Rules are appended, and so keep their order.
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_APPEND;
    for (sequence, (_, request)) in (1..).zip(requests) {
        let header = NetfilterHeader::new(NetfilterProtoFamily::Inet, 0, 0);
        append_message(&mut batch, sequence, NetfilterMessage::new(header, request.clone()), flags);
    }
    append_message(&mut batch, 0, build_control_message(ControlMessage::BatchEnd), NLM_F_REQUEST);
    let sent_bytes = socket.send(&batch, 0).context("cannot communicate with the kernel")?;
    if sent_bytes != batch.len() {
        bail!("the kernel accepted {sent_bytes} of {} bytes", batch.len());
    }
    let mut acknowledged_count = 0;
    while acknowledged_count < requests.len() {
        let (bytes, _) = socket.recv_from_full().context("the kernel does not respond")?;
        for reply in parse_replies(&bytes)? {
            let Some(error) = reply.error else {
                acknowledged_count += 1;
                continue;
            };
            let sequence = usize::try_from(reply.sequence).ok();
            let request = sequence.and_then(|sequence| requests.get(sequence.checked_sub(1)?));
            let description = request.map_or("the transaction", |(description, _)| description);
            return Err(add_hint(error).context(format!("the kernel rejected {description}")));
        }
    }
    Ok(())
}

/// The kernel's reply to one request; `error` is `None` for an acknowledgment.
struct NetlinkReply {
    /// The position of the request in the batch, from 1; 0 for the begin and the end of the batch.
    sequence: u32,
    error: Option<io::Error>,
}

/// Parses all messages of a datagram, which are aligned to four bytes.
fn parse_replies(bytes: &[u8]) -> anyhow::Result<Vec<NetlinkReply>> {
    let mut replies = Vec::new();
    let mut remaining = bytes;
    while !remaining.is_empty() {
        let message = NetlinkMessage::<NetfilterMessage>::deserialize(remaining)
            .context("invalid response of the kernel")?;
        if let NetlinkPayload::Error(error) = &message.payload {
            let error = error.code.map(|code| io::Error::from_raw_os_error(-code.get()));
            replies.push(NetlinkReply { sequence: message.header.sequence_number, error });
        }
        let length = usize::try_from(message.header.length).unwrap_or(usize::MAX);
        remaining = remaining.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(replies)
}

/// Adds a hint to errors that a missing capability or kernel module causes.
fn add_hint(error: io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "run it as root with the capability NET_ADMIN in the network namespace"
        }
        io::ErrorKind::NotFound | io::ErrorKind::Unsupported => {
            "the kernel needs nf_tables with `inet` address translation: Linux 5.2 or later, with \
             nft_chain_nat and nft_redir"
        }
        _ => return error.into(),
    };
    anyhow::Error::from(error).context(hint)
}

fn append_message(batch: &mut Vec<u8>, sequence: u32, message: NetfilterMessage, flags: u16) {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let message_start = batch.len();
    batch.resize(message_start + message.buffer_len().next_multiple_of(4), 0);
    if let Some(message_space) = batch.get_mut(message_start..) {
        message.serialize(message_space);
    }
}

/// Returns the begin or end message of an nf_tables batch, with the subsystem number in the header
/// (`NFNL_SUBSYS_NFTABLES`).
fn build_control_message(message: ControlMessage) -> NetfilterMessage {
    const NFTABLES: u16 = 10;
    let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, NFTABLES);
    NetfilterMessage::new(header, NetfilterMessageInner::None(message))
}

fn build_table_message() -> TableMessage {
    TableMessage { attributes: vec![TableAttribute::Name(TABLE.to_owned())] }
}

fn build_chain_message(hook: NetfilterHook) -> ChainMessage {
    let hook_number = match hook {
        NetfilterHook::Output => InetHookNumber::LocalOut,
        NetfilterHook::Prerouting => InetHookNumber::PreRouting,
    };
    ChainMessage {
        attributes: vec![
            ChainAttribute::Table(TABLE.to_owned()),
            ChainAttribute::Name(hook.chain_name().to_owned()),
            ChainAttribute::Type("nat".to_owned()),
            ChainAttribute::Hook(vec![
                HookAttribute::Number(HookNumber::Inet(hook_number)),
                HookAttribute::Priority(PRIORITY.cast_unsigned()),
            ]),
        ],
    }
}

fn build_rule_message(hook: NetfilterHook, rule: &NftRule) -> RuleMessage {
    let expressions: Vec<ListAttribute<ExpressionAttribute>> = rule
        .matches
        .iter()
        .flat_map(build_match_expressions)
        .chain(build_verdict_expressions(rule.verdict))
        .map(ListAttribute::from)
        .collect();
    RuleMessage {
        attributes: vec![
            RuleAttribute::Table(TABLE.to_owned()),
            RuleAttribute::Chain(hook.chain_name().to_owned()),
            RuleAttribute::Expressions(expressions),
        ],
    }
}

/// Translates a match to nf_tables expressions: load a register, compare it.
fn build_match_expressions(nft_match: &NftMatch) -> Vec<Expressions> {
    match nft_match {
        NftMatch::Uid(uid) => {
            vec![load_meta(MetaKey::SocketUserId), compare_register(uid.to_ne_bytes().to_vec())]
        }
        NftMatch::OutputInterface(name) => {
            vec![load_meta(MetaKey::Oifname), compare_register(pad_interface(name))]
        }
        NftMatch::InputInterface(name) => {
            vec![load_meta(MetaKey::Iifname), compare_register(pad_interface(name))]
        }
        NftMatch::Tcp => vec![load_meta(MetaKey::L4Proto), compare_register(vec![IPPROTO_TCP])],
        NftMatch::TcpPort(port) => build_port_expressions(IPPROTO_TCP, *port),
        NftMatch::UdpPort(port) => build_port_expressions(IPPROTO_UDP, *port),
        NftMatch::DestinationRange(range) => {
            // The offset of the destination address in the IP header.
            let (family, offset, octets) = match range.first_address() {
                IpAddr::V4(address) => (NFPROTO_IPV4, 16, address.octets().to_vec()),
                IpAddr::V6(address) => (NFPROTO_IPV6, 24, address.octets().to_vec()),
            };
            let length = u32::try_from(octets.len()).unwrap_or(0);
            vec![
                load_meta(MetaKey::Nfproto),
                compare_register(vec![family]),
                load_header(BASE_NETWORK, offset, length),
                mask_register(range.mask(), length),
                compare_register(octets),
            ]
        }
    }
}

fn build_port_expressions(protocol: u8, port: u16) -> Vec<Expressions> {
    vec![
        load_meta(MetaKey::L4Proto),
        compare_register(vec![protocol]),
        load_header(BASE_TRANSPORT, PORT_OFFSET, 2),
        compare_register(port.to_be_bytes().to_vec()),
    ]
}

fn build_verdict_expressions(verdict: NftVerdict) -> Vec<Expressions> {
    match verdict {
        NftVerdict::Return => vec![Expressions::Immediate(vec![
            Immediate::DestinationRegister(Register::Verdict),
            Immediate::Data(DataAttribute::Verdict(vec![VerdictAttribute::Code(
                VerdictCode::Return,
            )])),
        ])],
        NftVerdict::Redirect(port) => vec![
            Expressions::Immediate(vec![
                Immediate::DestinationRegister(Register::Reg1),
                Immediate::Data(DataAttribute::Value(port.to_be_bytes().to_vec())),
            ]),
            Expressions::Other {
                expression_type: "redir".to_owned(),
                attributes: vec![DefaultNla::new(
                    REDIR_PORT,
                    u32::from(Register::Reg1).to_be_bytes().to_vec(),
                )],
            },
        ],
    }
}

fn load_meta(key: MetaKey) -> Expressions {
    Expressions::Meta(vec![Meta::Key(key), Meta::DestinationRegister(Register::Reg1)])
}

fn load_header(base: u32, offset: u32, length: u32) -> Expressions {
    Expressions::Payload(vec![
        Payload::DestinationRegister(Register::Reg1),
        Payload::Base(base),
        Payload::Offset(offset),
        Payload::Len(length),
    ])
}

fn mask_register(mask: Vec<u8>, length: u32) -> Expressions {
    let zeros = vec![0; mask.len()];
    Expressions::Bitwise(vec![
        Bitwise::SourceRegister(Register::Reg1),
        Bitwise::DestinationRegister(Register::Reg1),
        Bitwise::Length(length),
        Bitwise::Mask(DataAttribute::Value(mask)),
        Bitwise::Xor(DataAttribute::Value(zeros)),
    ])
}

fn compare_register(value: Vec<u8>) -> Expressions {
    Expressions::Cmp(vec![
        Cmp::SourceRegister(Register::Reg1),
        Cmp::Op(Operator::Equal),
        Cmp::Data(DataAttribute::Value(value)),
    ])
}

/// Pads an interface name with zeros to the length that the kernel compares.
fn pad_interface(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(INTERFACE_BYTES, 0);
    bytes
}

/// `IPPROTO_TCP`.
const IPPROTO_TCP: u8 = 6;
/// `IPPROTO_UDP`.
const IPPROTO_UDP: u8 = 17;
/// The offset of the destination port in TCP and UDP headers.
const PORT_OFFSET: u32 = 2;
/// `NFT_PAYLOAD_NETWORK_HEADER`.
const BASE_NETWORK: u32 = 1;
/// `NFT_PAYLOAD_TRANSPORT_HEADER`.
const BASE_TRANSPORT: u32 = 2;
/// `NFPROTO_IPV4`.
const NFPROTO_IPV4: u8 = 2;
/// `NFPROTO_IPV6`.
const NFPROTO_IPV6: u8 = 10;
/// `NFTA_REDIR_REG_PROTO_MIN`.
const REDIR_PORT: u16 = 1;

//! DNS server in the network namespace of a workload: it resolves services only.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use leno_telemetry::Count;
use leno_traffic::host;
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;

use crate::config::Interception;
use crate::control_client::ControlClient;
use crate::dns_proxy::{DnsTransport, bind_when_free};
use crate::subscriptions::SubscriptionTable;
use crate::virtual_addresses::{IsNew, to_v6};

/// Answers DNS queries over UDP for as long as the proxy lives.
pub(crate) async fn serve(control_client: Rc<ControlClient>, address: SocketAddr) {
    let conditions = &control_client.config_store.conditions;
    let socket = bind_when_free(conditions, address, DnsTransport::Udp, async || {
        UdpSocket::bind(address).await
    })
    .await;
    let socket = Rc::new(socket);
    let slots = std::sync::Arc::new(Semaphore::new(QUERIES_MAX));
    let mut packet = [0_u8; PACKET_BYTES_MAX];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut packet).await else { continue };
        let Ok(query) = Message::from_vec(&packet[..length]) else { continue };
        // Answering a response could cause an endless loop between two servers.
        if query.metadata.message_type != MessageType::Query {
            continue;
        }
        // An application that sends more queries than the control plane answers loses some, and retries them.
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            control_client.shard.add(Count::DnsQueriesFailed, 1);
            continue;
        };
        let (control_client, socket) = (control_client.clone(), socket.clone());
        tokio::task::spawn_local(async move {
            if let Err(error) = answer_query(&control_client, &socket, &query, client).await {
                tracing::debug!(%error, "DNS response not sent");
            }
            drop(slot);
        });
    }
}

async fn answer_query(
    control_client: &ControlClient,
    socket: &UdpSocket,
    query: &Message,
    client: SocketAddr,
) -> io::Result<()> {
    let asked = &query.metadata;
    let mut reply = Message::response(asked.id, asked.op_code);
    reply.metadata.authoritative = true;
    reply.metadata.recursion_desired = asked.recursion_desired;
    reply.metadata.recursion_available = true;
    match query.queries.as_slice() {
        [question] if asked.op_code == OpCode::Query => {
            reply.add_query(question.clone());
            match look_up(control_client, question).await {
                Ok(Some(address)) => {
                    let data = match question.query_type() {
                        RecordType::AAAA => RData::AAAA(AAAA(to_v6(address))),
                        _ => RData::A(A(address)),
                    };
                    let name = question.name().clone();
                    reply.add_answer(Record::from_rdata(name, TTL_SECONDS, data));
                }
                Ok(None) => {}
                Err(code) => {
                    reply.metadata.response_code = code;
                }
            }
        }
        _ => {
            reply.metadata.response_code = ResponseCode::NotImp;
        }
    }
    let bytes = reply.to_vec().map_err(io::Error::other)?;
    socket.send_to(&bytes, client).await?;
    Ok(())
}

/// Returns the address of the service that a query names; `Ok(None)`: it has no record of this type.
async fn look_up(
    control_client: &ControlClient,
    question: &Query,
) -> Result<Option<Ipv4Addr>, ResponseCode> {
    if question.query_class() != DNSClass::IN {
        return Err(ResponseCode::NotImp);
    }
    let namespace = &control_client.config.workload.namespace;
    let name = question.name().to_utf8();
    let service = host::service_of(&name, namespace).ok_or(ResponseCode::NXDomain)?;
    let max_wait = control_client.config.limits.discovery_timeout;
    match control_client.config_store.with_service(&service, max_wait).await {
        Ok(_) => {}
        Err(leno_model::Reason::UnknownService) => return Err(ResponseCode::NXDomain),
        // Without a response of the control plane, existence is unknown: SERVFAIL, not NXDOMAIN.
        Err(_) => return Err(ResponseCode::ServFail),
    }
    let has_v6 = matches!(
        control_client.config.interception,
        Interception::Redirect { outbound_v6: Some(_), .. }
    );
    match question.query_type() {
        RecordType::A => {}
        RecordType::AAAA if has_v6 => {}
        _ => return Ok(None),
    }
    let names = control_client.config_store.names();
    let (address, is_new) = names.virtual_address(&service).ok_or(ResponseCode::ServFail)?;
    if is_new == IsNew::InPlaceOfAnother {
        control_client.note_evicted(SubscriptionTable::ServiceAddresses, 1);
    }
    if is_new != IsNew::No {
        control_client.state.keep_names(&names.to_text());
    }
    Ok(Some(address))
}

/// The TTL of addresses; they stay valid much longer.
const TTL_SECONDS: u32 = 30;
/// RFC 1035 §2.3.4 allows 512 bytes over UDP; EDNS clients send a little more.
const PACKET_BYTES_MAX: usize = 1232;
/// Concurrent DNS queries.
const QUERIES_MAX: usize = 256;

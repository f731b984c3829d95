//! Serves DNS in the network namespace of a workload without Kubernetes (`leno up --netns`): resolves services to their
//! virtual addresses, and no other names.

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
use tokio::time::sleep;

use crate::config::Interception;
use crate::control_client::ControlClient;
use crate::dns_proxy::{DnsTransport, ERROR_PAUSE, bind_when_free};
use crate::subscriptions::SubscriptionTable;
use crate::virtual_addresses::{AddressAssignment, to_v6};

/// Answers DNS queries over UDP until the proxy ends.
pub(crate) async fn serve(control_client: Rc<ControlClient>, address: SocketAddr) {
    let conditions = &control_client.config_store.conditions;
    let socket = bind_when_free(conditions, address, DnsTransport::Udp, async || {
        UdpSocket::bind(address).await
    })
    .await;
    let socket = Rc::new(socket);
    let query_permits = std::sync::Arc::new(Semaphore::new(MAX_CONCURRENT_QUERIES));
    let mut packet = [0_u8; MAX_PACKET_BYTES];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut packet).await else {
            sleep(ERROR_PAUSE).await;
            continue;
        };
        let Ok(query) = Message::from_vec(&packet[..length]) else { continue };
        // Answering a response could cause an endless loop between two servers.
        if query.metadata.message_type != MessageType::Query {
            continue;
        }
        // Queries beyond the limit are dropped; the application retries them.
        let Ok(permit) = query_permits.clone().try_acquire_owned() else {
            control_client.metrics.add(Count::DnsQueriesFailed, 1);
            continue;
        };
        let (control_client, socket) = (control_client.clone(), socket.clone());
        tokio::task::spawn_local(async move {
            if let Err(error) = respond_to_query(&control_client, &socket, &query, client).await {
                tracing::debug!(%error, "DNS response not sent");
            }
            drop(permit);
        });
    }
}

/// Sends the response to one query.
async fn respond_to_query(
    control_client: &ControlClient,
    socket: &UdpSocket,
    query: &Message,
    client: SocketAddr,
) -> io::Result<()> {
    let metadata = &query.metadata;
    let mut response = Message::response(metadata.id, metadata.op_code);
    response.metadata.authoritative = true;
    response.metadata.recursion_desired = metadata.recursion_desired;
    response.metadata.recursion_available = true;
    match query.queries.as_slice() {
        [question] if metadata.op_code == OpCode::Query => {
            response.add_query(question.clone());
            match resolve_service(control_client, question).await {
                Ok(Some(address)) => {
                    let data = match question.query_type() {
                        RecordType::AAAA => RData::AAAA(AAAA(to_v6(address))),
                        _ => RData::A(A(address)),
                    };
                    let question_name = question.name().clone();
                    response.add_answer(Record::from_rdata(question_name, TTL_SECONDS, data));
                }
                Ok(None) => {}
                Err(code) => {
                    response.metadata.response_code = code;
                }
            }
        }
        _ => {
            response.metadata.response_code = ResponseCode::NotImp;
        }
    }
    let bytes = response.to_vec().map_err(io::Error::other)?;
    socket.send_to(&bytes, client).await?;
    Ok(())
}

/// Returns the virtual address of the service that a query names; `Ok(None)` if the service has no record of
/// the requested type.
///
/// # Errors
/// The response code: NXDOMAIN if there is no such service, SERVFAIL if this is unknown or no address is free.
async fn resolve_service(
    control_client: &ControlClient,
    question: &Query,
) -> Result<Option<Ipv4Addr>, ResponseCode> {
    if question.query_class() != DNSClass::IN {
        return Err(ResponseCode::NotImp);
    }
    let namespace = &control_client.config.workload.namespace;
    let question_name = question.name().to_utf8();
    let service = host::service_of(&question_name, namespace).ok_or(ResponseCode::NXDomain)?;
    let max_wait = control_client.config.limits.discovery_timeout;
    match control_client.config_store.with_service(&service, max_wait).await {
        Ok(_) => {}
        Err(leno_model::Reason::UnknownService) => return Err(ResponseCode::NXDomain),
        // Without a response of the control plane, existence is unknown: SERVFAIL, not NXDOMAIN.
        Err(_) => return Err(ResponseCode::ServFail),
    }
    let supports_v6 = matches!(
        control_client.config.interception,
        Interception::Redirect { outbound_v6: Some(_), .. }
    );
    match question.query_type() {
        RecordType::A => {}
        RecordType::AAAA if supports_v6 => {}
        _ => return Ok(None),
    }
    let virtual_addresses = control_client.config_store.virtual_addresses();
    let (address, assignment) =
        virtual_addresses.virtual_address(&service).ok_or(ResponseCode::ServFail)?;
    if assignment == AddressAssignment::Replaced {
        control_client.record_evictions(SubscriptionTable::ServiceAddresses, 1);
    }
    if assignment != AddressAssignment::Existing {
        control_client.state_dir.store_virtual_addresses(&virtual_addresses.to_text());
    }
    Ok(Some(address))
}

/// The TTL of address records in seconds. The addresses stay valid much longer.
const TTL_SECONDS: u32 = 30;
/// The maximum size of a query in bytes: RFC 1035 §2.3.4 allows 512 bytes over UDP, and EDNS clients use up to 1232
/// (DNS Flag Day 2020).
const MAX_PACKET_BYTES: usize = 1232;
/// The maximum number of concurrent DNS queries; further queries are dropped.
const MAX_CONCURRENT_QUERIES: usize = 256;

//! Connectivity check of the endpoints of a service from this proxy.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::{Endpoint, Reason, ServiceName};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinSet;

use super::Admin;
use crate::tls::{ALPN_LINK, AlpnOffer, TlsConfigs};
use crate::upstream::connect::{TlsContext, connect_tcp, open_tls_to};

/// Connects to each endpoint of the service named in a query and reports the results. Queries run one at a
/// time.
///
/// # Errors
/// The error in the query.
pub(super) async fn run_query(admin: &Rc<Admin>, query: &str) -> Result<Value, String> {
    let name = query.split('&').find_map(|pair| pair.strip_prefix("service="));
    let name = name.and_then(|name| name.parse::<ServiceName>().ok());
    let name = name.ok_or("the service is missing: use /connectivity?service=NAMESPACE/NAME\n")?;
    let Ok(_turn) = admin.connectivity_permit.acquire().await else {
        return Err("the sidecar is stopping\n".to_owned());
    };
    let (known, endpoints) = match admin.config_store.with_service(&name, DISCOVERY_MAX_WAIT).await
    {
        Ok((config, _)) => {
            let view = config.plans.snapshot.services.get(&name);
            let ports = view.iter().flat_map(|view| view.ports.values());
            (None, ports.flat_map(|port| port.endpoints.iter().cloned()).collect())
        }
        Err(reason) => (Some(reason.label()), Vec::new()),
    };
    let omitted = endpoints.len().saturating_sub(ENDPOINTS_MAX);
    let mut reached = check_all(admin, endpoints).await;
    reached.sort_by(|one, other| one.0.cmp(&other.0));
    let reached: Vec<Value> = reached.into_iter().map(|(_, reported)| reported).collect();
    Ok(json!({
        "service": name.to_string(),
        "reason": known,
        "endpoints": reached,
        "omitted": omitted,
    }))
}

/// Checks all endpoints concurrently, each with its own timeout.
async fn check_all(admin: &Rc<Admin>, endpoints: Vec<Arc<Endpoint>>) -> Vec<(String, Value)> {
    let mut under_way = JoinSet::new();
    for endpoint in endpoints.into_iter().take(ENDPOINTS_MAX) {
        let admin = admin.clone();
        under_way.spawn_local(async move {
            let Admin { config, config_store, shard, .. } = &*admin;
            // Uses its own TLS configurations: a resumed session would not verify the current certificates.
            let tls = TlsConfigs::default();
            let began = Instant::now();
            let outcome =
                check_endpoint(&endpoint, &TlsContext { config, config_store, tls: &tls, shard })
                    .await;
            let reported = json!({
                "workload": endpoint.id.workload.to_string(),
                "port": endpoint.id.port,
                "address": endpoint.address.to_string(),
                "reason": outcome.err().map(Reason::label),
                "duration_ms": began.elapsed().as_secs_f64() * 1e3,
            });
            (format!("{} {:05}", endpoint.id.workload, endpoint.id.port), reported)
        });
    }
    let mut reported = Vec::new();
    while let Some(done) = under_way.join_next().await {
        reported.extend(done.ok());
    }
    reported
}

/// Connects, with mutual TLS if the endpoint has a sidecar, and waits for its first byte: only that byte proves
/// that the server accepts our certificate.
async fn check_endpoint(endpoint: &Endpoint, way: &TlsContext<'_>) -> Result<(), Reason> {
    let reached = async {
        if endpoint.account.is_none() {
            return connect_tcp(endpoint.address, way.config).await.map(drop);
        }
        let (mut tls, _) = open_tls_to(endpoint, way, AlpnOffer::All).await?;
        if tls.get_ref().1.alpn_protocol() != Some(ALPN_LINK) {
            return Ok(());
        }
        match tls.read_u8().await {
            Ok(_) => Ok(()),
            Err(_) => Err(Reason::UpstreamHandshakeFailed),
        }
    };
    let reached = tokio::time::timeout(ENDPOINT_MAX_WAIT, reached).await;
    reached.unwrap_or(Err(Reason::ConnectTimeout))
}

/// The maximum number of endpoints checked per query.
const ENDPOINTS_MAX: usize = 16;
/// The timeout of each endpoint; together with [`DISCOVERY_MAX_WAIT`], less than the timeout of the caller.
const ENDPOINT_MAX_WAIT: Duration = Duration::from_secs(2);
/// The timeout for discovery of a service that this proxy does not have yet.
const DISCOVERY_MAX_WAIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture::{
        Application, Mesh, OK, closed_port, meshed_endpoint, run, test_credential,
    };

    #[test]
    fn an_endpoint_is_reached_or_the_reason_is_reported() {
        run(async {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let worker = &mesh.client.worker;
            let (config, config_store, shard) =
                (&*worker.config, &*worker.config_store, &*worker.shard);
            let tls = TlsConfigs::default();
            let way = TlsContext { config, config_store, tls: &tls, shard };
            assert_eq!(check_endpoint(&mesh.server_endpoint(), &way).await, Ok(()));
            let other = meshed_endpoint("ratings-1", mesh.inbound, "details");
            assert_eq!(check_endpoint(&other, &way).await, Err(Reason::WrongIdentity));
            let closed = meshed_endpoint("ratings-9", closed_port(), "ratings");
            assert_eq!(check_endpoint(&closed, &way).await, Err(Reason::ConnectFailed));
            let plain = Endpoint { account: None, address: app.address, ..mesh.server_endpoint() };
            assert_eq!(check_endpoint(&plain, &way).await, Ok(()));
            assert_eq!(app.received_requests().len(), 0, "nothing is asked of the application");
            // A server reports an untrusted client only after the handshake.
            let folder = tempfile::tempdir().unwrap();
            let external_client =
                crate::tests::fixture::test_authority(folder.path(), "cluster.local");
            mesh.client.set_credential(test_credential(&external_client, "productpage"));
            assert!(check_endpoint(&mesh.server_endpoint(), &way).await.is_err());
        });
    }
}

//! Serves `/connectivity` of the admin endpoint: connects from this proxy to the endpoints of a service, and reports the
//! results.

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

/// Connects to the endpoints of the service that the query string names, at most [`MAX_ENDPOINTS`], and reports
/// the results. Queries run one at a time.
///
/// # Errors
/// A message for the client: the query names no service, or the proxy is stopping.
pub(super) async fn check_service_endpoints(
    admin: &Rc<Admin>,
    query: &str,
) -> Result<Value, String> {
    let service_parameter = query.split('&').find_map(|pair| pair.strip_prefix("service="));
    let service = service_parameter
        .and_then(|text| text.parse::<ServiceName>().ok())
        .ok_or("the service is missing: use /connectivity?service=NAMESPACE/NAME\n")?;
    let Ok(_permit) = admin.connectivity_permit.acquire().await else {
        return Err("the sidecar is stopping\n".to_owned());
    };
    let (discovery_failure, endpoints) =
        match admin.config_store.with_service(&service, MAX_DISCOVERY_WAIT).await {
            Ok((config, _)) => {
                let service_config = config.compiled.snapshot.services.get(&service);
                let ports = service_config.iter().flat_map(|service| service.ports.values());
                (None, ports.flat_map(|port| port.endpoints.iter().cloned()).collect())
            }
            Err(reason) => (Some(reason.label()), Vec::new()),
        };
    let omitted_count = endpoints.len().saturating_sub(MAX_ENDPOINTS);
    let mut keyed_results = check_endpoints(admin, endpoints).await;
    keyed_results.sort_by(|(first_key, _), (second_key, _)| first_key.cmp(second_key));
    let results: Vec<Value> = keyed_results.into_iter().map(|(_, result)| result).collect();
    Ok(json!({
        "service": service.to_string(),
        "reason": discovery_failure,
        "endpoints": results,
        "omitted": omitted_count,
    }))
}

/// Checks endpoints concurrently, each with its own timeout. Returns each result with a sort key.
async fn check_endpoints(admin: &Rc<Admin>, endpoints: Vec<Arc<Endpoint>>) -> Vec<(String, Value)> {
    let mut check_tasks = JoinSet::new();
    for endpoint in endpoints.into_iter().take(MAX_ENDPOINTS) {
        let admin = admin.clone();
        check_tasks.spawn_local(async move {
            let Admin { config, config_store, metrics, .. } = &*admin;
            // Uses its own TLS configurations: a resumed session would not verify the current certificates.
            let tls = TlsConfigs::default();
            let start_time = Instant::now();
            let outcome =
                check_endpoint(&endpoint, &TlsContext { config, config_store, tls: &tls, metrics })
                    .await;
            let result = json!({
                "workload": endpoint.id.workload.to_string(),
                "port": endpoint.id.port,
                "address": endpoint.address.to_string(),
                "reason": outcome.err().map(Reason::label),
                "duration_ms": start_time.elapsed().as_secs_f64() * 1e3,
            });
            // The fixed width sorts ports as numbers.
            (format!("{} {:05}", endpoint.id.workload, endpoint.id.port), result)
        });
    }
    let mut results = Vec::new();
    while let Some(task_result) = check_tasks.join_next().await {
        // A check that panicked has no result.
        results.extend(task_result.ok());
    }
    results
}

/// Connects to an endpoint, with mutual TLS if it has a sidecar. Then waits for the first byte of the link,
/// because only this byte proves that the sidecar accepts the certificate of this proxy.
async fn check_endpoint(endpoint: &Endpoint, tls_context: &TlsContext<'_>) -> Result<(), Reason> {
    let check = async {
        if endpoint.account.is_none() {
            return connect_tcp(endpoint.address, tls_context.config).await.map(drop);
        }
        let (mut tls, _) = open_tls_to(endpoint, tls_context, AlpnOffer::All).await?;
        if tls.get_ref().1.alpn_protocol() != Some(ALPN_LINK) {
            return Ok(());
        }
        match tls.read_u8().await {
            Ok(_) => Ok(()),
            Err(_) => Err(Reason::UpstreamHandshakeFailed),
        }
    };
    let result = tokio::time::timeout(MAX_ENDPOINT_WAIT, check).await;
    result.unwrap_or(Err(Reason::ConnectTimeout))
}

/// The maximum number of endpoints checked per query, since each check opens a connection.
const MAX_ENDPOINTS: usize = 16;
/// The timeout of each endpoint; together with [`MAX_DISCOVERY_WAIT`], less than the timeout of the caller.
const MAX_ENDPOINT_WAIT: Duration = Duration::from_secs(2);
/// The timeout for discovery of a service that this proxy does not have yet.
const MAX_DISCOVERY_WAIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fixture::{
        Application, Mesh, OK, closed_port, meshed_endpoint, run, test_credential,
    };

    #[test]
    fn the_check_of_an_endpoint_reports_the_reason_of_a_failure() {
        run(async {
            let app = Application::with_response(OK).await;
            let mesh = Mesh::permissive(app.address).await;
            let worker = &mesh.client.worker;
            let (config, config_store, metrics) =
                (&*worker.config, &*worker.config_store, &*worker.metrics);
            let tls = TlsConfigs::default();
            let tls_context = TlsContext { config, config_store, tls: &tls, metrics };
            assert_eq!(check_endpoint(&mesh.server_endpoint(), &tls_context).await, Ok(()));
            let misidentified = meshed_endpoint("ratings-1", mesh.inbound, "details");
            assert_eq!(
                check_endpoint(&misidentified, &tls_context).await,
                Err(Reason::WrongIdentity)
            );
            let closed = meshed_endpoint("ratings-9", closed_port(), "ratings");
            assert_eq!(check_endpoint(&closed, &tls_context).await, Err(Reason::ConnectFailed));
            let plain = Endpoint { account: None, address: app.address, ..mesh.server_endpoint() };
            assert_eq!(check_endpoint(&plain, &tls_context).await, Ok(()));
            assert_eq!(app.received_requests().len(), 0, "the check sends no request");
            // A server reports an untrusted client only after the handshake.
            let directory = tempfile::tempdir().unwrap();
            let other_authority =
                crate::tests::fixture::test_authority(directory.path(), "cluster.local");
            mesh.client.set_credential(test_credential(&other_authority, "productpage"));
            assert!(check_endpoint(&mesh.server_endpoint(), &tls_context).await.is_err());
        });
    }
}

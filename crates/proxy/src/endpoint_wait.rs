//! Makes requests wait for an endpoint: a request that found no endpoint is routed again if a newer configuration
//! contains an endpoint, for example after a workload has restarted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_model::ServiceName;
use leno_traffic::CompiledService;
use tokio::time::{sleep, timeout};

use crate::config_store::{ConfigSnapshot, ConfigStore};
use crate::drain::Phase;
use crate::upstream::priorities::Priorities;
use crate::worker::Worker;

/// The configuration version with which a request failed. The request may be routed again with a newer version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutdatedConfig {
    version: u64,
    /// True if this is the current configuration, but the endpoint's sidecar already has a newer configuration
    /// without the port.
    is_behind: bool,
}

impl OutdatedConfig {
    /// Returns the version of `config` if the request may be routed again with a newer version. Returns `None`
    /// if one of the endpoints is current, unless its workload has lost the port (`has_lost_port`).
    #[cold]
    pub(crate) fn detect(
        config_store: &ConfigStore,
        config: &ConfigSnapshot,
        priorities: &Priorities,
        has_lost_port: bool,
    ) -> Option<Self> {
        let is_current = priorities.endpoints().any(|endpoint| config_store.is_current(endpoint));
        // An endpoint that is current here, but has lost the port, has a newer configuration than this proxy.
        let outdated = Self { version: config.version, is_behind: is_current };
        (has_lost_port || !is_current).then_some(outdated)
    }
}

impl Worker {
    /// Waits until a failed request for a service may be routed again. Returns false if no endpoint is
    /// expected, if the request, which began at `start_time`, has reached its maximum wait, or if the proxy
    /// drains.
    #[cold]
    pub(crate) async fn wait_for_endpoint(
        &self,
        service: &ServiceName,
        OutdatedConfig { version, is_behind }: OutdatedConfig,
        start_time: Instant,
    ) -> bool {
        if is_behind {
            let mut versions = self.config_store.subscribe();
            let remaining = MAX_CONFIG_LAG.saturating_sub(start_time.elapsed());
            if timeout(remaining, versions.wait_for(|newer| *newer > version)).await.is_err() {
                return false;
            }
        }
        let remaining = MAX_ENDPOINT_WAIT.saturating_sub(start_time.elapsed());
        if remaining.is_zero() {
            return false;
        }
        let mut phase = self.phase.clone();
        tokio::select! {
            biased;
            is_newer = wait_for_newer_config(&self.config_store, service, version) => is_newer,
            () = sleep(remaining) => false,
            // The drain does not wait for requests that have no endpoint.
            _ = phase.wait_for(|phase| *phase == Phase::Draining) => false,
        }
    }
}

impl ConfigStore {
    /// Returns the expectation of a request that found no endpoint of a service in this configuration version.
    fn endpoint_expectation(&self, service: &ServiceName, version: u64) -> EndpointExpectation {
        let Some(config) = self.current_config() else { return EndpointExpectation::None };
        let compiled_service = config.compiled.service(service);
        let awaited_service = compiled_service.filter(|service| service.config.waits_for_endpoint);
        let is_empty = |service: &Arc<CompiledService>| {
            service.ports.values().all(|port| port.endpoints.is_empty())
        };
        match awaited_service {
            Some(service) if is_empty(service) || config.version == version => {
                EndpointExpectation::Awaited
            }
            _ if config.version != version => EndpointExpectation::Newer,
            _ => EndpointExpectation::None,
        }
    }
}

/// The expectation of a request that has found no endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndpointExpectation {
    /// A newer configuration exists: the request is routed again.
    Newer,
    /// An endpoint is expected.
    Awaited,
    /// No endpoint is expected.
    None,
}

/// Waits for a later configuration in which a request for a service may succeed. Returns false if no endpoint
/// is expected.
async fn wait_for_newer_config(
    config_store: &ConfigStore,
    service: &ServiceName,
    version: u64,
) -> bool {
    let mut changes = config_store.subscribe();
    loop {
        match config_store.endpoint_expectation(service, version) {
            EndpointExpectation::Newer => return true,
            EndpointExpectation::None => return false,
            EndpointExpectation::Awaited => {}
        }
        // The configuration store outlives its requests.
        if changes.changed().await.is_err() {
            return false;
        }
    }
}

/// The maximum wait of a request: the old sidecar drains, the application ends, and the new sidecar starts.
const MAX_ENDPOINT_WAIT: Duration = Duration::from_secs(20);
/// The time in which both sidecars of a request apply a change, unless the control plane is not reachable.
const MAX_CONFIG_LAG: Duration = Duration::from_secs(1);

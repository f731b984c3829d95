//! Builds the TLS configurations of a gateway for external clients, one per port that terminates TLS.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_identity::gateway_server_config;
use leno_model::{Gateway, GatewayCertificate, GatewayListener, GatewayPortRules, HostPattern};
use leno_traffic::CompiledSnapshot;
use rustls::ServerConfig;

use crate::tls::{ALPN_HTTP1, ALPN_HTTP2};

/// A configuration for each port that terminates TLS; `None` if its certificates cannot be used.
pub(crate) type GatewayTlsConfigs = BTreeMap<u16, Option<Arc<ServerConfig>>>;

/// Builds the TLS configurations of a snapshot. The configuration of a port is reused from `previous` while its
/// certificates are the same, so that sessions can be resumed. Unusable certificates are logged once.
pub(crate) fn build_configs(
    compiled: &CompiledSnapshot,
    previous: Option<(&CompiledSnapshot, &GatewayTlsConfigs)>,
) -> GatewayTlsConfigs {
    let Some(gateway) = compiled.snapshot.config.gateway.as_deref() else {
        return BTreeMap::new();
    };
    if let Some(compiled_gateway) = &compiled.gateway
        && previous
            .and_then(|(previous, _)| previous.gateway.as_ref())
            .is_none_or(|previous_gateway| !Arc::ptr_eq(previous_gateway, compiled_gateway))
    {
        for invalid_rule in &compiled_gateway.invalid_patterns {
            tracing::warn!(gateway = %gateway.name, reason = %invalid_rule, "a gateway rule is invalid and is ignored");
        }
    }
    let ports = gateway.ports.iter().filter_map(|port| match &port.serves {
        GatewayPortRules::Https(listeners) => Some((port.port, listeners)),
        GatewayPortRules::Http(_) | GatewayPortRules::Passthrough(_) | GatewayPortRules::Tcp(_) => {
            None
        }
    });
    let configs = ports.map(|(port, listeners)| {
        let reused_config = previous
            .and_then(|(previous, configs)| reuse_config(previous, configs, port, listeners));
        (port, reused_config.unwrap_or_else(|| build_config(gateway, port, listeners)))
    });
    configs.collect()
}

/// Returns the previous configuration of a port; the outer `None` if its certificates have changed.
fn reuse_config(
    previous: &CompiledSnapshot,
    configs: &GatewayTlsConfigs,
    port: u16,
    listeners: &[GatewayListener],
) -> Option<Option<Arc<ServerConfig>>> {
    let gateway = previous.snapshot.config.gateway.as_deref()?;
    let previous_port = gateway.ports.iter().find(|candidate| candidate.port == port)?;
    let GatewayPortRules::Https(previous_listeners) = &previous_port.serves else { return None };
    let config = configs.get(&port)?;
    tls_fields(previous_listeners).eq(tls_fields(listeners)).then(|| config.clone())
}

/// Returns the listener fields that the TLS configuration depends on.
fn tls_fields(
    listeners: &[GatewayListener],
) -> impl Iterator<Item = (Option<&HostPattern>, &[GatewayCertificate])> {
    listeners.iter().map(|listener| (listener.hostname.as_ref(), &*listener.certificates))
}

/// Builds the configuration of a port; `None` if none of its certificates is usable, which is logged.
fn build_config(
    gateway: &Gateway,
    port: u16,
    listeners: &[GatewayListener],
) -> Option<Arc<ServerConfig>> {
    match gateway_server_config(listeners, &[ALPN_HTTP2, ALPN_HTTP1]) {
        Ok((config, unusable_certificates)) => {
            for certificate in unusable_certificates {
                tracing::error!(gateway = %gateway.name, port, reason = %certificate, "gateway listener certificate is not \
                    usable");
            }
            Some(config)
        }
        Err(error) => {
            tracing::error!(gateway = %gateway.name, port, %error, "cannot open a port of the gateway");
            None
        }
    }
}

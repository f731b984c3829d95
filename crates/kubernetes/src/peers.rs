//! Discovers the other control planes of a cluster by their headless Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;

use futures_util::StreamExt as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::{Config, Event};
use kube::{Client, ResourceExt as _};
use tokio::sync::watch;

use crate::api::{NamespaceName, ObjectApi};
use crate::well_known::CONTROL_PEERS;

/// Keeps `peers_sender` up to date with the addresses of the control planes in a namespace, except our own,
/// until it has no receivers. All control planes listen on `port`.
///
/// The addresses include control planes that are not ready: a control plane becomes ready by connecting to the
/// others.
pub async fn follow_peers(
    client: Client,
    namespace: &NamespaceName,
    own_address: IpAddr,
    port: u16,
    peers_sender: watch::Sender<BTreeSet<SocketAddr>>,
) {
    let slices: ObjectApi<EndpointSlice> = ObjectApi::for_namespace(client, namespace);
    let label = format!("{SERVICE_LABEL}={CONTROL_PEERS}");
    let mut events = pin!(slices.watch(Config::default().labels(&label)));
    let mut addresses = SliceAddresses::default();
    loop {
        let next_event = tokio::select! {
            () = peers_sender.closed() => return,
            next_event = events.next() => next_event,
        };
        match next_event {
            Some(Ok(event)) => {
                addresses.apply_event(event);
                let peers = addresses.peer_addresses(own_address, port);
                peers_sender.send_if_modified(|published| {
                    let is_changed = *published != peers;
                    if is_changed {
                        tracing::info!(?peers, "the list of other control planes changed");
                        *published = peers;
                    }
                    is_changed
                });
            }
            // The watch continues after a delay, and the known addresses stay in use.
            Some(Err(error)) => {
                tracing::warn!(%error, "cannot watch the other control planes");
            }
            None => return,
        }
    }
}

/// The addresses in each EndpointSlice of the Service, by the name of the slice.
#[derive(Debug, Default)]
struct SliceAddresses {
    /// The slices of the last complete list, with later changes.
    complete_slices: BTreeMap<String, BTreeSet<IpAddr>>,
    /// The slices of an unfinished relist. The `complete_slices` stay in use until it is finished.
    relisted_slices: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl SliceAddresses {
    fn apply_event(&mut self, event: Event<EndpointSlice>) {
        match event {
            Event::Init => self.relisted_slices.clear(),
            Event::InitApply(slice) => {
                drop(self.relisted_slices.insert(slice.name_any(), slice_addresses(&slice)))
            }
            Event::InitDone => self.complete_slices = std::mem::take(&mut self.relisted_slices),
            Event::Apply(slice) => {
                drop(self.complete_slices.insert(slice.name_any(), slice_addresses(&slice)))
            }
            Event::Delete(slice) => drop(self.complete_slices.remove(&slice.name_any())),
        }
    }

    /// Returns the addresses of the other control planes in our own address family. A dual-stack Service lists every
    /// pod once for each family.
    fn peer_addresses(&self, own_address: IpAddr, port: u16) -> BTreeSet<SocketAddr> {
        let ips = self.complete_slices.values().flatten();
        ips.filter(|ip| **ip != own_address && ip.is_ipv4() == own_address.is_ipv4())
            .map(|ip| SocketAddr::new(*ip, port))
            .collect()
    }
}

fn slice_addresses(slice: &EndpointSlice) -> BTreeSet<IpAddr> {
    let endpoints = slice.endpoints.iter();
    endpoints.flat_map(|endpoint| &endpoint.addresses).filter_map(|ip| ip.parse().ok()).collect()
}

/// The label of a slice with the name of its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice_with_addresses(name: &str, addresses: &[&str]) -> EndpointSlice {
        let endpoints: Vec<_> = addresses
            .iter()
            .map(|ip| json!({"addresses": [ip], "conditions": {"ready": false}}))
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name}, "endpoints": endpoints,
        }))
        .unwrap()
    }

    fn list_peers(slices: &SliceAddresses) -> Vec<String> {
        let own_address = "10.0.0.1".parse().unwrap();
        slices.peer_addresses(own_address, 15_010).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_listed_address_is_a_peer_except_our_own() {
        let mut slices = SliceAddresses::default();
        slices.apply_event(Event::Init);
        slices.apply_event(Event::InitApply(slice_with_addresses("a", &["10.0.0.1", "10.0.0.2"])));
        slices.apply_event(Event::InitApply(slice_with_addresses("six", &["2001:db8::2"])));
        assert!(list_peers(&slices).is_empty());
        slices.apply_event(Event::InitDone);
        assert_eq!(list_peers(&slices), ["10.0.0.2:15010"]);
        slices.apply_event(Event::Apply(slice_with_addresses("b", &["10.0.0.3"])));
        assert_eq!(list_peers(&slices), ["10.0.0.2:15010", "10.0.0.3:15010"]);
        slices.apply_event(Event::Apply(slice_with_addresses("a", &["10.0.0.1"])));
        assert_eq!(list_peers(&slices), ["10.0.0.3:15010"]);
        // During a relist no peer is removed until it is complete.
        slices.apply_event(Event::Init);
        slices.apply_event(Event::InitApply(slice_with_addresses("a", &["10.0.0.1", "10.0.0.4"])));
        assert_eq!(list_peers(&slices), ["10.0.0.3:15010"]);
        slices.apply_event(Event::InitDone);
        assert_eq!(list_peers(&slices), ["10.0.0.4:15010"]);
        slices.apply_event(Event::Delete(slice_with_addresses("a", &[])));
        assert!(list_peers(&slices).is_empty());
    }
}

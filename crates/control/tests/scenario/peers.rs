//! Control planes that discover each other at run time, each with its own sidecars.

use std::sync::Arc;

use leno_discovery::{ProxyCondition, ProxyReport};
use leno_model::{PlaintextClient, RejectedClient, SidecarConnections, SidecarFacts};
use tokio::sync::watch;

use super::*;

/// The addresses of the other control planes, as one control plane discovers them.
type DiscoveredPeers = watch::Sender<BTreeSet<SocketAddr>>;

const MORE_WORKLOADS: &str = r#"
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client-2, namespace: shop, labels: {app: client}}
spec: {serviceAccount: client}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: stock-2, namespace: shop, labels: {app: stock}}
spec: {serviceAccount: stock, ports: [{name: http, port: 8080, protocol: HTTP}]}
"#;

fn other_listener() -> SocketAddr {
    "10.0.0.2:8080".parse().unwrap()
}

/// Starts a replica as in a cluster: with its own directories, and a provisioned authority.
async fn start_replica(directory: &Path, name: &str) -> (Control, DiscoveredPeers) {
    let replica_directory = directory.join(name);
    let authority = replica_directory.join("data/authority");
    std::fs::create_dir_all(&authority).unwrap();
    write_objects(&replica_directory, &format!("{MESH}{MORE_WORKLOADS}"));
    for file in ["ca.key", "ca.pem"] {
        let source = directory.join("one/data/authority").join(file);
        if source.exists() && source != authority.join(file) {
            std::fs::copy(source, authority.join(file)).unwrap();
        }
    }
    let discovered_peers = watch::Sender::new(BTreeSet::new());
    let mut config = test_config(&replica_directory);
    config.times.disconnect_grace = Duration::from_millis(200);
    config.discovered_peers = Some(discovered_peers.subscribe());
    (Control::start(config).await.unwrap(), discovered_peers)
}

/// Connects a sidecar that joins at a control plane and stays there.
async fn connect_sidecar(control: &Control, name: &str, listeners: &[(u16, SocketAddr)]) -> Proxy {
    let identity = Identity::join(control, &workload_name(name)).await.unwrap();
    Proxy::connect(control, &identity, &[stock_service()], listeners).await
}

fn has_addresses(expected: &[SocketAddr]) -> impl Fn(&ConfigUpdate) -> bool {
    let expected: BTreeSet<SocketAddr> = expected.iter().copied().collect();
    move |update| {
        stock_addresses(update).is_some_and(|addresses| expected == addresses.into_iter().collect())
    }
}

#[test]
fn sidecars_at_different_control_planes_see_each_other() {
    run(async {
        let scratch = tempfile::tempdir().unwrap();
        let (first, peers_of_first) = start_replica(scratch.path(), "one").await;
        let (second, peers_of_second) = start_replica(scratch.path(), "two").await;
        let _stock = connect_sidecar(&first, "stock-1", &[(8080, listener_address())]).await;
        let _other = connect_sidecar(&second, "stock-2", &[(8080, other_listener())]).await;
        let mut client = connect_sidecar(&first, "client-1", &[]).await;
        let mut other_client = connect_sidecar(&second, "client-2", &[]).await;
        client.wait_for_update(has_addresses(&[listener_address()])).await;
        other_client.wait_for_update(has_addresses(&[other_listener()])).await;
        // They discover each other one after the other, long after their sidecars connected.
        peers_of_second.send_replace([first.listen_address()].into());
        other_client.wait_for_update(has_addresses(&[listener_address(), other_listener()])).await;
        peers_of_first.send_replace([second.listen_address()].into());
        client.wait_for_update(has_addresses(&[listener_address(), other_listener()])).await;
    });
}

#[test]
fn a_later_connection_and_its_end_are_visible_at_the_other_control_plane() {
    run(async {
        let scratch = tempfile::tempdir().unwrap();
        let (first, peers_of_first) = start_replica(scratch.path(), "one").await;
        let (second, peers_of_second) = start_replica(scratch.path(), "two").await;
        peers_of_first.send_replace([second.listen_address()].into());
        peers_of_second.send_replace([first.listen_address()].into());
        let mut client = connect_sidecar(&second, "client-1", &[]).await;
        client.wait_for_update(has_addresses(&[])).await;
        // Its listeners open after its first message, as those of real sidecars do.
        let stock = connect_sidecar(&first, "stock-1", &[]).await;
        stock.send_request(Proxy::listeners_request(&[(8080, listener_address())])).await;
        client.wait_for_update(has_addresses(&[listener_address()])).await;
        drop(stock);
        client.wait_for_update(has_addresses(&[])).await;
        // It may reconnect to any of them.
        let stock = connect_sidecar(&second, "stock-1", &[(8080, listener_address())]).await;
        client.wait_for_update(has_addresses(&[listener_address()])).await;
        drop(stock);
        client.wait_for_update(has_addresses(&[])).await;
    });
}

#[test]
fn the_sidecars_of_an_ended_control_plane_are_absent_until_they_reconnect() {
    run(async {
        let scratch = tempfile::tempdir().unwrap();
        let (first, _peers_of_first) = start_replica(scratch.path(), "one").await;
        let (second, peers_of_second) = start_replica(scratch.path(), "two").await;
        peers_of_second.send_replace([first.listen_address()].into());
        let _stock = connect_sidecar(&first, "stock-1", &[(8080, listener_address())]).await;
        let mut client = connect_sidecar(&second, "client-1", &[]).await;
        client.wait_for_update(has_addresses(&[listener_address()])).await;
        // Reports of a control plane that is no longer discovered still count while its stream is open.
        peers_of_second.send_replace(BTreeSet::new());
        let _other = connect_sidecar(&first, "stock-2", &[(8080, other_listener())]).await;
        client.wait_for_update(has_addresses(&[listener_address(), other_listener()])).await;
        drop(first);
        client.wait_for_update(has_addresses(&[])).await;
        let _stock = connect_sidecar(&second, "stock-1", &[(8080, listener_address())]).await;
        client.wait_for_update(has_addresses(&[listener_address()])).await;
        // Its successor has another address.
        let (successor, peers_of_successor) = start_replica(scratch.path(), "three").await;
        peers_of_successor.send_replace([second.listen_address()].into());
        peers_of_second.send_replace([successor.listen_address()].into());
        let _other = connect_sidecar(&successor, "stock-2", &[(8080, other_listener())]).await;
        client.wait_for_update(has_addresses(&[listener_address(), other_listener()])).await;
        let mut late_client = connect_sidecar(&successor, "client-2", &[]).await;
        late_client.wait_for_update(has_addresses(&[listener_address(), other_listener()])).await;
    });
}

#[test]
fn a_workload_that_one_control_plane_reads_later_is_visible_there() {
    run(async {
        let scratch = tempfile::tempdir().unwrap();
        let (first, _peers_of_first) = start_replica(scratch.path(), "one").await;
        let (second, peers_of_second) = start_replica(scratch.path(), "two").await;
        let mut client = connect_sidecar(&second, "client-1", &[]).await;
        write_objects(&scratch.path().join("two"), MESH);
        second.reload_files();
        second.watch_status().wait_for(|status| status.workloads == 2).await.unwrap();
        peers_of_second.send_replace([first.listen_address()].into());
        let _stock = connect_sidecar(&first, "stock-1", &[(8080, listener_address())]).await;
        let _other = connect_sidecar(&first, "stock-2", &[(8080, other_listener())]).await;
        client.wait_for_update(has_addresses(&[listener_address()])).await;
        write_objects(&scratch.path().join("two"), &format!("{MESH}{MORE_WORKLOADS}"));
        second.reload_files();
        client.wait_for_update(has_addresses(&[listener_address(), other_listener()])).await;
    });
}

#[test]
fn each_control_plane_reports_sidecars_without_connection_and_its_rejected_clients() {
    run(async {
        let scratch = tempfile::tempdir().unwrap();
        let (first, peers_of_first) = start_replica(scratch.path(), "one").await;
        let (second, peers_of_second) = start_replica(scratch.path(), "two").await;
        peers_of_first.send_replace([second.listen_address()].into());
        peers_of_second.send_replace([first.listen_address()].into());
        let mut facts = second.sidecar_facts();
        let mut other_facts = first.sidecar_facts();
        let disconnected = |names: &'static [&'static str]| {
            let names: Vec<WorkloadName> = names.iter().map(|name| workload_name(name)).collect();
            let count = names.len();
            let expected = SidecarConnections { peers: 1, disconnected: names, count };
            move |facts: &Arc<SidecarFacts>| facts.connections.as_ref() == Some(&expected)
        };
        let all_names = &["client-1", "client-2", "stock-1", "stock-2"];
        facts.wait_for(disconnected(all_names)).await.unwrap();
        other_facts.wait_for(disconnected(all_names)).await.unwrap();
        let stock = connect_sidecar(&first, "stock-1", &[(8080, listener_address())]).await;
        let client = connect_sidecar(&second, "client-1", &[]).await;
        facts.wait_for(disconnected(&["client-2", "stock-2"])).await.unwrap();
        let _stock_2 = connect_sidecar(&first, "stock-2", &[(8080, other_listener())]).await;
        facts.wait_for(disconnected(&["client-2"])).await.unwrap();
        other_facts.wait_for(disconnected(&["client-2"])).await.unwrap();
        // The sidecar of stock was connected to the other control plane.
        drop(stock);
        facts.wait_for(disconnected(&["client-2", "stock-1"])).await.unwrap();

        let addresses = ["10.0.0.9", "10.0.0.10"].map(|address| address.parse().unwrap());
        let condition = ProxyCondition::plaintext_rejected(8080, &addresses, true);
        let report = ProxyReport { conditions: vec![condition], ..ProxyReport::default() };
        client.send_request(ProxyRequest::Listeners(Vec::new(), report)).await;
        let rejected = addresses.map(|client| RejectedClient {
            workload: workload_name("client-1"),
            uid: None,
            client,
            port: 8080,
            kind: PlaintextClient::Other,
        });
        facts.wait_for(|facts| facts.rejected_clients == rejected).await.unwrap();
        assert_eq!(other_facts.borrow().rejected_clients, []);
    });
}

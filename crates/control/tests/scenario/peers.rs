//! Control planes that discover each other at run time, each with its own sidecars.

use std::sync::Arc;

use leno_discovery::{ProxyCondition, ProxyReport};
use leno_model::{PlaintextClient, RejectedClient, SidecarConnections, SidecarFacts};
use tokio::sync::watch;

use super::*;

/// The addresses of the others, as one control plane discovers them.
type Found = watch::Sender<BTreeSet<SocketAddr>>;

const MORE: &str = r#"
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
async fn start_replica(directory: &Path, name: &str) -> (Control, Found) {
    let place = directory.join(name);
    let authority = place.join("data/authority");
    std::fs::create_dir_all(&authority).unwrap();
    write(&place, &format!("{MESH}{MORE}"));
    for file in ["ca.key", "ca.pem"] {
        let first = directory.join("one/data/authority").join(file);
        if first.exists() && first != authority.join(file) {
            std::fs::copy(first, authority.join(file)).unwrap();
        }
    }
    let found = watch::Sender::new(BTreeSet::new());
    let mut config = test_config(&place);
    config.times.grace = Duration::from_millis(200);
    config.found_peers = Some(found.subscribe());
    (Control::start(config).await.unwrap(), found)
}

/// Connects a sidecar that joins at a control plane and stays there.
async fn connect_sidecar(control: &Control, name: &str, listeners: &[(u16, SocketAddr)]) -> Proxy {
    let identity = Identity::join(control, &workload_name(name)).await.unwrap();
    Proxy::connect(control, &identity, &[stock_service()], listeners).await
}

fn has_addresses(wanted: &[SocketAddr]) -> impl Fn(&ConfigUpdate) -> bool {
    let wanted: BTreeSet<SocketAddr> = wanted.iter().copied().collect();
    move |update| stock_addresses(update).is_some_and(|found| wanted == found.into_iter().collect())
}

#[test]
fn sidecars_at_different_control_planes_see_each_other() {
    run(async {
        let scratch = tempfile::tempdir().unwrap();
        let (one, found_by_one) = start_replica(scratch.path(), "one").await;
        let (two, found_by_two) = start_replica(scratch.path(), "two").await;
        let _stock = connect_sidecar(&one, "stock-1", &[(8080, listener_address())]).await;
        let _other = connect_sidecar(&two, "stock-2", &[(8080, other_listener())]).await;
        let mut client = connect_sidecar(&one, "client-1", &[]).await;
        let mut other_client = connect_sidecar(&two, "client-2", &[]).await;
        client.wait_for_update(has_addresses(&[listener_address()])).await;
        other_client.wait_for_update(has_addresses(&[other_listener()])).await;
        // They discover each other one after the other, long after their sidecars connected.
        found_by_two.send_replace([one.listen_address()].into());
        other_client.wait_for_update(has_addresses(&[listener_address(), other_listener()])).await;
        found_by_one.send_replace([two.listen_address()].into());
        client.wait_for_update(has_addresses(&[listener_address(), other_listener()])).await;
    });
}

#[test]
fn a_sidecar_that_comes_later_is_seen_at_the_other_control_plane_and_so_is_its_end() {
    run(async {
        let scratch = tempfile::tempdir().unwrap();
        let (one, found_by_one) = start_replica(scratch.path(), "one").await;
        let (two, found_by_two) = start_replica(scratch.path(), "two").await;
        found_by_one.send_replace([two.listen_address()].into());
        found_by_two.send_replace([one.listen_address()].into());
        let mut client = connect_sidecar(&two, "client-1", &[]).await;
        client.wait_for_update(has_addresses(&[])).await;
        // Its listeners open after its first message, as those of real sidecars do.
        let stock = connect_sidecar(&one, "stock-1", &[]).await;
        stock.send_request(Proxy::listeners_request(&[(8080, listener_address())])).await;
        client.wait_for_update(has_addresses(&[listener_address()])).await;
        drop(stock);
        client.wait_for_update(has_addresses(&[])).await;
        // It may reconnect to any of them.
        let stock = connect_sidecar(&two, "stock-1", &[(8080, listener_address())]).await;
        client.wait_for_update(has_addresses(&[listener_address()])).await;
        drop(stock);
        client.wait_for_update(has_addresses(&[])).await;
    });
}

#[test]
fn a_control_plane_that_dies_takes_its_sidecars_with_it_until_they_connect_to_another() {
    run(async {
        let scratch = tempfile::tempdir().unwrap();
        let (one, _found_by_one) = start_replica(scratch.path(), "one").await;
        let (two, found_by_two) = start_replica(scratch.path(), "two").await;
        found_by_two.send_replace([one.listen_address()].into());
        let _stock = connect_sidecar(&one, "stock-1", &[(8080, listener_address())]).await;
        let mut client = connect_sidecar(&two, "client-1", &[]).await;
        client.wait_for_update(has_addresses(&[listener_address()])).await;
        // Reports of a control plane that is no longer discovered still count while its stream is open.
        found_by_two.send_replace(BTreeSet::new());
        let _other = connect_sidecar(&one, "stock-2", &[(8080, other_listener())]).await;
        client.wait_for_update(has_addresses(&[listener_address(), other_listener()])).await;
        drop(one);
        client.wait_for_update(has_addresses(&[])).await;
        let _stock = connect_sidecar(&two, "stock-1", &[(8080, listener_address())]).await;
        client.wait_for_update(has_addresses(&[listener_address()])).await;
        // Its successor has another address.
        let (three, found_by_three) = start_replica(scratch.path(), "three").await;
        found_by_three.send_replace([two.listen_address()].into());
        found_by_two.send_replace([three.listen_address()].into());
        let _other = connect_sidecar(&three, "stock-2", &[(8080, other_listener())]).await;
        client.wait_for_update(has_addresses(&[listener_address(), other_listener()])).await;
        let mut late = connect_sidecar(&three, "client-2", &[]).await;
        late.wait_for_update(has_addresses(&[listener_address(), other_listener()])).await;
    });
}

#[test]
fn a_workload_that_one_control_plane_hears_of_later_is_seen_there_all_the_same() {
    run(async {
        let scratch = tempfile::tempdir().unwrap();
        let (one, _found_by_one) = start_replica(scratch.path(), "one").await;
        let (two, found_by_two) = start_replica(scratch.path(), "two").await;
        let mut client = connect_sidecar(&two, "client-1", &[]).await;
        write(&scratch.path().join("two"), MESH);
        two.reload_files();
        two.watch_status().wait_for(|status| status.workloads == 2).await.unwrap();
        found_by_two.send_replace([one.listen_address()].into());
        let _stock = connect_sidecar(&one, "stock-1", &[(8080, listener_address())]).await;
        let _other = connect_sidecar(&one, "stock-2", &[(8080, other_listener())]).await;
        client.wait_for_update(has_addresses(&[listener_address()])).await;
        write(&scratch.path().join("two"), &format!("{MESH}{MORE}"));
        two.reload_files();
        client.wait_for_update(has_addresses(&[listener_address(), other_listener()])).await;
    });
}

#[test]
fn each_control_plane_knows_the_sidecars_that_none_has_and_the_clients_that_its_own_rejected() {
    run(async {
        let scratch = tempfile::tempdir().unwrap();
        let (one, found_by_one) = start_replica(scratch.path(), "one").await;
        let (two, found_by_two) = start_replica(scratch.path(), "two").await;
        found_by_one.send_replace([two.listen_address()].into());
        found_by_two.send_replace([one.listen_address()].into());
        let mut facts = two.sidecar_facts();
        let mut of_other = one.sidecar_facts();
        let without = |names: &'static [&'static str]| {
            let names: Vec<WorkloadName> = names.iter().map(|name| workload_name(name)).collect();
            let count = names.len();
            let expected = SidecarConnections { peers: 1, disconnected: names, count };
            move |facts: &Arc<SidecarFacts>| facts.connections.as_ref() == Some(&expected)
        };
        let all = &["client-1", "client-2", "stock-1", "stock-2"];
        facts.wait_for(without(all)).await.unwrap();
        of_other.wait_for(without(all)).await.unwrap();
        let stock = connect_sidecar(&one, "stock-1", &[(8080, listener_address())]).await;
        let client = connect_sidecar(&two, "client-1", &[]).await;
        facts.wait_for(without(&["client-2", "stock-2"])).await.unwrap();
        let _stock_2 = connect_sidecar(&one, "stock-2", &[(8080, other_listener())]).await;
        facts.wait_for(without(&["client-2"])).await.unwrap();
        of_other.wait_for(without(&["client-2"])).await.unwrap();
        // It was connected to the other one.
        drop(stock);
        facts.wait_for(without(&["client-2", "stock-1"])).await.unwrap();

        let addresses = ["10.0.0.9", "10.0.0.10"].map(|it| it.parse().unwrap());
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
        assert_eq!(of_other.borrow().rejected_clients, []);
    });
}

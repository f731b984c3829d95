//! Sidecar queries: the state of sidecars arrives over their open streams, and a response names its scope.

use std::process::Output;
use std::time::Duration;

use leno_tests::{ControlProgram, SidecarProgram, eventually};
use serde_json::Value;

const MANIFESTS: &str = "apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart-1, namespace: shop, labels: {app: cart}}
spec: {serviceAccount: cart, ports: [{name: http, port: 9080}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {serviceAccount: web}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {selector: {app: cart}, ports: [{port: 80, targetPort: http}]}
";

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned()
}

/// Each control plane responds for its own sidecars, and reports this scope.
#[test]
fn a_control_plane_names_the_sidecars_that_it_does_not_have() {
    let controls = ControlProgram::start_replicas(2, MANIFESTS, &[]);
    let [connected_control, other_control] = &controls[..] else { panic!("two control planes") };
    let address = connected_control.listen_address().to_string();
    let _cart = SidecarProgram::join(connected_control, "shop/cart-1", &["--control", &address]);
    let _web = SidecarProgram::join(connected_control, "shop/web-1", &["--control", &address]);
    let sidecar_states = |control: &ControlProgram| -> Vec<String> {
        let workloads = control.get_json("workloads");
        let workloads = workloads.as_array().expect("an array").iter();
        workloads
            .map(|workload| workload["sidecar"].as_str().expect("a state").to_owned())
            .collect()
    };
    eventually("both control planes list both sidecars", MAX_WAIT, || {
        let states_by_control = [sidecar_states(connected_control), sidecar_states(other_control)];
        (states_by_control == [["connected"; 2], ["other-replica"; 2]]).then_some(())
    });
    // The complete response, without a note.
    let complete_output = connected_control.run_leno(&["get", "connections", "-o", "json"]);
    assert!(complete_output.stderr.is_empty(), "{}", output_text(&complete_output));
    let rows: Vec<Value> = serde_json::from_slice(&complete_output.stdout).unwrap();
    assert!(rows.len() == 2 && rows.iter().all(|row| row["open"].is_u64()), "{rows:?}");
    let diagnosis =
        output_text(&connected_control.run_leno(&["diagnose", "shop/web-1", "--to", "shop/cart"]));
    assert!(diagnosis.contains("✓ sidecar"), "{diagnosis}");

    let scope_line = format!(
        "scope: this control plane has 0 of 2 connected sidecars; for the others run the command at {address} (2)"
    );
    for arguments in [
        &["get", "connections"][..],
        &["get", "ejected"],
        &["get", "circuits"],
        &["get", "proxies"],
        &["get", "workloads"],
        &["status"],
        &["top", "--once"],
        &["diagnose", "shop/web-1", "--to", "shop/cart"],
        &["explain", "request", "--from", "shop/web-1", "--url", "http://cart.shop/"],
    ] {
        let text = output_text(&other_control.run_leno(arguments));
        assert!(text.contains(&scope_line), "{arguments:?}: {text}");
        assert!(!text.contains("Connection refused"), "{text}");
    }
    let status_output = other_control.run_leno(&["status"]);
    assert!(
        !output_text(&status_output).contains("without a connected sidecar"),
        "{}",
        output_text(&status_output)
    );
}

const MAX_WAIT: Duration = Duration::from_secs(60);

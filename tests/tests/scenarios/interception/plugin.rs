//! The CNI plugin as called by a container runtime, with a fake agent.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Output, Stdio};

use leno_tests::{is_root, leno_command};
use serde_json::{Value, json};

use super::NetworkNamespace;

/// Calls the plugin for the Pod `shop/cart-1`.
fn call_plugin(command: &str, socket: &Path, netns: &str, exclude_namespaces: &[&str]) -> Output {
    let configuration = json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "type": "leno-cni",
        "socket": socket,
        "excludeNamespaces": exclude_namespaces,
        "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "192.0.2.7/24"}]},
    });
    let scratch = tempfile::tempdir().unwrap();
    let program = scratch.path().join("leno-cni");
    std::os::unix::fs::symlink(leno_command().get_program(), &program).unwrap();
    let mut plugin = std::process::Command::new(program)
        .env("CNI_COMMAND", command)
        .env("CNI_NETNS", format!("/run/netns/{netns}"))
        .env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-1;K8S_POD_UID=7")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    plugin.stdin.take().unwrap().write_all(configuration.to_string().as_bytes()).unwrap();
    plugin.wait_with_output().unwrap()
}

fn parse_output(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

/// Calls the plugin with an agent that sends this response; returns the output and the agent's request.
fn call_plugin_with_response(response: &str, namespace: &NetworkNamespace) -> (Output, Value) {
    let scratch = tempfile::tempdir().unwrap();
    let socket = scratch.path().join("cni.sock");
    let agent = UnixListener::bind(&socket).unwrap();
    std::thread::scope(|threads| {
        let agent_request = threads.spawn(|| {
            let (stream, _) = agent.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            writeln!(&stream, "{response}").unwrap();
            serde_json::from_str(&line).unwrap()
        });
        let output = call_plugin("ADD", &socket, &namespace.0, &[]);
        (output, agent_request.join().unwrap())
    })
}

#[test]
fn a_pod_gets_the_rules_of_its_agent() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let namespace = NetworkNamespace::new("plugin");
    let (output, agent_request) =
        call_plugin_with_response(r#"{"redirect":["--exclude-outbound-ports=25"]}"#, &namespace);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(agent_request, json!({"namespace": "shop", "pod": "cart-1", "uid": "7"}));
    // The result of the previous plugin is passed through.
    assert_eq!(parse_output(&output)["ips"][0]["address"], "192.0.2.7/24");
    let rules = namespace.nft_rules();
    assert!(rules.contains("tcp dport 25 return") && rules.contains(":15001"), "{rules}");
    // The network namespace of the test is unchanged.
    let own_table =
        std::process::Command::new("nft").args(["list", "table", "inet", "leno"]).output();
    assert!(!own_table.unwrap().status.success());
}

#[test]
fn excluded_pods_are_not_redirected() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let namespace = NetworkNamespace::new("left");
    let (output, _) = call_plugin_with_response(r#""skip""#, &namespace);
    assert!(output.status.success(), "{output:?}");
    // No agent is needed for an excluded namespace.
    let output = call_plugin("ADD", Path::new("/nowhere/cni.sock"), &namespace.0, &["shop"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(parse_output(&output)["ips"][0]["address"], "192.0.2.7/24");
    assert_eq!(namespace.nft_rules(), "");
}

#[test]
fn a_pod_does_not_start_without_its_rules() {
    if !is_root() {
        return eprintln!("skipped: network namespaces need root");
    }
    let namespace = NetworkNamespace::new("promise");
    let without_agent = call_plugin("ADD", Path::new("/nowhere/cni.sock"), &namespace.0, &[]);
    assert!(!without_agent.status.success());
    let error = parse_output(&without_agent);
    assert_eq!(error["code"], 100);
    assert!(error["msg"].as_str().unwrap().contains("leno-cni of this node running"), "{error}");
    let (rejected, _) =
        call_plugin_with_response(r#"{"rejected":"the API server is away"}"#, &namespace);
    assert_eq!(parse_output(&rejected)["msg"], "the API server is away");
    let (invalid, _) =
        call_plugin_with_response(r#"{"redirect":["--no-such-option"]}"#, &namespace);
    assert!(!invalid.status.success(), "{invalid:?}");
    assert_eq!(namespace.nft_rules(), "");
}

#[test]
fn the_plugin_reports_its_versions() {
    let output = call_plugin("VERSION", Path::new("/nowhere"), "nowhere", &[]);
    assert!(
        parse_output(&output)["supportedVersions"].as_array().unwrap().contains(&json!("1.0.0"))
    );
    assert!(call_plugin("DEL", Path::new("/nowhere"), "nowhere", &[]).status.success());
}

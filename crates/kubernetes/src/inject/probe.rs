//! Redirects the probes of containers to the sidecar. The kubelet is outside the mesh, so the sidecar probes
//! the application on its behalf.

use serde_json::{Map, Value, json};

use crate::well_known::HEALTH_PORT;

/// The probes that the sidecar performs for the pod's containers, and warnings about probes and hooks that will
/// fail.
#[derive(Debug, Default)]
pub(super) struct SidecarProbes {
    /// For each container, its probes by kind (see [`PROBE_KINDS`]).
    probes_by_container: Map<String, Value>,
    warnings: Vec<String>,
}

impl SidecarProbes {
    /// Redirects the probes of a container to the sidecar. Exec probes and probes of another host are
    /// unchanged.
    pub(super) fn redirect_probes(&mut self, container: &mut Value) {
        let name = container["name"].as_str().unwrap_or_default().to_owned();
        let ports = container["ports"].clone();
        let mut probes = Map::new();
        for kind in PROBE_KINDS {
            let key = format!("{kind}Probe");
            let Some(probe) = container.get_mut(&key).and_then(Value::as_object_mut) else {
                continue;
            };
            match sidecar_probe(probe, &ports) {
                Ok(Some(sidecar_probe)) => {
                    redirect_probe(probe, &format!("/probe/{name}/{kind}"));
                    probes.insert((*kind).to_owned(), sidecar_probe);
                }
                // The kubelet performs the probe itself.
                Ok(None) => {}
                Err(UnknownPort(port)) => self.warnings.push(format!(
                    "container {name}: {key} has the port {port}, which the container does not name; it \
                     will fail"
                )),
            }
        }
        if !probes.is_empty() {
            self.probes_by_container.insert(name.clone(), Value::Object(probes));
        }
        for hook in ["postStart", "preStop"] {
            for action_kind in ["httpGet", "tcpSocket"] {
                let action = &container["lifecycle"][hook][action_kind];
                if action.is_object() && action["host"].is_null() {
                    self.warnings.push(format!(
                        "container {name}: lifecycle.{hook}.{action_kind} is called from outside the mesh \
                         and reset; use `exec`, or exclude its port with \
                         `leno.dev/inbound-port-exclusion-list`"
                    ));
                }
            }
        }
    }

    /// Returns the value of `LENO_PROBES` in the sidecar's environment; `None` without probes.
    pub(super) fn to_environment_value(&self) -> Option<String> {
        // `$(NAME)` in the environment of a container refers to another variable.
        let text = Value::Object(self.probes_by_container.clone()).to_string().replace("$(", "$$(");
        (!self.probes_by_container.is_empty()).then_some(text)
    }

    pub(super) fn into_warnings(self) -> Vec<String> {
        self.warnings
    }
}

/// A named port that the container does not have.
struct UnknownPort(Value);

/// Returns the probe that the sidecar performs; `None` for a probe that the kubelet performs itself.
fn sidecar_probe(probe: &Map<String, Value>, ports: &Value) -> Result<Option<Value>, UnknownPort> {
    let timeout = probe.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(1);
    let build_probe = |action_kind: &str, action: Value| {
        let mut probe = Map::new();
        probe.insert(action_kind.to_owned(), action);
        probe.insert("timeoutSeconds".to_owned(), timeout.into());
        Some(Value::Object(probe))
    };
    let has_other_host =
        |action: &Value| action["host"].as_str().is_some_and(|host| !host.is_empty());
    if let Some(action) = probe.get("httpGet").filter(|action| action.is_object()) {
        if has_other_host(action) {
            return Ok(None);
        }
        let mut http_get = json!({
            "path": action["path"].as_str().filter(|path| !path.is_empty()).unwrap_or("/"),
            "port": resolve_port(&action["port"], ports)?,
            "scheme": action["scheme"].as_str().unwrap_or("HTTP"),
        });
        if let Some(headers) =
            action["httpHeaders"].as_array().filter(|headers| !headers.is_empty())
        {
            http_get["httpHeaders"] = headers.clone().into();
        }
        return Ok(build_probe("httpGet", http_get));
    }
    if let Some(action) = probe.get("tcpSocket").filter(|action| action.is_object()) {
        if has_other_host(action) {
            return Ok(None);
        }
        return Ok(build_probe(
            "tcpSocket",
            json!({"port": resolve_port(&action["port"], ports)?}),
        ));
    }
    match probe.get("grpc").filter(|action| action.is_object()) {
        Some(action) => {
            let service = action["service"].as_str().unwrap_or_default();
            Ok(build_probe("grpc", json!({"port": action["port"], "service": service})))
        }
        None => Ok(None),
    }
}

/// Replaces the action of a probe. Periods, timeouts and thresholds are unchanged.
fn redirect_probe(probe: &mut Map<String, Value>, path: &str) {
    for action in ["httpGet", "tcpSocket", "grpc"] {
        probe.shift_remove(action);
    }
    probe.insert("httpGet".to_owned(), json!({"path": path, "port": HEALTH_PORT}));
}

/// Resolves a port by number, by its name in the container, or by a number in a string, in the kubelet's order.
fn resolve_port(port: &Value, ports: &Value) -> Result<u64, UnknownPort> {
    let Some(name) = port.as_str() else {
        return port.as_u64().ok_or_else(|| UnknownPort(port.clone()));
    };
    let named_port = ports
        .as_array()
        .into_iter()
        .flatten()
        .find(|container_port| container_port["name"] == name);
    let port_number = named_port.and_then(|named_port| named_port["containerPort"].as_u64());
    port_number.or_else(|| name.parse().ok()).ok_or_else(|| UnknownPort(port.clone()))
}

/// The kinds of probes in paths and in `LENO_PROBES`. The fields of containers end in `Probe`.
const PROBE_KINDS: &[&str] = &["startup", "readiness", "liveness"];

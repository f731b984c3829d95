//! Probes: the kubelet is no member of the mesh, so that sidecars ask the application for it.

use serde_json::{Map, Value, json};

use crate::words::HEALTH_PORT;

/// The probes of a pod that its sidecar makes, and what cannot be taken over.
#[derive(Debug, Default)]
pub(super) struct Probes {
    by_container: Map<String, Value>,
    warnings: Vec<String>,
}

impl Probes {
    /// Leads the probes of a container to the sidecar. Those that run a program stay, and so do
    /// those to another host.
    pub(super) fn take_over(&mut self, container: &mut Value) {
        let name = container["name"].as_str().unwrap_or_default().to_owned();
        let ports = container["ports"].clone();
        let mut taken = Map::new();
        for kind in KINDS {
            let key = format!("{kind}Probe");
            let Some(probe) = container.get_mut(&key).and_then(Value::as_object_mut) else {
                continue;
            };
            match made_by_sidecar(probe, &ports) {
                Ok(Some(made)) => {
                    lead(probe, &format!("/probe/{name}/{kind}"));
                    taken.insert((*kind).to_owned(), made);
                }
                Ok(None) => {}
                Err(NoPort(port)) => self.warnings.push(format!(
                    "container {name}: {key} has the port {port}, which the container does not name; it \
                     will fail"
                )),
            }
        }
        if !taken.is_empty() {
            self.by_container.insert(name.clone(), Value::Object(taken));
        }
        for hook in ["postStart", "preStop"] {
            for what in ["httpGet", "tcpSocket"] {
                let action = &container["lifecycle"][hook][what];
                if action.is_object() && action["host"].is_null() {
                    self.warnings.push(format!(
                        "container {name}: lifecycle.{hook}.{what} comes from outside the mesh and is \
                         reset; use `exec`, or exclude its port with \
                         `leno.dev/inbound-port-exclusion-list`"
                    ));
                }
            }
        }
    }

    /// For the environment of the sidecar; nothing when it has none to make.
    pub(super) fn to_variable(&self) -> Option<String> {
        // In the environment of a container `$(NAME)` stands for another variable.
        let text = Value::Object(self.by_container.clone()).to_string().replace("$(", "$$(");
        (!self.by_container.is_empty()).then_some(text)
    }

    pub(super) fn into_warnings(self) -> Vec<String> {
        self.warnings
    }
}

/// A port by a name that its container has not.
struct NoPort(Value);

/// The probe as the sidecar makes it; nothing when it stays with the kubelet.
fn made_by_sidecar(probe: &Map<String, Value>, ports: &Value) -> Result<Option<Value>, NoPort> {
    let timeout = probe.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(1);
    let with = |what: &str, action: Value| {
        let mut made = Map::new();
        made.insert(what.to_owned(), action);
        made.insert("timeoutSeconds".to_owned(), timeout.into());
        Some(Value::Object(made))
    };
    let elsewhere = |action: &Value| action["host"].as_str().is_some_and(|host| !host.is_empty());
    if let Some(action) = probe.get("httpGet").filter(|it| it.is_object()) {
        if elsewhere(action) {
            return Ok(None);
        }
        let mut get = json!({
            "path": action["path"].as_str().filter(|path| !path.is_empty()).unwrap_or("/"),
            "port": resolved(&action["port"], ports)?,
            "scheme": action["scheme"].as_str().unwrap_or("HTTP"),
        });
        if let Some(headers) = action["httpHeaders"].as_array().filter(|it| !it.is_empty()) {
            get["httpHeaders"] = headers.clone().into();
        }
        return Ok(with("httpGet", get));
    }
    if let Some(action) = probe.get("tcpSocket").filter(|it| it.is_object()) {
        if elsewhere(action) {
            return Ok(None);
        }
        return Ok(with("tcpSocket", json!({"port": resolved(&action["port"], ports)?})));
    }
    match probe.get("grpc").filter(|it| it.is_object()) {
        Some(action) => {
            let service = action["service"].as_str().unwrap_or_default();
            Ok(with("grpc", json!({"port": action["port"], "service": service})))
        }
        None => Ok(None),
    }
}

/// What the kubelet asks instead; how often, how long and how many times stay as they are.
fn lead(probe: &mut Map<String, Value>, path: &str) {
    for action in ["httpGet", "tcpSocket", "grpc"] {
        probe.shift_remove(action);
    }
    probe.insert("httpGet".to_owned(), json!({"path": path, "port": HEALTH_PORT}));
}

/// A port by number, by the name that the container gives it, or by a number in a text, in the order
/// of the kubelet.
fn resolved(port: &Value, ports: &Value) -> Result<u64, NoPort> {
    let Some(name) = port.as_str() else {
        return port.as_u64().ok_or_else(|| NoPort(port.clone()));
    };
    let named = ports.as_array().into_iter().flatten().find(|it| it["name"] == name);
    let number = named.and_then(|it| it["containerPort"].as_u64());
    number.or_else(|| name.parse().ok()).ok_or_else(|| NoPort(port.clone()))
}

/// As paths and `LENO_PROBES` name them; with `Probe` behind, as containers do.
const KINDS: &[&str] = &["startup", "readiness", "liveness"];

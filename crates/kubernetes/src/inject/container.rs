//! Builds the containers and volumes of an injected pod.

use leno_model::ClientRanges;
use serde_json::{Map, Value, json};

use super::InjectionSettings;
use super::options::SidecarOptions;
use super::probe::SidecarProbes;
use crate::well_known::{
    HEALTH_PORT, INIT_CONTAINER, PROBES_VARIABLE, PROXY_CONTAINER, PROXY_UID, ROOTS_VARIABLE,
    TOKEN_AUDIENCE, TOKEN_PATH,
};

/// The inputs from which the sidecar and redirection containers of a pod are built.
pub(super) struct SidecarInputs<'a> {
    pub(super) settings: &'a InjectionSettings,
    pub(super) options: &'a SidecarOptions,
    pub(super) probes: &'a SidecarProbes,
}

impl SidecarInputs<'_> {
    /// Builds the init container that sets up redirection. The rules stay in the kernel when it exits.
    pub(super) fn redirection_container(&self) -> Value {
        // With the CNI plugin, the container only verifies that the plugin has set up the redirection.
        let (args, security_context) = if self.settings.uses_cni_plugin {
            (vec!["redirect".to_owned(), "--verify".to_owned()], restricted_context(VERIFIER_UID))
        } else {
            let mut args = self.redirection_options();
            args.insert(0, "redirect".to_owned());
            let mut security_context = restricted_context(0);
            security_context["runAsNonRoot"] = json!(false);
            security_context["capabilities"]["add"] = json!(["NET_ADMIN"]);
            (args, security_context)
        };
        json!({
            "name": INIT_CONTAINER,
            "image": self.options.image,
            "args": args,
            "resources": self.options.resources.to_json(),
            "securityContext": security_context,
        })
    }

    /// Returns the options of `leno redirect` for this pod.
    pub(super) fn redirection_options(&self) -> Vec<String> {
        let exclusions = &self.options.exclusions;
        let mut args = Vec::new();
        let mut add_option = |option: &str, values: String| {
            if !values.is_empty() {
                args.push(format!("--{option}={values}"));
            }
        };
        add_option("exclude-outbound-ports", join_values(&exclusions.outbound_ports));
        add_option("exclude-inbound-ports", join_values(&exclusions.inbound_ports));
        add_option("exclude-outbound-ranges", join_values(&exclusions.outbound_ranges));
        add_option("include-outbound-ranges", join_values(&exclusions.redirected_outbound_ranges));
        add_option("exclude-interfaces", join_values(&exclusions.interfaces));
        if self.options.answers_dns {
            args.push("--dns".to_owned());
        }
        args
    }

    /// Builds a native sidecar: it is ready before the next init container starts, and is stopped last. It has
    /// no readiness probe: the readiness of the pod is that of the application.
    pub(super) fn native_sidecar(&self) -> Value {
        let mut container = self.sidecar_with_options();
        container["restartPolicy"] = json!("Always");
        container
    }

    /// Builds a regular sidecar container. All containers receive SIGTERM at the same time: the sidecar
    /// continues to forward inbound and outbound requests of the application during the drain delay, and exits
    /// within the pod's termination grace period.
    pub(super) fn regular_sidecar(&self) -> Value {
        let mut container = self.sidecar_with_options();
        if let Some(args) = container["args"].as_array_mut() {
            let drain_options =
                ["--drain-delay", REGULAR_DRAIN_DELAY, "--drain-timeout", REGULAR_DRAIN_TIMEOUT];
            args.extend(drain_options.map(Value::from));
        }
        // The pod is unready after three failures, 2 seconds apart.
        container["readinessProbe"] = http_probe("/readyz", 2, 3);
        container
    }

    /// Builds the sidecar container with the arguments of the pod's options; common to native and regular sidecars.
    fn sidecar_with_options(&self) -> Value {
        let mut container = self.sidecar_without_options();
        let Some(args) = container["args"].as_array_mut() else { return container };
        if self.options.answers_dns {
            args.push(json!("--dns"));
        }
        if self.options.is_scraped {
            // The pod's scrape annotation permits all clients to read its metrics, unless the mesh limits the clients.
            let clients = self.settings.metrics_from.clone().unwrap_or(ClientRanges::Any);
            args.push(format!("--metrics-from={clients}").into());
        }
        if let Some(upgrades) = &self.options.upgrades {
            args.push(format!("--upgrades={upgrades}").into());
        }
        if let Some(metrics) = &self.options.application_metrics {
            args.extend([json!("--application-metrics"), json!(metrics)]);
        }
        container
    }

    /// Builds the sidecar container with the arguments that all pods have.
    fn sidecar_without_options(&self) -> Value {
        json!({
            "name": PROXY_CONTAINER,
            "image": self.options.image,
            "args": [
                "proxy",
                "--workload", "$(POD_NAMESPACE)/$(POD_NAME)",
                "--control", self.settings.control_address,
                "--trust-domain", self.settings.trust_domain.to_string(),
                "--service-account-token", TOKEN_PATH,
                "--state", STATE_DIRECTORY,
                "--redirect-address", "$(POD_IP)",
                "--uid-exempt",
                "--health", format!("[::]:{HEALTH_PORT}"),
            ],
            "env": self.environment_variables(),
            "ports": [{"name": "leno-health", "containerPort": HEALTH_PORT, "protocol": "TCP"}],
            "resources": self.options.resources.to_json(),
            "securityContext": restricted_context(PROXY_UID),
            // Allows 60 seconds for the start.
            "startupProbe": http_probe("/readyz", 1, 60),
            // Restarts a sidecar that does not respond for 30 seconds.
            "livenessProbe": http_probe("/livez", 10, 3),
            "volumeMounts": [
                {"name": STATE_VOLUME, "mountPath": "/var/lib/leno"},
                {"name": TOKEN_VOLUME, "mountPath": token_directory(), "readOnly": true},
            ],
        })
    }

    fn environment_variables(&self) -> Vec<Value> {
        let field_variable = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}});
        let mut env = vec![
            field_variable("POD_NAME", "metadata.name"),
            field_variable("POD_NAMESPACE", "metadata.namespace"),
            field_variable("POD_IP", "status.podIP"),
            json!({"name": ROOTS_VARIABLE, "value": self.settings.roots}),
        ];
        if let Some(probes) = self.probes.to_environment_value() {
            env.push(json!({"name": PROBES_VARIABLE, "value": probes}));
        }
        env
    }
}

/// Returns a security context that satisfies the `restricted` Pod Security Standard.
pub(crate) fn restricted_context(user: u32) -> Value {
    json!({
        "runAsUser": user,
        "runAsGroup": user,
        "runAsNonRoot": true,
        "privileged": false,
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// Returns the volume for state, in memory so that keys are never written to disk, and the volume with the
/// token.
pub(crate) fn sidecar_volumes() -> [Value; 2] {
    let token = json!({"serviceAccountToken": {
        "audience": TOKEN_AUDIENCE,
        "expirationSeconds": TOKEN_LIFETIME_SECONDS,
        "path": TOKEN_PATH.rsplit('/').next(),
    }});
    [
        json!({"name": STATE_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}),
        json!({"name": TOKEN_VOLUME, "projected": {"sources": [token]}}),
    ]
}

/// Returns the annotations for Prometheus discovery of the sidecar's metrics.
pub(crate) fn scrape_annotations() -> [(&'static str, String); 3] {
    [
        ("prometheus.io/scrape", "true".to_owned()),
        ("prometheus.io/port", HEALTH_PORT.to_string()),
        ("prometheus.io/path", "/metrics".to_owned()),
    ]
}

/// Returns a probe of the sidecar's health port, with a timeout of one second.
pub(crate) fn http_probe(path: &str, period_seconds: u32, failure_threshold: u32) -> Value {
    let mut probe = Map::new();
    probe.insert("httpGet".to_owned(), json!({"path": path, "port": HEALTH_PORT}));
    probe.insert("periodSeconds".to_owned(), period_seconds.into());
    probe.insert("timeoutSeconds".to_owned(), 1.into());
    probe.insert("failureThreshold".to_owned(), failure_threshold.into());
    Value::Object(probe)
}

/// Returns the directory of the token file.
pub(crate) fn token_directory() -> &'static str {
    TOKEN_PATH.rsplit_once('/').map_or(TOKEN_PATH, |(directory, _)| directory)
}

fn join_values<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(",")
}

/// The state directory of the sidecar: a directory in the volume, because all users may write to the volume
/// itself.
pub(crate) const STATE_DIRECTORY: &str = "/var/lib/leno/proxy";
const STATE_VOLUME: &str = "leno-state";
const TOKEN_VOLUME: &str = "leno-token";
/// The names of the volumes of a sidecar.
pub(super) const SIDECAR_VOLUMES: [&str; 2] = [STATE_VOLUME, TOKEN_VOLUME];
/// The user ID of the init container that verifies redirection: not root, and not the sidecar's, because
/// connections of the sidecar are not redirected.
const VERIFIER_UID: u32 = PROXY_UID + 1;
/// The drain delay of a regular sidecar container. Together with the drain timeout it is less than the default
/// grace period of 30 seconds.
const REGULAR_DRAIN_DELAY: &str = "5s";
const REGULAR_DRAIN_TIMEOUT: &str = "20s";
/// The lifetime of a service account token, in seconds. The kubelet renews the token when a fifth of its
/// lifetime is left.
const TOKEN_LIFETIME_SECONDS: u32 = 3600;

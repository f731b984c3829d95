//! `leno explain request` on a running mesh: queries the control plane for the decision, and adds the ejected
//! endpoints and open circuit breakers that the client's sidecar reports.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use leno_control::Explanation;
use leno_control::status::{ProxyStatus, ServiceStatus};
use leno_model::Reason;
use serde_json::{Value, json};

use super::text::{common_status, format_statuses};
use super::{EXIT_REJECTED, ExplainFormat, RequestArgs};
use crate::duration::format_duration;
use crate::get::circuits::{self, ListedCircuit};
use crate::get::ejected::{self, EjectedEndpoint};
use crate::get::{MeshSocket, parse_response};
use crate::output;
use crate::tap::percent_encode;

/// Prints the decision for the request on the running mesh of a data directory.
///
/// # Errors
/// If no mesh responds, or the workload does not exist.
pub(super) fn run(
    data: &Path,
    args: &RequestArgs,
    format: ExplainFormat,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let Explanation { text, decision } =
        runtime.block_on(explain_running(&MeshSocket::from_data(data), args))?;
    match format.structured_format() {
        None => output::print_text(&text)?,
        Some(structured_format) => output::print_value(&decision, structured_format)?,
    }
    Ok(match decision["allowed"] == true {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(EXIT_REJECTED),
    })
}

async fn explain_running(mesh: &MeshSocket, args: &RequestArgs) -> anyhow::Result<Explanation> {
    let explanation: Explanation = parse_response(mesh.query_json(&query_path(args)?).await?)?;
    let proxies: Vec<ProxyStatus> = parse_response(mesh.query_json("/proxies").await?)?;
    let services: Vec<ServiceStatus> = parse_response(mesh.query_json("/services").await?)?;
    let client_workload = explanation.decision["from"]["workload"].as_str().unwrap_or_default();
    let sidecar = match proxies.iter().find(|proxy| proxy.workload == client_workload) {
        Some(proxy) => SidecarState::query_sidecar(mesh, proxy).await,
        None => Err(match mesh.query_scope().await {
            None => format!("the sidecar of {client_workload} is not connected"),
            Some(scope) => {
                format!("the sidecar of {client_workload} is not connected here; {scope}")
            }
        }),
    };
    Ok(RuntimeState { services, sidecar }.add_observations(explanation))
}

/// Returns the path of the query to the control plane, `/explain?…`, with the request to explain as parameters.
fn query_path(args: &RequestArgs) -> anyhow::Result<String> {
    let client = args.from.as_ref().context("--from is missing")?;
    let target = args.url.as_ref().context("--url is missing")?;
    let mut parameters = vec![("from", client.to_string()), ("url", target.url())];
    parameters.push(("method", args.method.clone()));
    parameters
        .extend(args.header.iter().map(|(name, value)| ("header", format!("{name}: {value}"))));
    let encoded_parameters =
        parameters.iter().map(|(name, value)| format!("{name}={}", percent_encode(value)));
    Ok(format!("/explain?{}", encoded_parameters.collect::<Vec<_>>().join("&")))
}

/// The runtime state of the mesh that affects requests.
struct RuntimeState {
    services: Vec<ServiceStatus>,
    /// The state of the client's sidecar, or the reason why it is unknown.
    sidecar: Result<SidecarState, String>,
}

/// The ejected endpoints and the circuit breakers that the client's sidecar reports.
#[derive(Default)]
struct SidecarState {
    ejected_endpoints: Vec<EjectedEndpoint>,
    circuits: Vec<ListedCircuit>,
}

impl SidecarState {
    async fn query_sidecar(mesh: &MeshSocket, proxy: &ProxyStatus) -> Result<Self, String> {
        let ejected_endpoints = ejected::query_sidecar_ejected(mesh, proxy).await?;
        Ok(Self {
            ejected_endpoints,
            circuits: circuits::query_sidecar_circuits(mesh, proxy).await?,
        })
    }
}

impl RuntimeState {
    /// Adds the runtime state to the decision: lines before the verdict, and fields of each endpoint.
    fn add_observations(&self, explanation: Explanation) -> Explanation {
        let Explanation { text, mut decision } = explanation;
        let mut lines = Vec::new();
        let mut ready_count = 0;
        let backends =
            decision["backends"].as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
        // The state of each endpoint.
        let had_endpoints = backends.iter().any(|backend| {
            backend["endpoints"].as_array().is_some_and(|endpoints| !endpoints.is_empty())
        });
        for backend in backends {
            let service = backend["service"].as_str().unwrap_or_default().to_owned();
            let port = backend["port"]
                .as_u64()
                .and_then(|number| u16::try_from(number).ok())
                .unwrap_or_default();
            for endpoint in backend["endpoints"].as_array_mut().into_iter().flatten() {
                let workload = endpoint["workload"].as_str().unwrap_or_default().to_owned();
                let endpoint_text = format!("{workload} of {service} port {port}");
                let is_ready = self.is_ready(&service, port, &workload);
                ready_count += usize::from(is_ready);
                endpoint["ready"] = is_ready.into();
                if !is_ready {
                    lines.push(("excluded", format!("{endpoint_text}: its sidecar is not ready")));
                }
                let ejected_endpoint = self.find_ejected_endpoint(&service, port, &workload);
                if let Some(ejected_endpoint) = ejected_endpoint {
                    lines.push((
                        "ejected",
                        format!("{endpoint_text}: {}", describe_ejected(ejected_endpoint)),
                    ));
                }
                endpoint["ejected"] = ejected_endpoint.map_or(Value::Null, |ejected_endpoint| {
                    json!({"cause": ejected_endpoint.cause, "age_s": ejected_endpoint.age_s, "policy": ejected_endpoint.policy})
                });
            }
        }
        if had_endpoints && let Err(reason) = &self.sidecar {
            lines.push(("ejected", format!("unknown: {reason}")));
        }
        decision["ejected_unknown"] = self.sidecar.as_ref().err().cloned().into();
        // A rejection at runtime replaces the verdict that the request is allowed.
        let open_circuits = self.open_circuits(&decision);
        lines.extend(open_circuits.iter().map(|circuit| ("circuit", describe_circuit(circuit))));
        let runtime_rejection = match rejection_statuses(&open_circuits, &decision) {
            _ if had_endpoints && ready_count == 0 => {
                Some((Reason::NoEndpoint, vec![Reason::NoEndpoint.status()]))
            }
            statuses if !statuses.is_empty() => Some((Reason::CircuitOpen, statuses)),
            _ => None,
        };
        let rejection = runtime_rejection.filter(|_| decision["allowed"] == true);
        let verdict = rejection.map(|(reason, statuses)| {
            decision["allowed"] = false.into();
            decision["reason"] = reason.label().into();
            decision["outcomes"] = json!([reason.label()]);
            // A TCP connection has no status.
            let is_tcp = decision["request"].is_object() && decision["request"]["method"].is_null();
            let statuses = if is_tcp { vec![0] } else { statuses };
            let single_status = common_status(&statuses).filter(|status| *status != 0);
            decision["status"] = single_status.into();
            let (statuses_text, label) = (format_statuses(&statuses), reason.label());
            format!("{statuses_text} {label}: {} {}", reason.caption(), reason.remedy())
        });
        if let Some(verdict) = &verdict {
            decision["verdict"] = verdict.as_str().into();
        }
        Explanation { text: insert_lines(&text, &lines, verdict.as_deref()), decision }
    }

    /// Returns the open circuits of the called service and of the backends.
    fn open_circuits(&self, decision: &Value) -> Vec<&ListedCircuit> {
        let circuits = self.sidecar.iter().flat_map(|sidecar| &sidecar.circuits);
        let is_relevant = |circuit: &&ListedCircuit| {
            let backends = decision["backends"].as_array().into_iter().flatten();
            backends.chain([decision]).any(|target| matches_port(circuit, target))
        };
        circuits.filter(|circuit| circuit.is_open()).filter(is_relevant).collect()
    }

    /// True if the control plane lists the workload as a ready endpoint of the service's port.
    fn is_ready(&self, service: &str, port: u16, workload: &str) -> bool {
        let service_status = self.services.iter().find(|status| status.name == service);
        let mut port_statuses = service_status.into_iter().flat_map(|status| &status.ports);
        let port_status = port_statuses.find(|status| status.port == port);
        port_status.is_some_and(|status| {
            status.endpoints.iter().any(|endpoint| endpoint.workload == workload)
        })
    }

    fn find_ejected_endpoint(
        &self,
        service: &str,
        port: u16,
        workload: &str,
    ) -> Option<&EjectedEndpoint> {
        let mut ejected_endpoints =
            self.sidecar.iter().flat_map(|sidecar| &sidecar.ejected_endpoints);
        ejected_endpoints.find(|endpoint| {
            endpoint.service == service && endpoint.port == port && endpoint.workload == workload
        })
    }
}

/// Returns the statuses with which open circuits reject such requests: the status of the called service's
/// circuit, or else the statuses of the backends' circuits. Returns an empty list if some requests pass,
/// because a backend has no circuit that is open in every thread.
fn rejection_statuses(open_circuits: &[&ListedCircuit], decision: &Value) -> Vec<u16> {
    let rejection_status = |target: &Value| {
        let open_circuit = open_circuits
            .iter()
            .find(|circuit| circuit.is_open_everywhere() && matches_port(circuit, target));
        open_circuit.map(|circuit| circuit.rejection_status())
    };
    let backends = decision["backends"].as_array().map(Vec::as_slice).unwrap_or_default();
    match rejection_status(decision) {
        Some(called_status) => vec![called_status],
        None => backends.iter().map(rejection_status).collect::<Option<_>>().unwrap_or_default(),
    }
}

/// True if the circuit belongs to the service and port of the JSON object `target`.
fn matches_port(circuit: &ListedCircuit, target: &Value) -> bool {
    target["service"] == circuit.service.as_str() && target["port"] == circuit.port
}

fn describe_circuit(circuit: &ListedCircuit) -> String {
    let age = format_duration(Duration::from_secs(circuit.age_s));
    let ListedCircuit { service, port, policy, trigger, .. } = circuit;
    format!("{service} port {port}: open for {age} ({trigger}), by the {policy}")
}

fn describe_ejected(endpoint: &EjectedEndpoint) -> String {
    let age = format_duration(Duration::from_secs(endpoint.age_s));
    format!("for {age} ({}), by the {}", endpoint.cause, endpoint.policy)
}

/// Inserts lines before the last line of the text. A verdict replaces the last line.
fn insert_lines(text: &str, lines: &[(&str, String)], verdict: Option<&str>) -> String {
    let (preceding_lines, last_line) = match text.trim_end().rsplit_once('\n') {
        Some((preceding_lines, last_line)) => (format!("{preceding_lines}\n"), last_line),
        None => (String::new(), text.trim_end()),
    };
    let inserted_lines: String =
        lines.iter().map(|(label, description)| format!("{label:<9} {description}\n")).collect();
    let verdict_line =
        verdict.map_or(last_line.to_owned(), |verdict| format!("{:<9} {verdict}", "verdict"));
    format!("{preceding_lines}{inserted_lines}{verdict_line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service_statuses(workloads: &[&str]) -> Vec<ServiceStatus> {
        let endpoint = |workload: &&str| json!({"workload": workload, "address": "127.0.0.1:1"});
        let endpoints: Vec<Value> = workloads.iter().map(endpoint).collect();
        let port = json!({"name": null, "port": 80, "protocol": "HTTP", "endpoints": endpoints});
        let service = json!({"name": "shop/web", "selector": {}, "workloads": [], "ports": [port], "routes": []});
        serde_json::from_value(json!([service])).unwrap()
    }

    fn sample_explanation() -> Explanation {
        let endpoints = json!([{"workload": "shop/web-1"}, {"workload": "shop/web-2"}]);
        let backends = json!([{"service": "shop/web", "port": 80, "endpoints": endpoints}]);
        Explanation {
            text: "backend   shop/web\nverdict   200-range\n".to_owned(),
            decision: json!({"allowed": true, "backends": backends}),
        }
    }

    #[test]
    fn unready_endpoints_are_listed_as_excluded() {
        let sidecar = Ok(SidecarState::default());
        let state = RuntimeState { services: service_statuses(&["shop/web-1"]), sidecar };
        let Explanation { text, decision } = state.add_observations(sample_explanation());
        expect_test::expect![[r#"
            backend   shop/web
            excluded  shop/web-2 of shop/web port 80: its sidecar is not ready
            verdict   200-range
        "#]]
        .assert_eq(&text);
        assert_eq!(decision["allowed"], true);
        assert_eq!(decision["backends"][0]["endpoints"][1]["ready"], false);
    }

    #[test]
    fn without_ready_endpoints_requests_are_rejected() {
        let reason = "the sidecar of shop/user-1 is not connected".to_owned();
        let state = RuntimeState { services: service_statuses(&[]), sidecar: Err(reason) };
        let Explanation { text, decision } = state.add_observations(sample_explanation());
        assert_eq!(decision["allowed"], false);
        assert_eq!(decision["reason"], "no-endpoint");
        let last_line = text.lines().last().unwrap();
        assert!(last_line.starts_with("verdict   503 no-endpoint: "), "{text}");
        assert!(text.contains("ejected   unknown: the sidecar of"), "{text}");
    }

    #[test]
    fn a_circuit_open_in_all_threads_rejects_the_request() {
        let circuit = |service: &str, state: &str, total_threads: usize| -> ListedCircuit {
            serde_json::from_value(json!({
                "service": service, "port": 80, "policy": "CircuitBreaker shop/web", "state": state,
                "trigger": "failed", "age_s": 3, "open_duration_ms": 5000, "threads": 1, "total_threads": total_threads,
            }))
            .unwrap()
        };
        for (circuits, allowed) in [
            (vec![circuit("shop/web", "open", 1)], false),
            (vec![circuit("shop/web", "open", 2)], true),
            (vec![circuit("shop/web", "half-open", 1)], true),
            (vec![circuit("shop/other", "open", 1)], true),
        ] {
            let sidecar = Ok(SidecarState { ejected_endpoints: Vec::new(), circuits });
            let services = service_statuses(&["shop/web-1", "shop/web-2"]);
            let Explanation { text, decision } =
                RuntimeState { services, sidecar }.add_observations(sample_explanation());
            assert_eq!(decision["allowed"], allowed, "{text}");
            let verdict = text.lines().last().unwrap();
            assert_eq!(verdict.starts_with("verdict   503 circuit-open: "), !allowed, "{text}");
        }
    }

    #[test]
    fn an_open_circuit_responds_with_the_status_of_its_policy() {
        let target = |service: &str| json!({"service": service, "port": 80, "endpoints": []});
        let circuit = |service: &str, status: Option<u16>| -> ListedCircuit {
            serde_json::from_value(json!({
                "service": service, "port": 80, "policy": "CircuitBreaker shop/web", "state": "open",
                "trigger": "failed", "age_s": 3, "open_duration_ms": 5000, "threads": 1, "total_threads": 1,
                "status": status,
            }))
            .unwrap()
        };
        let (v1, v2) = ("shop/web-v1", "shop/web-v2");
        for (circuits, statuses, status) in [
            (vec![circuit("shop/web", Some(418))], "418", json!(418)),
            // The circuit of the called service takes precedence over those of backends.
            (vec![circuit(v1, Some(500)), circuit("shop/web", Some(418))], "418", json!(418)),
            (vec![circuit(v1, Some(429)), circuit(v2, Some(429))], "429", json!(429)),
            (vec![circuit(v1, Some(429)), circuit(v2, Some(418))], "429 or 418", json!(null)),
            // Sidecars of earlier releases report no status.
            (vec![circuit(v1, None), circuit(v2, None)], "503", json!(503)),
        ] {
            let state = RuntimeState {
                services: service_statuses(&[]),
                sidecar: Ok(SidecarState { ejected_endpoints: vec![], circuits }),
            };
            let mut decision = target("shop/web");
            decision["allowed"] = true.into();
            decision["backends"] = json!([target(v1), target(v2)]);
            let explanation = Explanation { text: "verdict   200-range\n".to_owned(), decision };
            let Explanation { text, decision } = state.add_observations(explanation);
            let verdict = text.lines().last().unwrap();
            let expected = format!("verdict   {statuses} circuit-open: ");
            assert!(verdict.starts_with(&expected), "{text}");
            assert_eq!((&decision["status"], &decision["allowed"]), (&status, &json!(false)));
        }
    }
}

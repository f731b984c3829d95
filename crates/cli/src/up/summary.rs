//! Renders the summary that `leno up` prints once the mesh is up: workloads, problems and example commands.

use std::fmt::Write as _;

use leno_control::status::Status;
use leno_model::OutboundListener;

use super::local_workloads::WorkloadState;
use crate::figures::format_count;
use crate::output::{Listing, ListingColumn, OutputFormat};

/// The state of a workload, for the summary.
pub(super) struct SummaryWorkload<'a> {
    pub(super) workload_state: &'a WorkloadState,
    /// The name of the workload's network namespace; `None` if the workload runs in the host's.
    pub(super) network_namespace: Option<String>,
}

/// Renders the summary: the health of the mesh, a table of the workloads, their problems, and example commands
/// with `data_option` appended.
pub(super) fn render(
    status: &Status,
    workloads: &[SummaryWorkload<'_>],
    data_option: &str,
) -> String {
    let mut summary = format!(
        "\n{}: {}, {}, default policy {}, trust domain {}\n\n",
        describe_health(workloads),
        format_count(status.workloads, "workload"),
        format_count(status.services, "service"),
        status.default_policy,
        status.trust_domain,
    );
    let has_namespaces = workloads.iter().any(|workload| workload.network_namespace.is_some());
    let mut listing =
        Listing::new(if has_namespaces { NAMESPACE_COLUMNS } else { LISTENER_COLUMNS });
    for SummaryWorkload { workload_state, network_namespace } in workloads {
        let workload = &workload_state.workload;
        // Redirected workloads have no HTTP proxy listener.
        let http_proxy =
            workload_state.report.as_ref().and_then(crate::proxy::SidecarReport::http_proxy);
        let proxy_text = http_proxy.map(|address| address.to_string()).unwrap_or_default();
        let listener_texts: Vec<String> = workload
            .outbound_listeners
            .iter()
            .map(|listener| format!("{} → {}:{}", listener.listen, listener.service, listener.port))
            .collect();
        listing.add_row([
            workload.name.to_string(),
            describe_application(workload_state),
            if has_namespaces { network_namespace.clone().unwrap_or_default() } else { proxy_text },
            listener_texts.join(", "),
        ]);
    }
    summary.push_str(&listing.render(OutputFormat::Table));
    for problem in workloads.iter().flat_map(|workload| list_problems(workload.workload_state)) {
        writeln!(summary, "  ✗ {problem}").expect("writing to a String never fails");
    }
    summary.push_str(&render_usage(workloads, status.page.as_deref(), data_option));
    summary
}

/// Describes the health of the mesh for the first line, with the number of problems of each kind.
fn describe_health(workloads: &[SummaryWorkload<'_>]) -> String {
    let workload_states = || workloads.iter().map(|workload| workload.workload_state);
    let closed_count: usize = workload_states()
        .filter_map(|state| state.report.as_ref())
        .map(|report| report.closed_listeners.len())
        .sum();
    let unstable_count = workload_states().filter(|state| state.is_crash_looping()).count();
    let unserved_count: usize = workload_states().map(|state| state.port_problems().len()).sum();
    let verb_form = |count: usize, singular: &str, plural: &str| {
        if count == 1 { singular } else { plural }.to_owned()
    };
    let problem_texts: Vec<String> = [
        (closed_count, "listener", verb_form(closed_count, "is closed", "are closed")),
        (
            unstable_count,
            "application",
            verb_form(unstable_count, "does not stay up", "do not stay up"),
        ),
        (
            unserved_count,
            "port",
            verb_form(
                unserved_count,
                "is not served by its application",
                "are not served by their applications",
            ),
        ),
    ]
    .into_iter()
    .filter(|(count, ..)| *count > 0)
    .map(|(count, noun, state)| format!("{} {state}", format_count(count, noun)))
    .collect();
    match problem_texts.as_slice() {
        [] => "The mesh is up".to_owned(),
        problem_texts => format!("The mesh is up, but {}", problem_texts.join(" and ")),
    }
}

/// Returns the problems of a workload, one per line.
fn list_problems(workload_state: &WorkloadState) -> Vec<String> {
    let name = &workload_state.workload.name;
    let closed_listeners = workload_state.report.iter().flat_map(|report| &report.closed_listeners);
    let mut problems: Vec<String> = closed_listeners
        .map(|(listener, reason)| format!("{name}: {listener} is closed: {reason}"))
        .collect();
    if let Some(exit) = workload_state.last_exit().filter(|_| workload_state.is_crash_looping()) {
        problems.push(format!("{name}: the application does not stay up: {exit}"));
    }
    let ports = workload_state.port_problems().into_iter();
    problems.extend(ports.map(|(port, reason)| format!("{name}: port {port}: {reason}")));
    problems
}

fn describe_application(workload_state: &WorkloadState) -> String {
    let ports: Vec<String> =
        workload_state.workload.ports.iter().map(|port| port.port.to_string()).collect();
    let ports_text = match ports.as_slice() {
        [] => String::new(),
        [port] => format!("port {port}"),
        ports => format!("ports {}", ports.join(", ")),
    };
    match (workload_state.application_pid(), ports_text.is_empty()) {
        (Some(pid), true) => format!("process {pid}"),
        (Some(pid), false) => format!("{ports_text}, process {pid}"),
        (None, _) => ports_text,
    }
}

/// Returns example commands for calls and for observation, with names of this mesh.
fn render_usage(
    workloads: &[SummaryWorkload<'_>],
    page: Option<&str>,
    data_option: &str,
) -> String {
    let mut examples = Vec::new();
    let outbound_listeners = workloads.iter().flat_map(|workload| {
        let open_listeners = workload
            .workload_state
            .workload
            .outbound_listeners
            .iter()
            .filter(|listener| is_open(workload, listener));
        open_listeners.map(move |listener| (namespace_prefix(workload), listener))
    });
    if let Some((prefix, listener)) = outbound_listeners.into_iter().next() {
        examples.push((
            format!("{prefix}curl http://{}/", listener.listen),
            format!("call {} through an outbound listener", listener.service.name),
        ));
    }
    examples.extend(workloads.iter().find_map(build_call_example));
    examples.push((format!("leno get workloads{data_option}"), "list the workloads".to_owned()));
    examples.push((format!("leno top{data_option}"), "watch the mesh in the terminal".to_owned()));
    examples.extend(page.map(|page| (page.to_owned(), "watch the mesh in a browser".to_owned())));
    let width = examples.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    let mut text = "\n".to_owned();
    for (command, description) in examples {
        writeln!(text, "  {command:width$}  {description}")
            .expect("writing to a String never fails");
    }
    text.push_str("\nChanges in the files take effect immediately. Ctrl-C stops everything.\n\n");
    text
}

/// True unless the sidecar reports that the listener is closed.
fn is_open(workload: &SummaryWorkload<'_>, listener: &OutboundListener) -> bool {
    let name = format!("listener-{}", listener.listen);
    workload
        .workload_state
        .report
        .as_ref()
        .is_none_or(|report| !report.closed_listeners.contains_key(&name))
}

/// Returns the prefix that runs a command in the workload's network namespace, because its outbound listeners
/// are not reachable from the host; empty without a namespace.
fn namespace_prefix(workload: &SummaryWorkload<'_>) -> String {
    let network_namespace = workload.network_namespace.as_ref();
    network_namespace.map(|name| format!("ip netns exec {name} ")).unwrap_or_default()
}

/// Returns an example command that calls any service as this workload, and its description. Returns `None` if the
/// workload has neither a network namespace nor an HTTP proxy listener.
fn build_call_example(workload: &SummaryWorkload<'_>) -> Option<(String, String)> {
    let description = format!("call any service as {}", workload.workload_state.workload.name.name);
    if workload.network_namespace.is_some() {
        let command = format!("{}curl http://SERVICE.NAMESPACE:PORT/", namespace_prefix(workload));
        return Some((command, description));
    }
    let proxy = workload.workload_state.report.as_ref()?.http_proxy()?;
    Some((format!("curl -x http://{proxy} http://SERVICE.NAMESPACE:PORT/"), description))
}

/// The columns for a mesh in the host's network namespace.
const LISTENER_COLUMNS: &[ListingColumn] = &[
    ListingColumn::always("workload"),
    ListingColumn::always("application"),
    ListingColumn::always("HTTP proxy"),
    ListingColumn::always("outbound listeners"),
];

/// The columns for a mesh with a network namespace per workload.
const NAMESPACE_COLUMNS: &[ListingColumn] = &[
    ListingColumn::always("workload"),
    ListingColumn::always("application"),
    ListingColumn::always("network namespace"),
    ListingColumn::always("outbound listeners"),
];

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leno_model::{Protocol, Workload};
    use leno_registry::read_str;

    use super::*;
    use crate::up::local_workloads::WorkloadState;

    fn client_workload() -> Workload {
        let yaml = "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
                    metadata: {name: client-1, namespace: shop}\n\
                    spec: {outbound: [{service: cart, port: 80, listen: \"127.0.0.1:19080\"}]}\n";
        let (objects, rejected) = read_str("mesh.yaml", yaml);
        assert!(rejected.is_empty(), "{rejected:?}");
        match objects.into_iter().next() {
            Some((leno_model::Object::Workload(workload), _)) => workload,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn listeners_of_a_namespace_are_called_from_inside_it() {
        let workload = client_workload();
        assert!(matches!(
            workload.outbound_listeners.as_slice(),
            [OutboundListener { port: 80, .. }]
        ));
        let workload_state = WorkloadState::waiting(Arc::new(workload));
        let rendered = |namespace: Option<&str>| {
            let namespace = namespace.map(str::to_owned);
            render(
                &Status::default(),
                &[SummaryWorkload {
                    workload_state: &workload_state,
                    network_namespace: namespace,
                }],
                "",
            )
        };
        let inside = rendered(Some("leno7-2"));
        assert!(
            inside.contains("  ip netns exec leno7-2 curl http://127.0.0.1:19080/ "),
            "{inside}"
        );
        let any_service = "  ip netns exec leno7-2 curl http://SERVICE.NAMESPACE:PORT/ ";
        assert!(inside.contains(any_service) && inside.contains("NETWORK NAMESPACE"), "{inside}");
        let outside = rendered(None);
        assert!(outside.contains("  curl http://127.0.0.1:19080/ "), "{outside}");
        assert!(!outside.contains("netns") && outside.contains("HTTP PROXY"), "{outside}");
        assert!(outside.contains("The mesh is up:"), "{outside}");
    }

    #[test]
    fn ports_are_listed_in_singular_or_plural() {
        for (count, text) in [(1, "port 9080"), (2, "ports 9080, 9081")] {
            let mut workload = client_workload();
            let port =
                |port| leno_model::WorkloadPort { name: None, port, protocol: Protocol::Http };
            workload.ports = [9080, 9081].into_iter().take(count).map(port).collect();
            assert_eq!(describe_application(&WorkloadState::waiting(Arc::new(workload))), text);
        }
    }

    #[test]
    fn problems_are_in_the_first_line_and_below_the_table() {
        let workload_state = WorkloadState::failing(
            Arc::new(client_workload()),
            [("listener-127.0.0.1:19080".to_owned(), "in use".to_owned())].into(),
        );
        let workloads =
            [SummaryWorkload { workload_state: &workload_state, network_namespace: None }];
        let rendered = render(&Status::default(), &workloads, "");
        let first_line =
            "The mesh is up, but 1 listener is closed and 1 application does not stay up: ";
        assert!(rendered.contains(first_line), "{rendered}");
        let problem_line = "  ✗ shop/client-1: listener-127.0.0.1:19080 is closed: in use\n";
        assert!(rendered.contains(problem_line), "{rendered}");
        assert!(rendered.contains("does not stay up: exit status: 1"), "{rendered}");
        assert!(!rendered.contains("curl http://127.0.0.1:19080/"), "{rendered}");
    }
}

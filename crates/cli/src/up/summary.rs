//! What `leno up` says when the mesh is up: who is there, and how to use it.

use std::fmt::Write as _;

use leno_control::status::Status;

use super::fleet::Standing;
use crate::output::{Column, Format, Listing};

/// A workload that is introduced.
pub(super) struct Introduced<'a> {
    pub(super) standing: &'a Standing,
    /// The network namespace that it has of its own, if it has one.
    pub(super) namespace: Option<String>,
}

/// What is worth knowing once everything runs.
pub(super) fn render(status: &Status, members: &[Introduced<'_>], hint: &str) -> String {
    let mut text = format!(
        "\nThe mesh is up: {}, {}, {} mode, trust domain {}\n\n",
        counted(status.workloads, "workload"),
        counted(status.services, "service"),
        status.traffic_mode,
        status.trust_domain,
    );
    let placed = members.iter().any(|member| member.namespace.is_some());
    let mut listing = Listing::new(if placed { NAMESPACE_COLUMNS } else { DOOR_COLUMNS });
    for Introduced { standing, namespace } in members {
        let workload = &standing.workload;
        // There are no HTTP proxies where everything is redirected.
        let proxy = standing.report.as_ref().and_then(crate::proxy::Report::http_proxy);
        let proxy = proxy.map(|proxy| proxy.to_string()).unwrap_or_default();
        let doors = workload.doors.iter();
        let doors: Vec<String> =
            doors.map(|door| format!("{} → {}:{}", door.listen, door.service, door.port)).collect();
        listing.row([
            workload.name.to_string(),
            application(standing),
            if placed { namespace.clone().unwrap_or_default() } else { proxy },
            doors.join(", "),
        ]);
    }
    text.push_str(&listing.render(Format::Table));
    text.push_str(&usage(members, status.page.as_deref(), hint));
    text
}

fn application(member: &Standing) -> String {
    let ports = member.workload.ports.iter().map(|port| port.port.to_string());
    let ports: Vec<String> = ports.collect();
    let ports = match ports.is_empty() {
        true => String::new(),
        false => format!("port {}", ports.join(", ")),
    };
    match (member.application_pid(), ports.is_empty()) {
        (Some(pid), true) => format!("process {pid}"),
        (Some(pid), false) => format!("{ports}, process {pid}"),
        (None, _) => ports,
    }
}

/// How to call something and how to find out more, with examples from this mesh.
fn usage(members: &[Introduced<'_>], page: Option<&str>, hint: &str) -> String {
    let mut lines = Vec::new();
    let doors = members.iter().flat_map(|member| {
        member.standing.workload.doors.iter().map(move |door| (within(member), door))
    });
    if let Some((within, door)) = doors.into_iter().next() {
        lines.push((
            format!("{within}curl http://{}/", door.listen),
            format!("call {} through a door", door.service.name),
        ));
    }
    lines.extend(members.iter().find_map(call_any_service));
    lines.push((format!("leno get workloads{hint}"), "ask the mesh".to_owned()));
    lines.push((format!("leno top{hint}"), "watch it here".to_owned()));
    lines.extend(page.map(|page| (page.to_owned(), "watch it in a browser".to_owned())));
    let width = lines.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    let mut text = "\n".to_owned();
    for (command, meaning) in lines {
        writeln!(text, "  {command:width$}  {meaning}").expect("a String takes what is written");
    }
    text.push_str("\nChanges in the files are live at once. Ctrl-C stops everything.\n\n");
    text
}

/// What leads to where the doors of a workload are: those in a namespace are not on the host.
fn within(member: &Introduced<'_>) -> String {
    let namespace = member.namespace.as_ref();
    namespace.map(|name| format!("ip netns exec {name} ")).unwrap_or_default()
}

fn call_any_service(member: &Introduced<'_>) -> Option<(String, String)> {
    let meaning = format!("call any service as {}", member.standing.workload.name.name);
    if member.namespace.is_some() {
        let command = format!("{}curl http://SERVICE.NAMESPACE:PORT/", within(member));
        return Some((command, meaning));
    }
    let proxy = member.standing.report.as_ref()?.http_proxy()?;
    Some((format!("curl -x http://{proxy} http://SERVICE.NAMESPACE:PORT/"), meaning))
}

fn counted(count: usize, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    }
}

const DOOR_COLUMNS: &[Column] = &[
    Column::always("workload"),
    Column::always("application"),
    Column::always("HTTP proxy"),
    Column::always("doors"),
];

const NAMESPACE_COLUMNS: &[Column] = &[
    Column::always("workload"),
    Column::always("application"),
    Column::always("network namespace"),
    Column::always("doors"),
];

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leno_model::{Door, Workload};
    use leno_registry::read_str;

    use super::*;
    use crate::up::fleet::Standing;

    fn client() -> Workload {
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
    fn doors_in_a_namespace_are_called_from_there() {
        let workload = client();
        assert!(matches!(workload.doors.as_slice(), [Door { port: 80, .. }]));
        let standing = Standing::waiting(Arc::new(workload));
        let shown = |namespace: Option<&str>| {
            let namespace = namespace.map(str::to_owned);
            render(&Status::default(), &[Introduced { standing: &standing, namespace }], "")
        };
        let inside = shown(Some("leno7-2"));
        assert!(
            inside.contains("  ip netns exec leno7-2 curl http://127.0.0.1:19080/ "),
            "{inside}"
        );
        let any = "  ip netns exec leno7-2 curl http://SERVICE.NAMESPACE:PORT/ ";
        assert!(inside.contains(any) && inside.contains("NETWORK NAMESPACE"), "{inside}");
        let outside = shown(None);
        assert!(outside.contains("  curl http://127.0.0.1:19080/ "), "{outside}");
        assert!(!outside.contains("netns") && outside.contains("HTTP PROXY"), "{outside}");
    }
}

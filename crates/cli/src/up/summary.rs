//! What `leno up` says when the mesh is up: who is there, and how to use it.

use std::fmt::Write as _;

use leno_control::status::Status;

use super::fleet::Standing;
use crate::output::{Column, Format, Listing};

/// What is worth knowing once everything runs.
pub(super) fn render(status: &Status, fleet: &[Standing], hint: &str) -> String {
    let mut text = format!(
        "\nThe mesh is up: {}, {}, {} mode, trust domain {}\n\n",
        counted(status.workloads, "workload"),
        counted(status.services, "service"),
        status.traffic_mode,
        status.trust_domain,
    );
    let mut listing = Listing::new(COLUMNS);
    for member in fleet {
        let workload = &member.workload;
        let proxy = member.report.as_ref().and_then(crate::proxy::Report::http_proxy);
        let doors = workload.doors.iter();
        let doors: Vec<String> =
            doors.map(|door| format!("{} → {}:{}", door.listen, door.service, door.port)).collect();
        listing.row([
            workload.name.to_string(),
            application(member),
            proxy.map(|proxy| proxy.to_string()).unwrap_or_default(),
            doors.join(", "),
        ]);
    }
    text.push_str(&listing.render(Format::Table));
    text.push_str(&usage(fleet, hint));
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
fn usage(fleet: &[Standing], hint: &str) -> String {
    let mut lines = Vec::new();
    let doors = fleet.iter().flat_map(|member| &member.workload.doors);
    if let Some(door) = doors.into_iter().next() {
        lines.push((
            format!("curl http://{}/", door.listen),
            format!("call {} through a door", door.service.name),
        ));
    }
    let proxies = fleet.iter().filter_map(|member| {
        let proxy = member.report.as_ref()?.http_proxy()?;
        Some((member, proxy))
    });
    if let Some((member, proxy)) = proxies.into_iter().next() {
        lines.push((
            format!("curl -x http://{proxy} http://SERVICE.NAMESPACE:PORT/"),
            format!("call any service as {}", member.workload.name.name),
        ));
    }
    lines.push((format!("leno get workloads{hint}"), "ask the mesh".to_owned()));
    let width = lines.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    let mut text = "\n".to_owned();
    for (command, meaning) in lines {
        writeln!(text, "  {command:width$}  {meaning}").expect("a String takes what is written");
    }
    text.push_str("\nChanges in the files are live at once. Ctrl-C stops everything.\n\n");
    text
}

fn counted(count: usize, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    }
}

const COLUMNS: &[Column] = &[
    Column::always("workload"),
    Column::always("application"),
    Column::always("HTTP proxy"),
    Column::always("doors"),
];

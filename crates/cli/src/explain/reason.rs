//! What the reasons of the closed list mean.

use std::process::ExitCode;

use leno_model::{Reason, Retry, Side};
use serde_json::{Value, json};

use super::ExplainFormat;
use crate::output::{self, Column, Format, Listing};

/// Prints every reason.
pub(super) fn list(format: ExplainFormat) -> anyhow::Result<ExitCode> {
    match format {
        ExplainFormat::Json => {
            let all: Vec<Value> = Reason::ALL.iter().map(|reason| json(*reason)).collect();
            output::print_json(&all)?;
        }
        ExplainFormat::Text => {
            let mut listing = Listing::new(COLUMNS);
            for reason in Reason::ALL {
                listing.row([
                    reason.label().to_owned(),
                    status(*reason),
                    side(reason.side()).to_owned(),
                    reason.caption().to_owned(),
                ]);
            }
            output::print(&listing.render(Format::Table))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints one reason.
pub(super) fn show(reason: Reason, format: ExplainFormat) -> anyhow::Result<ExitCode> {
    match format {
        ExplainFormat::Json => output::print_json(&json(reason))?,
        ExplainFormat::Text => output::print(&text(reason))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn text(reason: Reason) -> String {
    let answered = match reason.status() {
        0 => "nothing: the connection is reset or never opened".to_owned(),
        status => status.to_string(),
    };
    let at_fault = match reason.side() {
        Side::Downstream => "downstream: the client",
        Side::Ours => "ours: the sidecar, its rules or its limits",
        Side::Upstream => "upstream: where the sidecar sent the request",
    };
    let retried = match reason.retry() {
        Retry::Never => "never: the same answer would come again, or the request may have worked",
        Retry::IfUnsent => "if nothing of the request reached the application",
        Retry::Always => "always: nothing was sent",
    };
    format!(
        "{}: {}\n  answered with  {answered}\n  at fault       {at_fault}\n  \
         tried again    {retried}\n  what to do     {}\n",
        reason.label(),
        reason.caption(),
        remedy(reason),
    )
}

fn json(reason: Reason) -> Value {
    json!({
        "reason": reason.label(),
        "status": match reason.status() {
            0 => None,
            status => Some(status),
        },
        "side": side(reason.side()),
        "retry": match reason.retry() {
            Retry::Never => "never",
            Retry::IfUnsent => "if-unsent",
            Retry::Always => "always",
        },
        "caption": reason.caption(),
        "remedy": remedy(reason),
    })
}

fn status(reason: Reason) -> String {
    match reason.status() {
        0 => String::new(),
        status => status.to_string(),
    }
}

fn side(side: Side) -> &'static str {
    match side {
        Side::Downstream => "downstream",
        Side::Ours => "ours",
        Side::Upstream => "upstream",
    }
}

/// What an operator can do about it.
pub(super) fn remedy(reason: Reason) -> &'static str {
    match reason {
        Reason::BadRequest => "correct the client: its request is not valid HTTP/1.1",
        Reason::HeadTooLarge => "send fewer or smaller headers, cookies above all",
        Reason::HeadTimeout => "look at the client or the network; see --head-timeout",
        Reason::DownstreamClosed => "look at the client: it gave up or was cut off",
        Reason::PlaintextRefused => "give the client a sidecar: it is not a member of the mesh",
        Reason::HandshakeFailed => "look at the client's log: it did not finish the handshake",
        Reason::UntrustedPeer => "let the client join this mesh: another authority signed it",
        Reason::ExpiredPeer => "look at the client's sidecar: it could not renew; check clocks",
        Reason::ForeignTrustDomain => "use the same spec.trustDomain in both meshes' MeshConfig",
        Reason::TooManyConnections => "close idle connections, or raise --connections-max",
        Reason::UnknownService => "correct the host name or port, or add the Service",
        Reason::NoRoute => "add a match to the HTTPRoutes of the service that fits the request",
        Reason::DeniedOutbound => {
            "name the client's account as a source of a TrafficTarget for the destination"
        }
        Reason::Denied => "add the client's account to the sources of the policy that allows it",
        Reason::NoPolicyRoute => "add a match that fits to an HTTPRouteGroup that a policy uses",
        Reason::InvalidBackend => "correct backendRefs of the HTTPRoute: names, ports, weights",
        Reason::DiscoveryTimeout => "start the control plane, or find out why it does not answer",
        Reason::NoEndpoint => "start a workload that the service selects; see `leno get services`",
        Reason::Draining => "send to another endpoint: this one is being stopped",
        Reason::Unsupported => "do without it: this version does not support it",
        Reason::ConnectFailed => "look at the endpoint: `leno get workloads`, its log, its port",
        Reason::ConnectTimeout => "look at the endpoint and the network between",
        Reason::UpstreamHandshakeFailed => "look at the log of the endpoint's sidecar",
        Reason::WrongIdentity => "find out who listens at the endpoint's address instead of it",
        Reason::UpstreamRefused => "look at the endpoint: it drains or is full",
        Reason::UpstreamReset => "look at the application's log: it broke the connection",
        Reason::UpstreamMalformed => "correct the application: its response is not valid HTTP/1.1",
        Reason::RequestTimeout => "make the application faster, or raise timeouts.request",
    }
}

const COLUMNS: &[Column] = &[
    Column::always("reason"),
    Column::always("status"),
    Column::always("at fault"),
    Column::always("meaning"),
];

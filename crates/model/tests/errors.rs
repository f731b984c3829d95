//! `docs/errors.md` is what the closed list of reasons says, and cannot say anything else.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use leno_model::{Reason, Retry, Side};

#[test]
fn the_document_of_errors_is_the_list_of_reasons() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors.md");
    let rendered = render();
    let found = fs::read_to_string(&document).unwrap_or_default();
    if found == rendered {
        return;
    }
    let draft = Path::new(env!("CARGO_TARGET_TMPDIR")).join("errors.md");
    fs::write(&draft, &rendered).expect("the folder for temporary files can be written");
    panic!(
        "{} is not up to date; put the new text in place with\n  cp {} {}",
        document.display(),
        draft.display(),
        document.display()
    );
}

#[test]
fn no_cell_of_the_table_breaks_it() {
    for reason in Reason::ALL {
        for text in [reason.label(), reason.caption(), remedy(*reason)] {
            assert!(!text.is_empty() && !text.contains(['|', '\n']), "{reason:?}: {text}");
        }
    }
}

fn render() -> String {
    let mut text = BEFORE.to_owned();
    for reason in Reason::ALL {
        let status = match reason.status() {
            0 => "–".to_owned(),
            status => status.to_string(),
        };
        writeln!(
            text,
            "| `{}` | {status} | {} | {} | {} | {} |",
            reason.label(),
            side(reason.side()),
            retry(reason.retry()),
            reason.caption(),
            remedy(*reason),
        )
        .expect("a String takes what is written");
    }
    text.push_str(AFTER);
    text
}

fn side(side: Side) -> &'static str {
    match side {
        Side::Downstream => "downstream",
        Side::Ours => "ours",
        Side::Upstream => "upstream",
    }
}

fn retry(retry: Retry) -> &'static str {
    match retry {
        Retry::Never => "never",
        Retry::IfUnsent => "if unsent or idempotent",
        Retry::Always => "always",
    }
}

fn remedy(reason: Reason) -> &'static str {
    match reason {
        Reason::BadRequest => {
            "Correct the client; see the syntax that is refused in `crates/wire`."
        }
        Reason::HeadTooLarge => "Send fewer or smaller header fields, cookies above all.",
        Reason::HeadTimeout => "Look at the client or the network; the limit is `--head-timeout`.",
        Reason::DownstreamClosed => "Look at the client: it gave up or was cut off.",
        Reason::PlaintextRefused => "Give the client a sidecar; it is not a member of the mesh.",
        Reason::HandshakeFailed => "Look at the client's log; the limit is `--handshake-timeout`.",
        Reason::UntrustedPeer => "Let the client join this mesh: another authority signed it.",
        Reason::ExpiredPeer => "See why the client's sidecar could not renew; compare the clocks.",
        Reason::ForeignTrustDomain => "Use a peer of this mesh, or one trust domain in both.",
        Reason::TooManyConnections => "Close idle connections, or raise `--connections-max`.",
        Reason::UnknownService => "Correct the host name or the port, or add the Service.",
        Reason::NoRoute => "Add a match that fits to an HTTPRoute of the service.",
        Reason::DeniedOutbound => {
            "Name the client's account as a source of a TrafficTarget whose destination is the \
             account behind the service."
        }
        Reason::Denied => "Add the client's account to the sources of the policy that is named.",
        Reason::NoPolicyRoute => "Add a match that fits to an HTTPRouteGroup that a policy uses.",
        Reason::InvalidBackend => "Correct `backendRefs` of the HTTPRoute: names, ports, weights.",
        Reason::DiscoveryTimeout => "Start the control plane, or find out why it does not answer.",
        Reason::NoEndpoint => "Start a workload that the service selects; see `leno get services`.",
        Reason::Draining => "Send to another endpoint: this one is being stopped.",
        Reason::Unsupported => "Do without it; this version cannot do it.",
        Reason::ConnectFailed => "Look at the endpoint: `leno get workloads`, its log, its port.",
        Reason::ConnectTimeout => "Look at the endpoint and at the network between.",
        Reason::UpstreamHandshakeFailed => "Look at the log of the endpoint's sidecar.",
        Reason::WrongIdentity => "Find out who listens at the endpoint's address instead of it.",
        Reason::UpstreamRefused => "Look at the endpoint: it drains or is full.",
        Reason::UpstreamReset => "Look at the application's log: it broke the connection.",
        Reason::UpstreamMalformed => "Correct the application: its response is not valid HTTP/1.1.",
        Reason::RequestTimeout => "Make the application faster, or raise `timeouts.request`.",
    }
}

const BEFORE: &str = "\
# Reasons

Every connection that a sidecar refuses and every request that it answers itself has one reason,
from this closed list. The same word is the label `reason` of the metrics, the field
`response_code_details` of the access log, and the first word of the response header `leno-reason`:

```
leno-reason: denied-outbound;side=ours;workload=\"bookinfo/client-1\"
```

`workload` is the one whose sidecar answered. A response without this header comes from an
application. `leno explain REASON` prints a row of the table on any machine.

This page is generated from `leno_model::Reason`; the test `crates/model/tests/errors.rs` compares
the two, and says what to do when they differ.

| reason | status | side | tried again | meaning | what to do |
|---|---|---|---|---|---|
";

const AFTER: &str = "
**status**: the HTTP status of the answer; – when there is no answer, and the connection is reset
or was never opened. Opaque TCP has no statuses: every reason resets the client's connection.

**side**: *downstream*, the client of the sidecar that reports it; *ours*, the sidecar, its rules
or its limits; *upstream*, where the sidecar sent the request.

**tried again**: a request is tried once more at most, and only when all of it can be sent again
and nothing of a response was passed on. *Always*: nothing of it reached an application. *If unsent
or idempotent*: nothing of it left the sidecar, or its method is GET, HEAD, OPTIONS, TRACE, PUT or
DELETE.
";

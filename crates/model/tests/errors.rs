//! Test that `docs/errors.md` equals the closed list of reasons.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use leno_model::{FailureSide, Reason, RetryCondition};

#[test]
fn the_error_document_lists_every_reason() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors.md");
    let rendered = render_page();
    let current = fs::read_to_string(&document).unwrap_or_default();
    if current == rendered {
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
fn every_table_cell_is_one_line() {
    for reason in Reason::ALL {
        for text in [reason.label(), reason.code(), reason.caption(), reason.remedy()] {
            assert!(!text.is_empty() && !text.contains(['|', '\n']), "{reason:?}: {text}");
        }
        for sentence in [reason.caption(), reason.remedy()] {
            let begins = sentence.starts_with(|first: char| first.is_ascii_uppercase());
            assert!(begins && sentence.ends_with('.'), "{reason:?}: {sentence}");
        }
    }
}

fn render_page() -> String {
    let mut text = PAGE_START.to_owned();
    for reason in Reason::ALL {
        let status = match reason.status() {
            0 => "–".to_owned(),
            status => status.to_string(),
        };
        writeln!(
            text,
            "| `{}` | {} | {status} | {} | {} | {} | {} |",
            reason.label(),
            reason.code(),
            side_name(reason.side()),
            describe_retry(reason.retry()),
            reason.caption(),
            reason.remedy(),
        )
        .expect("writing to a String never fails");
    }
    text.push_str(PAGE_END);
    text
}

fn side_name(side: FailureSide) -> &'static str {
    match side {
        FailureSide::Downstream => "downstream",
        FailureSide::Mesh => "mesh",
        FailureSide::Upstream => "upstream",
    }
}

fn describe_retry(retry: RetryCondition) -> &'static str {
    match retry {
        RetryCondition::Never => "never",
        RetryCondition::IfUnsent => "if unsent or idempotent",
        RetryCondition::Always => "always",
    }
}

const PAGE_START: &str = "\
# Reasons

Every connection that a sidecar rejects and every request to which it responds itself has one reason,
from this closed list. The same word is the label `reason` of the metrics, the field
`response_code_details` of the access log, and the first word of the response header `leno-reason`:

```
leno-reason: denied-outbound;side=mesh;workload=\"bookinfo/client-1\"
```

`workload` names the workload of the sidecar that responded. Both sidecars count the reason and log it; the other one
accepts it only from the verified sidecar that it has a [link](link.md) to, and only for counts.

An application can send a header of this name as well. Sidecars [pass it on](forwarding.md) like any other header, and it counts for nothing: no
metric, no access log and no policy reads it. So the header alone does not prove that a sidecar responded. The label `reason` of the metrics, the field
`response_code_details` of the access log and the traces do: they have a reason only if a sidecar responded or ended the exchange. A
response without this header comes from an application, or through a gateway: gateways remove the header of the responses that they pass on.

`leno explain` with the word or the code of a reason prints a row of the table on any
machine. Codes are stable: the code of a removed reason is not used again.

This page is generated from `leno_model::Reason`; the test `crates/model/tests/errors.rs` compares
the two, and prints the command that updates the page.

| reason | code | status | side | retry | meaning | hint |
|---|---|---|---|---|---|---|
";

const PAGE_END: &str = "
**status**: the HTTP status of the response; – when there is no response, and the connection is reset
or was never opened. Opaque TCP has no statuses: every reason resets the client's connection.
Policies may declare another status for `fault-injected`, `rate-limited`, `overloaded` and `circuit-open`, and external authorization services
send their own with `denied-by-service`.

**side**: *downstream*, the client of the sidecar that reports it; *mesh*, the sidecar, its rules
or its limits; *upstream*, where the sidecar sent the request. The label `side` of the [metrics](metrics.md) has another
meaning: the side that opened a connection.

**retry**: without a [rule about retries](rules/http-route.md#time-limits-and-retries), a request is retried at most
once, and only if the sidecar still holds all of it and has not forwarded any part of a response. *Always*: no byte of the
request reached an application. *If unsent or idempotent*: no byte of it left the sidecar, or its method is GET, HEAD, OPTIONS,
TRACE, PUT or DELETE.
";

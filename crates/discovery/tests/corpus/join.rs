//! Properties of joins, for arbitrary bytes from a client without a certificate and from a server.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use leno_discovery::{Budget, Event, QueuedEvent, event_queue, join, serve_join};
use leno_identity::{
    Authority, CertificateRequest, CertificateSubject, JoinBundle, LEAF_LIFETIME, TokenError,
    Tokens,
};
use leno_model::{TrustDomain, WorkloadName};
use tempfile::TempDir;
use tokio::time::Instant;

use super::discovery::{frame_messages, run_to_end};

/// The first byte selects the reader; the rest is its input.
pub(crate) fn check_input(bytes: &[u8]) {
    let Some((reader, input)) = bytes.split_first() else { return };
    match reader % 5 {
        0 => check_control_plane(&frame_messages(input)),
        1 => check_control_plane(input),
        2 => check_proxy(&frame_messages(input)),
        3 => check_request(input),
        _ => check_bundle(input),
    }
}

/// Serves a join, which is malformed or requests exactly one certificate.
fn check_control_plane(stream: &[u8]) {
    run_to_end(async {
        let (events, mut received_events) = event_queue(1);
        let sender = events.create_sender(Arc::new(Budget::new(Instant::now())));
        drop(events);
        let stream = tokio::io::join(stream, tokio::io::sink());
        let server = serve_join(stream, [127, 0, 0, 1].into(), sender);
        let state_task = async {
            let mut join_count = 0;
            while let Some(QueuedEvent { event, turn: _turn }) = received_events.recv().await {
                let Event::JoinRequested(pending_join) = event else {
                    unreachable!("a join has one event")
                };
                check_token(&pending_join.token, &pending_join.workload);
                check_request(&pending_join.csr);
                pending_join.reply.send(Err("not here".into())).expect("the client waits");
                join_count += 1;
            }
            assert!(join_count <= 1);
        };
        let (result, ()) = tokio::join!(server, state_task);
        assert!(result.is_ok() || result.is_err_and(|error| !error.to_string().is_empty()));
    });
}

fn check_proxy(stream: &[u8]) {
    run_to_end(async {
        let workload = WorkloadName::new("shop", "web-1").expect("a name");
        let stream = tokio::io::join(stream, tokio::io::sink());
        let joined = join(stream, "leno-join-0", &workload, b"csr").await;
        assert!(joined.is_ok() || joined.is_err_and(|error| !error.to_string().is_empty()));
    });
}

/// No token is accepted that was not issued.
fn check_token(token: &str, workload: &WorkloadName) {
    let (_, tokens) = authority_without_tokens();
    let redeemed = tokens.redeem(token, workload, SystemTime::now());
    assert!(matches!(redeemed, Err(TokenError::Unknown | TokenError::Io(_))), "{redeemed:?}");
}

/// A signing request is rejected, or is signed for the subject that the control plane names.
fn check_request(csr: &[u8]) {
    let Ok(request) = CertificateRequest::from_der(csr) else { return };
    let (authority, _) = authority_without_tokens();
    let id = "spiffe://cluster.local/ns/shop/sa/web".parse().expect("an identity");
    let subject = CertificateSubject { id: &id, workload: None, instance: None };
    let issued = authority.sign(&request, subject, LEAF_LIFETIME, SystemTime::now());
    let issued = issued.expect("an accepted request can be signed");
    assert!(!issued.chain.is_empty());
}

/// True if the signing request of an input is accepted.
pub(crate) fn is_request(bytes: &[u8]) -> bool {
    CertificateRequest::from_der(&bytes[1..]).is_ok()
}

/// A token file is rejected, or is unchanged after parsing and writing it.
fn check_bundle(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    if let Ok(bundle) = JoinBundle::parse(&text) {
        let parsed = JoinBundle::parse(&bundle.render()).expect("a bundle can be read again");
        assert_eq!(parsed, bundle);
    }
}

/// An authority without tokens; the directory of both lives as long as the process.
fn authority_without_tokens() -> (&'static Authority, &'static Tokens) {
    static AUTHORITY: OnceLock<(TempDir, Authority, Tokens)> = OnceLock::new();
    let (_, authority, tokens) = AUTHORITY.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let trust_domain = TrustDomain::new("cluster.local").expect("a name");
        let authority =
            Authority::open_or_create(directory.path(), &trust_domain, SystemTime::now());
        let tokens = Tokens::open(&directory.path().join("tokens"));
        (directory, authority.expect("an authority"), tokens.expect("a directory for tokens"))
    });
    (authority, tokens)
}

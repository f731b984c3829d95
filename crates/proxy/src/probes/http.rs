//! The HTTP probe: one GET request like that of the kubelet. The probe succeeds if the status is below 400.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

use super::{ProbeFailure, dial_application};
use crate::config::Interception;

/// The `httpGet` action of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HttpGet {
    #[serde(default)]
    path: String,
    pub(super) port: NonZeroU16,
    #[serde(default)]
    scheme: ProbeScheme,
    #[serde(default)]
    http_headers: Vec<ProbeHeader>,
}

/// The scheme of an HTTP probe; HTTP by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum ProbeScheme {
    #[default]
    Http,
    Https,
}

/// A request header of an HTTP probe.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct ProbeHeader {
    name: String,
    #[serde(default)]
    value: String,
}

impl HttpGet {
    /// Sends the request, and succeeds if the response has a status from 200 to 399. Redirects are not
    /// followed, so that probes reach only the application's own port.
    pub(super) async fn run_check(
        &self,
        address: SocketAddr,
        interception: &Interception,
    ) -> Result<(), ProbeFailure> {
        let tcp = dial_application(address, interception).await?;
        let status = match self.scheme {
            ProbeScheme::Http => self.send_request(tcp, address).await?,
            ProbeScheme::Https => {
                let name = ServerName::IpAddress(address.ip().into());
                let connector = TlsConnector::from(unverified_client_config()?);
                let tls = connector
                    .connect(name, tcp)
                    .await
                    .map_err(|_| ProbeFailure::InvalidResponse)?;
                self.send_request(tls, address).await?
            }
        };
        match status {
            200..400 => Ok(()),
            status => Err(ProbeFailure::Status(status)),
        }
    }

    /// Sends the request over a stream, and returns the status of the response.
    async fn send_request<S>(&self, stream: S, address: SocketAddr) -> Result<u16, ProbeFailure>
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|_| ProbeFailure::InvalidResponse)?;
        let request = self.build_request(address).ok_or(ProbeFailure::InvalidResponse)?;
        let exchange = sender.send_request(request);
        // The connection is driven only while the response is awaited.
        tokio::pin!(connection, exchange);
        let response = tokio::select! {
            biased;
            response = &mut exchange => response,
            // The connection has ended: the exchange has its response, or fails.
            _ = &mut connection => exchange.await,
        };
        Ok(response.map_err(|_| ProbeFailure::InvalidResponse)?.status().as_u16())
    }

    /// Builds the request with the default headers and the configured headers; `None` if they are not valid
    /// HTTP.
    fn build_request(&self, address: SocketAddr) -> Option<Request<Empty<Bytes>>> {
        let leading_slash = if self.path.starts_with('/') { "" } else { "/" };
        let request = Request::get(format!("{leading_slash}{}", self.path)).body(Empty::new());
        let mut request = request.ok()?;
        let headers = request.headers_mut();
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("leno-probe/", env!("CARGO_PKG_VERSION"))),
        );
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        headers.insert(HOST, HeaderValue::from_str(&address.to_string()).ok()?);
        let mut configured_names = Vec::new();
        for ProbeHeader { name, value } in &self.http_headers {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            let value = HeaderValue::from_str(value).ok()?;
            // Configured headers replace the defaults, and may be repeated.
            match configured_names.contains(&name) {
                true => drop(headers.append(&name, value)),
                false => drop(headers.insert(&name, value)),
            }
            configured_names.push(name);
        }
        Some(request)
    }
}

/// Returns a TLS configuration that accepts any certificate, like the kubelet's probes: the probe goes to the
/// pod's own address and contains no secret.
fn unverified_client_config() -> Result<Arc<ClientConfig>, ProbeFailure> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|_| ProbeFailure::InvalidResponse)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// A verifier that accepts any server certificate and signature.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

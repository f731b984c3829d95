//! Provides the cryptography of rustls for connections between mesh members: aws-lc-rs, reduced to algorithms of TLS 1.3.

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};

/// Returns the provider, with suites and groups in order of preference.
pub(crate) fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::clone(&PROVIDER)
}

/// The provider that all configurations share.
static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    Arc::new(CryptoProvider {
        // AES-128-GCM is first: it is the fastest with hardware support, and strong enough.
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![kx_group::X25519, kx_group::SECP256R1, kx_group::X25519MLKEM768],
        ..aws_lc_rs::default_provider()
    })
});

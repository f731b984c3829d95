//! Test support: an authority in a temporary directory, forged certificates, and in-memory handshakes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_model::{SpiffeId, TrustDomain, WorkloadName};
use rcgen::{
    CertificateParams, DistinguishedName, ExtendedKeyUsagePurpose, KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Error, ServerConfig, ServerConnection};
use tempfile::TempDir;

use crate::authority::{Authority, CertificateSubject, LEAF_LIFETIME};
use crate::credential::Credential;
use crate::csr::CertificateRequest;
use crate::key::PrivateKey;

/// One mesh with its authority.
pub(crate) struct TestAuthority {
    pub(crate) directory: TempDir,
    pub(crate) authority: Authority,
}

impl TestAuthority {
    /// Creates the authority of a trust domain such as `cluster.local`.
    pub(crate) fn new(trust_domain: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let trust_domain = TrustDomain::new(trust_domain).unwrap();
        let authority = Authority::open_or_create(directory.path(), &trust_domain, now()).unwrap();
        Self { directory, authority }
    }

    /// Returns a credential for the workload `<account>-1`, valid for a day from now.
    pub(crate) fn issue_credential(&self, id: &SpiffeId) -> Credential {
        self.issue_credential_at(id, LEAF_LIFETIME, now())
    }

    /// Returns a credential for the workload `<account>-1`, valid for `lifetime` from `now`.
    pub(crate) fn issue_credential_at(
        &self,
        id: &SpiffeId,
        lifetime: Duration,
        now: SystemTime,
    ) -> Credential {
        issue_member_credential(&self.authority, id, lifetime, now)
    }

    /// Signs a certificate for the account `ratings` with the key of the authority, after `edit` has changed its parameters.
    /// The authority itself would not issue such a certificate. Returns the chain, and the key of the certificate.
    pub(crate) fn forge_certificate(
        &self,
        edit: impl FnOnce(&mut CertificateParams),
    ) -> (Vec<CertificateDer<'static>>, PrivateKey) {
        let key = PrivateKey::generate();
        let mut parameters = CertificateParams::default();
        let id = workload_id("ratings").to_string();
        parameters.not_before = (now() - Duration::from_secs(60)).into();
        parameters.not_after = (now() + Duration::from_secs(3600)).into();
        parameters.distinguished_name = DistinguishedName::new();
        parameters.subject_alt_names = vec![SanType::URI(id.try_into().unwrap())];
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        edit(&mut parameters);
        let certificate = self.authority.issue_certificate(&parameters, key.key_pair()).unwrap();
        (vec![certificate], key)
    }
}

/// Returns a credential for the workload `<account>-1`, signed by the authority and valid for `lifetime` from `now`.
pub(crate) fn issue_member_credential(
    authority: &Authority,
    id: &SpiffeId,
    lifetime: Duration,
    now: SystemTime,
) -> Credential {
    let key = PrivateKey::generate();
    let request = CertificateRequest::from_der(&key.certificate_request()).unwrap();
    let workload = workload_name(&format!("{}-1", id.account.name));
    let subject = CertificateSubject { id, workload: Some(&workload), instance: None };
    let issued = authority.sign(&request, subject, lifetime, now);
    Credential::new(key, issued.unwrap()).unwrap()
}

pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// Returns an account of bookinfo in cluster.local.
pub(crate) fn workload_id(account: &str) -> SpiffeId {
    format!("spiffe://cluster.local/ns/bookinfo/sa/{account}").parse().unwrap()
}

/// Returns the name of a workload of the namespace bookinfo.
pub(crate) fn workload_name(name: &str) -> WorkloadName {
    WorkloadName::new("bookinfo", name).unwrap()
}

/// The result of a handshake at each end.
pub(crate) struct HandshakeResult {
    pub(crate) client: Result<ClientConnection, Error>,
    pub(crate) server: Result<ServerConnection, Error>,
}

/// Runs a handshake until both ends have no more bytes to send, including tickets.
pub(crate) fn run_handshake(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
) -> HandshakeResult {
    run_handshake_for_name("ratings.bookinfo.svc.cluster.local", client, server)
}

/// Runs a handshake like [`run_handshake`], in which the client requests this server name.
pub(crate) fn run_handshake_for_name(
    name: &'static str,
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
) -> HandshakeResult {
    let name = ServerName::try_from(name).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    let (mut client_error, mut server_error) = (None, None);
    for _ in 0..MAX_ROUNDS {
        let has_sent = transfer_pending(&mut client, &mut server, &mut server_error);
        let has_replied = transfer_pending(&mut server, &mut client, &mut client_error);
        if !has_sent && !has_replied {
            let to_result = |error: Option<Error>| error.map_or(Ok(()), Err);
            return HandshakeResult {
                client: to_result(client_error).map(|()| client),
                server: to_result(server_error).map(|()| server),
            };
        }
    }
    panic!("the handshake does not end");
}

/// Transfers the pending bytes of one end to the other, and stores the error of the receiver, if any. Returns false if no
/// bytes were pending.
fn transfer_pending<A, B>(
    from: &mut rustls::ConnectionCommon<A>,
    to: &mut rustls::ConnectionCommon<B>,
    error: &mut Option<Error>,
) -> bool {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).unwrap();
    }
    let mut remaining = bytes.as_slice();
    while !remaining.is_empty() && error.is_none() {
        to.read_tls(&mut remaining).unwrap();
        *error = to.process_new_packets().err();
    }
    !bytes.is_empty()
}

/// Maximum number of exchanges in a handshake.
const MAX_ROUNDS: usize = 10;

/// A directory that all users may write to, like `/tmp`, with directories of two users.
pub(crate) struct SharedDirectory {
    scratch: TempDir,
    /// The user that performs the checks.
    pub(crate) user_id: u32,
    /// The owner of the directories that the checks reject.
    pub(crate) other_user_id: u32,
}

impl SharedDirectory {
    pub(crate) fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let own_user_id = rustix::process::geteuid().as_raw();
        // Without permission to change owners, the checks are for another user.
        match own_user_id {
            0 => Self { scratch, user_id: 0, other_user_id: 54_321 },
            _ => Self { scratch, user_id: own_user_id + 1, other_user_id: own_user_id },
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.scratch.path()
    }

    /// Creates a directory of the other user.
    pub(crate) fn create_for_other_user(&self, name: &str) -> PathBuf {
        let path = self.create_own(name);
        self.change_owner(&path);
        path
    }

    /// Creates a directory of the test's user.
    pub(crate) fn create_own(&self, name: &str) -> PathBuf {
        self.create_in(self.path(), name)
    }

    /// Creates a directory in another directory.
    pub(crate) fn create_in(&self, parent: &Path, name: &str) -> PathBuf {
        let path = parent.join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    /// Changes the owner of a directory or link to the other user.
    pub(crate) fn change_owner(&self, path: &Path) {
        if self.user_id == 0 {
            std::os::unix::fs::lchown(path, Some(self.other_user_id), None).unwrap();
        }
    }
}

//! Tests the synchronization of an authority between directories and a Secret, with a minimal API server.

use leno_identity::Rotation;
use tempfile::TempDir;

use super::*;
use crate::testing::Server;

impl Server {
    fn stored_secret(&self) -> Option<Secret> {
        let store = self.store.lock().unwrap();
        let object = store.objects.get("/api/v1/namespaces/leno-system/secrets/leno-authority");
        object.map(|object| serde_json::from_value(object.clone()).unwrap())
    }

    fn published_roots(&self) -> String {
        let store = self.store.lock().unwrap();
        let object = &store.objects["/api/v1/namespaces/leno-system/configmaps/leno-roots"];
        object["data"]["roots.pem"].as_str().unwrap().to_owned()
    }

    fn delete_secret(&self) {
        self.store.lock().unwrap().objects.retain(|path, _| !path.contains("/secrets/"));
    }
}

fn test_domain() -> TrustDomain {
    TrustDomain::new("cluster.local").unwrap()
}

/// Creates a replica and its directory.
fn create_replica(server: &Server) -> (SharedAuthority, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let authority_dir = dir.path().join("authority");
    (
        SharedAuthority::new(
            server.client.clone(),
            &NamespaceName::from_literal("leno-system"),
            &authority_dir,
            test_domain(),
        ),
        dir,
    )
}

fn read_files(dir: &TempDir) -> AuthorityFiles {
    AuthorityFiles::read(&dir.path().join("authority")).unwrap()
}

fn read_rotation(dir: &TempDir) -> Rotation {
    Rotation::for_authority(&dir.path().join("authority"), test_domain())
}

#[tokio::test]
async fn all_replicas_use_the_authority_of_the_first() {
    let server = Server::start_server().await;
    let ((mut first_replica, first), (mut second_replica, second)) =
        (create_replica(&server), create_replica(&server));
    let source = first_replica.establish_authority().await.unwrap();
    assert_eq!(source, AuthoritySource::BuiltIn(first.path().join("authority")));
    // The other replica looked too early and created its own authority.
    server.store.lock().unwrap().missed_reads = 2;
    let other = second_replica.establish_authority().await.unwrap();
    assert!(read_files(&first) == read_files(&second));
    let now = SystemTime::now();
    let roots = other.open(&test_domain(), now).unwrap().roots().to_pem();
    assert_eq!(roots, source.open(&test_domain(), now).unwrap().roots().to_pem());
    assert_eq!(server.published_roots(), roots);
}

#[tokio::test]
async fn a_change_in_one_replica_reaches_the_others() {
    let server = Server::start_server().await;
    let ((mut first_replica, first), (mut second_replica, second)) =
        (create_replica(&server), create_replica(&server));
    first_replica.establish_authority().await.unwrap();
    second_replica.establish_authority().await.unwrap();
    read_rotation(&first).add_root(SystemTime::now()).unwrap();
    let before = server.stored_secret();
    first_replica.write_changes_to_secret().await;
    assert!(server.stored_secret() == before, "a step may have several files");
    first_replica.write_changes_to_secret().await;
    second_replica.adopt_changed_secret(server.stored_secret().unwrap());
    assert!(read_files(&second) == read_files(&first) && read_files(&first).iter().count() == 3);
    assert_eq!(server.published_roots(), read_files(&first).root_pem().unwrap());
    // The watch reports the replica's own change only after the next change is made.
    let own = server.stored_secret().unwrap();
    read_rotation(&first).activate_root(SystemTime::now()).unwrap();
    let switched = read_files(&first);
    first_replica.adopt_changed_secret(own);
    assert!(read_files(&first) == switched);
    first_replica.write_changes_to_secret().await;
    first_replica.write_changes_to_secret().await;
    second_replica.adopt_changed_secret(server.stored_secret().unwrap());
    assert!(read_files(&second) == switched);
}

#[tokio::test]
async fn of_two_concurrent_changes_the_first_wins() {
    let server = Server::start_server().await;
    let ((mut first_replica, first), (mut second_replica, second)) =
        (create_replica(&server), create_replica(&server));
    first_replica.establish_authority().await.unwrap();
    second_replica.establish_authority().await.unwrap();
    for (replica, dir) in [(&mut first_replica, &first), (&mut second_replica, &second)] {
        read_rotation(dir).add_root(SystemTime::now()).unwrap();
        replica.write_changes_to_secret().await;
        replica.write_changes_to_secret().await;
    }
    assert!(read_files(&first) != read_files(&second));
    second_replica.adopt_changed_secret(server.stored_secret().unwrap());
    assert!(read_files(&first) == read_files(&second));
}

#[tokio::test]
async fn an_invalid_or_deleted_secret_leaves_the_authority_in_use() {
    let server = Server::start_server().await;
    let (mut first_replica, first) = create_replica(&server);
    first_replica.establish_authority().await.unwrap();
    let before = read_files(&first);
    first_replica.adopt_changed_secret(Secret { data: None, ..server.stored_secret().unwrap() });
    assert!(read_files(&first) == before);
    server.delete_secret();
    // Members have certificates of the authority, but the new control plane has no authority.
    let (mut new, _dir) = create_replica(&server);
    let lost = new.establish_authority().await.unwrap_err().to_string();
    assert!(lost.contains("restore the Secret"), "{lost}");
    first_replica.restore_secret().await;
    server.store.lock().unwrap().missed_reads = 1;
    new.establish_authority().await.unwrap();
    assert!(read_authority_files(&server.stored_secret().unwrap()) == before);
    // Entries of other writers are preserved.
    let mut secret = server.stored_secret().unwrap();
    secret.data.get_or_insert_default().insert("note".to_owned(), ByteString(b"x".to_vec()));
    fill_secret(&mut secret, &before);
    assert!(secret.data.unwrap().contains_key("note"));
    let (mut second_replica, _second) = create_replica(&server);
    server.store.lock().unwrap().objects.values_mut().for_each(|object| object["data"] = json!({}));
    let rejected = second_replica.establish_authority().await.unwrap_err().to_string();
    assert!(rejected.contains("`ca.key` and `ca.pem`"), "{rejected}");
}

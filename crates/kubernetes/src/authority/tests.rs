//! Synchronization of an authority between directories and a Secret, with a minimal API server.

use leno_identity::Rotation;
use tempfile::TempDir;

use super::*;
use crate::testing::Server;

impl Server {
    fn stored_secret(&self) -> Option<Secret> {
        let store = self.store.lock().unwrap();
        let held = store.objects.get("/api/v1/namespaces/leno-system/secrets/leno-authority");
        held.map(|held| serde_json::from_value(held.clone()).unwrap())
    }

    fn published_roots(&self) -> String {
        let store = self.store.lock().unwrap();
        let held = &store.objects["/api/v1/namespaces/leno-system/configmaps/leno-roots"];
        held["data"]["roots.pem"].as_str().unwrap().to_owned()
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
    let place = dir.path().join("authority");
    (
        SharedAuthority::new(
            server.client.clone(),
            &NamespaceName::from_literal("leno-system"),
            &place,
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
async fn whoever_is_first_decides_and_all_others_have_the_same() {
    let server = Server::start_server().await;
    let ((mut one, first), (mut two, second)) = (create_replica(&server), create_replica(&server));
    let source = one.establish_authority().await.unwrap();
    assert_eq!(source, AuthoritySource::Own(first.path().join("authority")));
    // The other replica looked too early and created its own authority.
    server.store.lock().unwrap().blind = 2;
    let other = two.establish_authority().await.unwrap();
    assert!(read_files(&first) == read_files(&second));
    let now = SystemTime::now();
    let roots = other.open(&test_domain(), now).unwrap().roots().to_pem();
    assert_eq!(roots, source.open(&test_domain(), now).unwrap().roots().to_pem());
    assert_eq!(server.published_roots(), roots);
}

#[tokio::test]
async fn what_is_changed_in_one_replica_arrives_in_the_others() {
    let server = Server::start_server().await;
    let ((mut one, first), (mut two, second)) = (create_replica(&server), create_replica(&server));
    one.establish_authority().await.unwrap();
    two.establish_authority().await.unwrap();
    read_rotation(&first).add_root(SystemTime::now()).unwrap();
    let before = server.stored_secret();
    one.write_changes().await;
    assert!(server.stored_secret() == before, "a step may have several files");
    one.write_changes().await;
    two.follow_secret(server.stored_secret().unwrap());
    assert!(read_files(&second) == read_files(&first) && read_files(&first).iter().count() == 3);
    assert_eq!(server.published_roots(), read_files(&first).root_pem().unwrap());
    // Its own change comes back after it has made the next one.
    let own = server.stored_secret().unwrap();
    read_rotation(&first).activate_root(SystemTime::now()).unwrap();
    let switched = read_files(&first);
    one.follow_secret(own);
    assert!(read_files(&first) == switched);
    one.write_changes().await;
    one.write_changes().await;
    two.follow_secret(server.stored_secret().unwrap());
    assert!(read_files(&second) == switched);
}

#[tokio::test]
async fn of_two_changes_at_once_the_first_counts() {
    let server = Server::start_server().await;
    let ((mut one, first), (mut two, second)) = (create_replica(&server), create_replica(&server));
    one.establish_authority().await.unwrap();
    two.establish_authority().await.unwrap();
    for (replica, dir) in [(&mut one, &first), (&mut two, &second)] {
        read_rotation(dir).add_root(SystemTime::now()).unwrap();
        replica.write_changes().await;
        replica.write_changes().await;
    }
    assert!(read_files(&first) != read_files(&second));
    two.follow_secret(server.stored_secret().unwrap());
    assert!(read_files(&first) == read_files(&second));
}

#[tokio::test]
async fn a_secret_that_is_broken_or_gone_takes_nothing_from_anybody() {
    let server = Server::start_server().await;
    let (mut one, first) = create_replica(&server);
    one.establish_authority().await.unwrap();
    let before = read_files(&first);
    one.follow_secret(Secret { data: None, ..server.stored_secret().unwrap() });
    assert!(read_files(&first) == before);
    server.delete_secret();
    // Members have certificates of the authority, but a new control plane does not have it.
    let (mut new, _dir) = create_replica(&server);
    let lost = new.establish_authority().await.unwrap_err().to_string();
    assert!(lost.contains("restore the Secret"), "{lost}");
    one.restore_secret().await;
    server.store.lock().unwrap().blind = 1;
    new.establish_authority().await.unwrap();
    assert!(files_of(&server.stored_secret().unwrap()) == before);
    // Entries of other writers are preserved.
    let mut secret = server.stored_secret().unwrap();
    secret.data.get_or_insert_default().insert("note".to_owned(), ByteString(b"x".to_vec()));
    fill_secret(&mut secret, &before);
    assert!(secret.data.unwrap().contains_key("note"));
    let (mut two, _second) = create_replica(&server);
    server.store.lock().unwrap().objects.values_mut().for_each(|held| held["data"] = json!({}));
    let rejected = two.establish_authority().await.unwrap_err().to_string();
    assert!(rejected.contains("`ca.key` and `ca.pem`"), "{rejected}");
}

//! Synchronization of an authority between directories and a Secret, with a minimal API server.

use leno_identity::Rotation;
use tempfile::TempDir;

use super::*;
use crate::testing::Server;

impl Server {
    fn secret(&self) -> Option<Secret> {
        let store = self.store.lock().unwrap();
        let held = store.objects.get("/api/v1/namespaces/leno-system/secrets/leno-authority");
        held.map(|held| serde_json::from_value(held.clone()).unwrap())
    }

    fn roots(&self) -> String {
        let store = self.store.lock().unwrap();
        let held = &store.objects["/api/v1/namespaces/leno-system/configmaps/leno-roots"];
        held["data"]["roots.pem"].as_str().unwrap().to_owned()
    }

    fn forget(&self) {
        self.store.lock().unwrap().objects.retain(|path, _| !path.contains("/secrets/"));
    }
}

fn domain() -> TrustDomain {
    TrustDomain::new("cluster.local").unwrap()
}

/// Creates a replica and its directory.
fn replica(server: &Server) -> (SharedAuthority, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("authority");
    (
        SharedAuthority::new(
            server.client.clone(),
            &NamespaceName::literal("leno-system"),
            &place,
            domain(),
        ),
        dir,
    )
}

fn files(dir: &TempDir) -> AuthorityFiles {
    AuthorityFiles::read(&dir.path().join("authority")).unwrap()
}

fn rotation(dir: &TempDir) -> Rotation {
    Rotation::of(&dir.path().join("authority"), domain())
}

#[tokio::test]
async fn whoever_is_first_decides_and_all_others_have_the_same() {
    let server = Server::open().await;
    let ((mut one, first), (mut two, second)) = (replica(&server), replica(&server));
    let source = one.establish().await.unwrap();
    assert_eq!(source, AuthoritySource::Own(first.path().join("authority")));
    // The other replica looked too early and created its own authority.
    server.store.lock().unwrap().blind = 2;
    let other = two.establish().await.unwrap();
    assert!(files(&first) == files(&second));
    let now = SystemTime::now();
    let roots = other.open(&domain(), now).unwrap().roots().to_pem();
    assert_eq!(roots, source.open(&domain(), now).unwrap().roots().to_pem());
    assert_eq!(server.roots(), roots);
}

#[tokio::test]
async fn what_is_changed_in_one_replica_arrives_in_the_others() {
    let server = Server::open().await;
    let ((mut one, first), (mut two, second)) = (replica(&server), replica(&server));
    one.establish().await.unwrap();
    two.establish().await.unwrap();
    rotation(&first).add(SystemTime::now()).unwrap();
    let before = server.secret();
    one.offer().await;
    assert!(server.secret() == before, "a step may have several files");
    one.offer().await;
    two.follow(server.secret().unwrap());
    assert!(files(&second) == files(&first) && files(&first).iter().count() == 3);
    assert_eq!(server.roots(), files(&first).roots().unwrap());
    // Its own change comes back after it has made the next one.
    let own = server.secret().unwrap();
    rotation(&first).switch(SystemTime::now()).unwrap();
    let switched = files(&first);
    one.follow(own);
    assert!(files(&first) == switched);
    one.offer().await;
    one.offer().await;
    two.follow(server.secret().unwrap());
    assert!(files(&second) == switched);
}

#[tokio::test]
async fn of_two_changes_at_once_the_first_counts() {
    let server = Server::open().await;
    let ((mut one, first), (mut two, second)) = (replica(&server), replica(&server));
    one.establish().await.unwrap();
    two.establish().await.unwrap();
    for (replica, dir) in [(&mut one, &first), (&mut two, &second)] {
        rotation(dir).add(SystemTime::now()).unwrap();
        replica.offer().await;
        replica.offer().await;
    }
    assert!(files(&first) != files(&second));
    two.follow(server.secret().unwrap());
    assert!(files(&first) == files(&second));
}

#[tokio::test]
async fn a_secret_that_is_broken_or_gone_takes_nothing_from_anybody() {
    let server = Server::open().await;
    let (mut one, first) = replica(&server);
    one.establish().await.unwrap();
    let before = files(&first);
    one.follow(Secret { data: None, ..server.secret().unwrap() });
    assert!(files(&first) == before);
    server.forget();
    // Members have certificates of the authority, but a new control plane does not have it.
    let (mut new, _dir) = replica(&server);
    let lost = new.establish().await.unwrap_err().to_string();
    assert!(lost.contains("restore the Secret"), "{lost}");
    one.restore().await;
    server.store.lock().unwrap().blind = 1;
    new.establish().await.unwrap();
    assert!(files_of(&server.secret().unwrap()) == before);
    // Entries of other writers are preserved.
    let mut secret = server.secret().unwrap();
    secret.data.get_or_insert_default().insert("note".to_owned(), ByteString(b"x".to_vec()));
    fill(&mut secret, &before);
    assert!(secret.data.unwrap().contains_key("note"));
    let (mut two, _second) = replica(&server);
    server.store.lock().unwrap().objects.values_mut().for_each(|held| held["data"] = json!({}));
    let refused = two.establish().await.unwrap_err().to_string();
    assert!(refused.contains("`ca.key` and `ca.pem`"), "{refused}");
}

//! Order of updates and statuses.

use kube::core::ApiResource;
use serde_json::json;

use super::event::ConvertedObject;
use super::*;

#[tokio::test]
async fn an_object_is_said_to_be_programmed_when_it_is_on_its_way() {
    let served = served_kinds().into_iter().find(|kind| kind.kind == "Hedging").unwrap();
    let resource = Arc::new(ApiResource {
        group: served.group.to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: served.api_versions[0].to_owned(),
        kind: served.kind.to_owned(),
        plural: "hedgings".to_owned(),
    });
    let object = json!({
        "metadata": {"name": "h", "namespace": "shop", "uid": "u", "generation": 1},
        "spec": {"targetRefs": [{"kind": "Service", "name": "web"}], "after": "50ms"},
    });
    let seen =
        ConvertedObject::from_custom(served, &resource, serde_json::from_value(object).unwrap());
    let (event, reported) = mpsc::channel(4);
    for it in [WatchEvent::Begin, WatchEvent::Seen(Box::new(seen)), WatchEvent::Complete] {
        event.send((0, it)).await.unwrap();
    }
    let out = Out {
        progress: watch::Sender::new(ListProgress {
            waiting: vec!["Hedging"],
            forbidden: Vec::new(),
        }),
        statements: watch::Sender::default(),
        desired: watch::Sender::default(),
        external_principals: watch::Sender::default(),
        exclusions: watch::Sender::default(),
        floor: watch::Sender::default(),
        secrets: watch::Sender::default(),
    };
    let (mut progress, mut statements) = (out.progress.subscribe(), out.statements.subscribe());
    let outcomes = watch::Sender::default();
    let joined = Joined {
        store: ObjectStore::new(vec![WatchedKind::Custom(served)]),
        options: SourceOptions { quiet: Duration::ZERO, ..SourceOptions::default() },
        out,
        reported,
        outcomes: outcomes.subscribe(),
        unwritten: watch::Sender::default().subscribe(),
        failed: None,
    };
    let (updates, mut queue) = mpsc::channel(1);
    let full = updates.clone().reserve_owned().await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(joined.run(updates));
    // All kinds are listed, and the queue of the control plane is full.
    progress.wait_for(ListProgress::is_synced).await.unwrap();
    assert!(!statements.has_changed().unwrap(), "said before it is on its way");
    drop(full);
    queue.recv().await.unwrap();
    let all = statements.wait_for(|all| !all.is_empty()).await.unwrap().clone();
    assert_eq!(all[0].target.name, "h");
}

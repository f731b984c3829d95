//! Tests the order of updates and statuses.

use kube::core::ApiResource;
use serde_json::json;

use super::event::ConvertedObject;
use super::*;

#[tokio::test]
async fn an_object_is_reported_as_programmed_only_after_its_update_was_sent() {
    let kind = served_kinds().into_iter().find(|kind| kind.kind == "Hedging").unwrap();
    let resource = Arc::new(ApiResource {
        group: kind.group.to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: kind.api_versions[0].to_owned(),
        kind: kind.kind.to_owned(),
        plural: "hedgings".to_owned(),
    });
    let object = json!({
        "metadata": {"name": "h", "namespace": "shop", "uid": "u", "generation": 1},
        "spec": {"targetRefs": [{"kind": "Service", "name": "web"}], "after": "50ms"},
    });
    let object =
        ConvertedObject::from_custom(kind, &resource, serde_json::from_value(object).unwrap());
    let (sender, events) = mpsc::channel(4);
    for event in
        [WatchEvent::ListStarted, WatchEvent::Applied(Box::new(object)), WatchEvent::ListComplete]
    {
        sender.send((0, event)).await.unwrap();
    }
    let outputs = Outputs {
        progress: watch::Sender::new(ListProgress {
            unlisted: vec!["Hedging"],
            forbidden: Vec::new(),
        }),
        desired_statuses: watch::Sender::default(),
        desired_gateways: watch::Sender::default(),
        external_principals: watch::Sender::default(),
        exclusions: watch::Sender::default(),
        floor: watch::Sender::default(),
        referenced_secrets: watch::Sender::default(),
    };
    let (mut progress, mut statuses) =
        (outputs.progress.subscribe(), outputs.desired_statuses.subscribe());
    let outcome_sender = watch::Sender::default();
    let event_loop = EventLoop {
        store: ObjectStore::new(vec![WatchedKind::Custom(kind)]),
        options: SourceOptions { quiet_period: Duration::ZERO, ..SourceOptions::default() },
        outputs,
        events,
        certificate_outcomes: outcome_sender.subscribe(),
        unwritten_statuses: watch::Sender::default().subscribe(),
        last_failure: None,
    };
    let (update_sender, mut update_receiver) = mpsc::channel(1);
    let permit = update_sender.clone().reserve_owned().await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(event_loop.run(update_sender));
    // All kinds are listed, but the full queue of the control plane delays the update.
    progress.wait_for(ListProgress::is_synced).await.unwrap();
    assert!(!statuses.has_changed().unwrap(), "reported before the update was sent");
    drop(permit);
    update_receiver.recv().await.unwrap();
    let published = statuses.wait_for(|statuses| !statuses.is_empty()).await.unwrap().clone();
    assert_eq!(published[0].target.name, "h");
}

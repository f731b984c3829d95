//! Tests the retries and the single report of a status that cannot be written.

use super::*;
use crate::testing::Server;
use kube::core::ApiResource;

fn rejected_route() -> DesiredStatus {
    let condition = StatusCondition {
        name: "Accepted",
        status: "True",
        reason: "Accepted",
        message: "in force".to_owned(),
    };
    DesiredStatus {
        target: StatusTarget {
            kind: "JwtValidation",
            namespace: "shop".to_owned(),
            name: "api".to_owned(),
            uid: "u".to_owned(),
        },
        resource: Arc::new(ApiResource {
            group: "leno.dev".to_owned(),
            version: "v1alpha1".to_owned(),
            api_version: "leno.dev/v1alpha1".to_owned(),
            kind: "JwtValidation".to_owned(),
            plural: "jwtvalidations".to_owned(),
        }),
        resource_version: "1".to_owned(),
        generation: 1,
        current_status: Value::Null,
        content: StatusContent::Conditions(vec![condition]),
        rejection: None,
        diagnostic: None,
        conflict: None,
        missing_reference: None,
    }
}

#[tokio::test]
async fn a_status_that_cannot_be_written_is_retried_and_reported_once() {
    let server = Server::start_server().await;
    server.store.lock().unwrap().forbidden = Some(("PATCH", "/status"));
    let (unwritten_statuses, reported) = watch::channel(Arc::default());
    let client = server.client.clone();
    let mut writer = StatusWriter {
        client,
        name: "one".to_owned(),
        written_statuses: HashMap::new(),
        unwritten_statuses,
    };
    let desired = rejected_route();
    let patches = |server: &Server| {
        let requests = &server.store.lock().unwrap().requests;
        requests
            .iter()
            .filter(|request| request.starts_with("PATCH") && request.ends_with("/status"))
            .count()
    };
    let events = |server: &Server| -> Vec<Value> {
        server.store.lock().unwrap().objects.values().cloned().collect()
    };
    writer.write_desired(&desired).await;
    writer.write_desired(&desired).await;
    assert_eq!(patches(&server), 1, "it is not tried again at once");
    writer.publish_failures(true);
    let warnings: Vec<String> = reported.borrow().iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].starts_with("JwtValidation shop/api: status: the API server"));
    // Each delay is twice as long as the one before, up to a limit.
    let mut retry_delays = Vec::new();
    for _ in 0..9 {
        let written_status = writer.written_statuses.get_mut(&desired.target).unwrap();
        let retry_delay = written_status.failure.as_ref().unwrap().retry_delay;
        retry_delays.push(retry_delay.as_secs());
        let soon = written_status.attempt_time + retry_delay - Duration::from_millis(1);
        assert!(written_status.is_current(&desired, soon));
        assert!(!written_status.is_current(&desired, written_status.attempt_time + retry_delay));
        written_status.attempt_time -= retry_delay;
        writer.write_desired(&desired).await;
    }
    assert_eq!(retry_delays, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
    assert_eq!(patches(&server), 10);
    let [event] = &events(&server)[..] else { panic!("the object has one event") };
    assert_eq!(event["reason"], "StatusUpdateFailed");
    // A control plane that is not the leader reports no failures, because the leader does so.
    writer.publish_failures(false);
    assert!(reported.borrow().is_empty());
    server.store.lock().unwrap().forbidden = None;
    let written_status = writer.written_statuses.get_mut(&desired.target).unwrap();
    written_status.attempt_time -= MAX_RETRY_DELAY;
    writer.write_desired(&desired).await;
    assert!(writer.written_statuses[&desired.target].failure.is_none());
    writer.publish_failures(true);
    assert!(reported.borrow().is_empty(), "it is written");
}

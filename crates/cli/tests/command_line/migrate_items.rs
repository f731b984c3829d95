//! Tests of `leno migrate` for items of Sermant's configuration center.

use crate::run::TestDirectory;

/// Keys and values as the pages of a configuration center display them.
const ITEMS: &str = r#"
# Of the application shop.
servicecomb.routeRule.orders: |
  - kind: routematcher.sermant.io/flow
    rules:
      - precedence: 1
        match: {headers: {id: {exact: "1"}}}
        route: [{weight: 100, tags: {version: "2"}}]
sermant.removal.config:
  enableRemoval: true
servicecomb.matchGroup.checkout:
  services: "orders,stock"
  matches:
  - {apiPath: {prefix: /pay.}, method: [POST, PUT], headers: {x-tier: {exact: gold}}}
servicecomb.rateLimiting.checkout: {rate: 10, limitRefreshPeriod: 500}
servicecomb.faultInjection.checkout: {type: abort, percentage: 20, errorCode: 503}
servicecomb.bulkhead.checkout: {maxConcurrentCalls: 5}
servicecomb.matchGroup.clients:
  matches: [{name: all, serviceName: stock}]
servicecomb.circuitBreaker.clients: {slidingWindowSize: 10S, failureRateThreshold: 40}
servicecomb.retry.clients: {maxAttempts: 2}
servicecomb.retry.nobody: {maxAttempts: 2}
servicecomb.matchGroup.nothing: {matches: []}
servicecomb.tagRule: []
"#;

/// A response of the ServiceComb KIE API.
const RESPONSE: &str = r#"
total: 3
data:
- {key: servicecomb.matchGroup.a, value: "services: web", labels: {app: shop}}
- {key: servicecomb.rateLimiting.a, value: "rate: 5", labels: {app: shop}}
- {key: servicecomb.faultInjection.a, value: "{type: delay, percentage: 5, delayTime: 2S}", status: disabled}
"#;

#[test]
fn items_become_policies_or_are_reported() {
    let test_directory = TestDirectory::with_files(&[("old/items.yaml", ITEMS)]);
    let result =
        test_directory.run_leno(&["migrate", "-f", "old", "-o", "new", "--namespace", "shop"]);
    assert_eq!(result.exit_code, Some(3), "{result:?}");
    for (item, expected) in [
        ("SermantRouteRule shop/route-rule-orders", "TagRoute shop/route-rule-orders"),
        ("SermantRemoval shop/sermant-removal-config", "another algorithm"),
        (
            "item servicecomb.matchGroup.checkout",
            "its conditions are part of the converted rules of its scenario",
        ),
        ("item servicecomb.rateLimiting.checkout", "is RateLimit shop/checkout, but: tokens are"),
        ("item servicecomb.faultInjection.checkout", "is FaultInjection shop/checkout, but: "),
        ("item servicecomb.bulkhead.checkout", "write `concurrency` of a RateLimit"),
        (
            "item servicecomb.circuitBreaker.clients",
            "is CircuitBreaker shop/clients, but: failures",
        ),
        ("item servicecomb.retry.clients", "write `retry` of an HTTPRoute rule, by hand"),
        ("item servicecomb.retry.nobody", "no servicecomb.matchGroup.nobody"),
        ("item servicecomb.matchGroup.nothing", "no rule of its scenario is converted"),
        ("item servicecomb.tagRule", "publish it under servicecomb.routeRule manually"),
    ] {
        let reported = result.stdout.lines().find(|line| line.contains(&format!("{item} (")));
        assert!(reported.is_some_and(|line| line.contains(expected)), "{item}: {reported:?}");
    }
    // Without a rule that rejects requests, the migrated mesh permits more.
    for (item, widens) in
        [("servicecomb.bulkhead.checkout", true), ("servicecomb.retry.clients", false)]
    {
        let mut lines = result.stdout.lines();
        let reported = lines.find(|line| line.contains(&format!("item {item} ("))).expect(item);
        assert_eq!(reported.contains("access may become wider"), widens, "{reported}");
    }
    let check = ["migrate", "check", "-f", "old", "--namespace", "shop"];
    let check_output = test_directory.run_leno(&check).stdout;
    assert!(check_output.contains("is RateLimit shop/checkout, but: "), "{check_output}");
    let new =
        std::fs::read_to_string(test_directory.path().join("new/items.yaml")).expect("a file");
    let (objects, rejected) = leno_registry::read_str("new", &new);
    assert_eq!((objects.len(), rejected), (5, Vec::new()), "{new}");
    let limit = "requests: 20\n    per: \"1s\"\n    burst: 10\n";
    assert!(new.contains(limit) && new.contains("method: PUT\n"), "{new}");
}

#[test]
fn items_without_valid_yaml_are_dropped() {
    let items = "data:\n- {key: servicecomb.matchGroup.a, value: \"services: web\"}\n\
                 - {key: servicecomb.rateLimiting.a, value: \"{rate: 5\"}\n";
    let test_directory = TestDirectory::with_files(&[("old/kie.yaml", items)]);
    let result = test_directory.run_leno(&["migrate", "-f", "old", "-o", "new"]);
    let expected = "dropped: item servicecomb.rateLimiting.a (old/kie.yaml:1): not YAML, or empty; access may \
        become wider: no other rule denies or limits the same requests";
    assert!(result.stdout.lines().any(|line| line == expected), "{}", result.stdout);
    assert!(!result.stdout.contains("is RateLimit"), "{}", result.stdout);
}

#[test]
fn responses_of_a_configuration_center_are_items() {
    let test_directory = TestDirectory::with_files(&[("old/kie.yaml", RESPONSE)]);
    let result = test_directory.run_leno(&["migrate", "-f", "old", "-o", "new"]);
    assert_eq!(result.exit_code, Some(3), "{result:?}");
    assert!(result.stdout.contains("is RateLimit default/a, but: "), "{}", result.stdout);
    assert!(!result.stdout.contains("faultInjection"), "{}", result.stdout);
}

#[test]
fn items_without_a_native_form_are_reported_with_their_field() {
    let group = "servicecomb.matchGroup.a: {services: web}\n";
    for (items, reason) in [
        (
            "servicecomb.rateLimiting.a: {timeoutDuration: 5}",
            "timeoutDuration: requests are not queued",
        ),
        ("servicecomb.rateLimiting.a: {rate: x}", "rate: \"x\" is not an integer"),
        ("servicecomb.rateLimiting.a: {speed: 1}", "speed: unknown field"),
        ("servicecomb.faultInjection.a: {type: delay}", "percentage: not between 1 and 100"),
        ("servicecomb.circuitBreaker.a: {forceOpen: true}", "forceOpen: a manual switch"),
        ("servicecomb.circuitBreaker.a: {}", "set only `serviceName`"),
        ("servicecomb.instanceIsolation.a: {}", "write an OutlierDetection"),
        ("servicecomb.system.a: {qps: 5}", "`concurrency.adaptive`"),
    ] {
        let items = format!("{group}{items}\n");
        let test_directory = TestDirectory::with_files(&[("old/items.yaml", items.as_str())]);
        let result = test_directory.run_leno(&["migrate", "-f", "old", "-o", "new"]);
        assert_eq!(result.exit_code, Some(3), "{result:?}");
        assert!(result.stdout.contains(reason), "{items} {}", result.stdout);
    }
}

#[test]
fn reasons_name_the_key() {
    let items = "servicecomb.tagRule.web: |\n  - precedence: 1\n    route: [{weight: 100, tags: {version: 1.0}}]\n\
                 servicecomb.globalLaneRule: |\n  - precedence: 1\n";
    for (text, expected) in [
        (
            items,
            "dropped: item servicecomb.tagRule.web (old/x.yaml:1): keys of `enabled-previous-rule` are \
             not supported: publish it under servicecomb.routeRule.web manually",
        ),
        (
            items,
            "dropped: item servicecomb.globalLaneRule (old/x.yaml:1): keys of `enabled-previous-rule` are \
             not supported: publish it under servicecomb.globalRouteRule manually",
        ),
        ("unrelated.key: |\n  a: b\n", "dropped: document (old/x.yaml:1): kind is missing"),
    ] {
        let test_directory = TestDirectory::with_files(&[("old/x.yaml", text)]);
        let result = test_directory.run_leno(&["migrate", "check", "-f", "old"]);
        assert!(result.stdout.lines().any(|line| line.starts_with(expected)), "{}", result.stdout);
    }
}

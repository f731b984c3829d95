//! Demo applications: bookinfo as printed by `leno demo`, and the structure of OSM's bookstore with its
//! objects.
#![allow(
    clippy::print_stderr,
    reason = "the last output of the buyers shows why a scenario failed"
)]

use std::collections::BTreeSet;
use std::time::Duration;

use leno_tests::cluster::{SidecarInjection, TestNamespace, expect_stdout, kubectl, program_image};
use leno_tests::eventually;
use leno_tests::leno_command;

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn bookinfo_serves_only_allowed_clients_in_strict_mode() {
    let namespace = TestNamespace::with_metadata(
        "bookinfo",
        "labels: {leno.dev/injection: enabled}, annotations: {leno.dev/default-policy: deny}",
    );
    let manifests = leno_command()
        .args(["demo", "--kubernetes", "--image", &program_image()])
        .output()
        .unwrap();
    let manifests = expect_stdout(&manifests);
    let (namespace_manifest, other_manifests) =
        manifests.split_once("---\n").expect("the first document is the namespace");
    assert!(
        namespace_manifest.contains("kind: Namespace")
            && !other_manifests.contains("kind: Namespace")
    );
    let namespace_line = format!("namespace: {}", namespace.name());
    namespace.apply_manifests(&other_manifests.replace("namespace: bookinfo", &namespace_line));
    namespace.create_client("traffic");
    namespace.create_client("outsider");
    namespace.wait_ready();

    let product_url = "http://productpage:9080/api/v1/products/1";
    namespace.expect_curl("traffic", &[product_url], 0, 200);
    namespace.expect_curl("traffic", &["http://gateway-ratings:9080/ratings/1"], 0, 200);
    namespace.expect_curl("traffic", &["http://ratings:9080/ratings/1"], 0, 403);
    namespace.expect_curl("outsider", &[product_url], 0, 403);
    namespace.expect_curl("outsider", &["http://ratings:9080/ratings/1"], 0, 403);

    let responding_version = |user: &[&str]| {
        let body = namespace.curl("traffic", &[&[product_url][..], user].concat()).body;
        ["v1", "v2", "v3"]
            .into_iter()
            .find(|version| body.contains(&format!("\"version\":\"{version}\"")))
    };
    let mut seen_versions = BTreeSet::new();
    eventually("versions 1 and 3 of reviews respond", MAX_WAIT, || {
        seen_versions.extend(responding_version(&[]));
        (seen_versions.len() > 1).then_some(())
    });
    assert_eq!(seen_versions, BTreeSet::from(["v1", "v3"]));
    for _ in 0..10 {
        assert_eq!(responding_version(&["-H", "end-user: jason"]), Some("v2"));
    }
}

#[test]
#[ignore = "needs a cluster: ./test kubernetes"]
fn the_bookstore_serves_the_clients_that_its_policies_allow() {
    let bookstore = Bookstore::start_bookstore();

    // `defaultPolicy: allow`: every client is served.
    bookstore.wait_for_result("bookbuyer", "200", &["bookstore-v1", "bookstore-v2"]);
    bookstore.wait_for_result("bookthief", "200", &["bookstore-v1", "bookstore-v2"]);

    // `defaultPolicy: deny` with SMI: only the buyer, and only its routes.
    bookstore.warehouse.apply_manifests(
        &WAREHOUSE_POLICIES
            .replace("STORE", bookstore.store.name())
            .replace("WAREHOUSE", bookstore.warehouse.name()),
    );
    bookstore.allow_customers(&["bookbuyer"]);
    for namespace in [&bookstore.store, &bookstore.warehouse] {
        annotate_namespace(namespace, "leno.dev/default-policy=deny");
    }
    bookstore.wait_for_result("bookthief", "403", &[]);
    bookstore.wait_for_result("bookbuyer", "200", &["bookstore-v1", "bookstore-v2"]);

    // The thief is allowed, and then rejected again. Its requests for `/books-bought` match no route, because
    // that route requires another client: as in OSM, the response is 404.
    bookstore.allow_customers(&["bookbuyer", "bookthief"]);
    bookstore.expect_attempts(
        "bookthief",
        "/buy-a-book/new",
        "200",
        &["bookstore-v1", "bookstore-v2"],
    );
    bookstore.expect_attempts("bookthief", "/books-bought", "404", &[]);
    bookstore.allow_customers(&["bookbuyer"]);
    bookstore.wait_for_result("bookthief", "403", &[]);

    // The split moves from one version to the other.
    for ((weight_v1, weight_v2), sellers) in [
        ((100, 0), &["bookstore-v1"][..]),
        ((50, 50), &["bookstore-v1", "bookstore-v2"]),
        ((0, 100), &["bookstore-v2"]),
    ] {
        bookstore.split_traffic(weight_v1, weight_v2);
        bookstore.wait_for_result("bookbuyer", "200", sellers);
    }
}

/// The namespaces of the demo.
struct Bookstore {
    buyer: TestNamespace,
    thief: TestNamespace,
    store: TestNamespace,
    warehouse: TestNamespace,
}

impl Bookstore {
    fn start_bookstore() -> Self {
        let create_meshed = |name| TestNamespace::new(name, SidecarInjection::Enabled);
        let bookstore = Self {
            buyer: create_meshed("bookbuyer"),
            thief: create_meshed("bookthief"),
            store: create_meshed("bookstore"),
            warehouse: create_meshed("bookwarehouse"),
        };
        let store_address = format!("bookstore.{}:14001", bookstore.store.name());
        let warehouse_address = format!("bookwarehouse.{}:14001", bookstore.warehouse.name());
        let database_address = format!("mysql.{}:3306", bookstore.warehouse.name());
        bookstore.warehouse.apply_manifests(&format!(
            "{MYSQL}---\n{}",
            shop_manifests(
                "bookwarehouse",
                "bookwarehouse",
                &format!("warehouse, -database, '{database_address}'")
            )
        ));
        for name in ["bookstore-v1", "bookstore-v2"] {
            let arguments = format!("store, -name, {name}, -warehouse, '{warehouse_address}'");
            bookstore.store.apply_manifests(&shop_manifests(name, "bookstore", &arguments));
        }
        for (namespace, name) in [(&bookstore.buyer, "bookbuyer"), (&bookstore.thief, "bookthief")]
        {
            let arguments = format!("buyer, -name, {name}, -store, '{store_address}'");
            namespace.apply_manifests(&shop_manifests(name, name, &arguments));
        }
        bookstore.store.apply_manifests(&service_manifest("bookstore", "app: bookstore"));
        for namespace in
            [&bookstore.warehouse, &bookstore.store, &bookstore.buyer, &bookstore.thief]
        {
            namespace.wait_ready();
        }
        bookstore
    }

    /// Applies OSM's objects with these customers of the store.
    fn allow_customers(&self, customers: &[&str]) {
        let sources: String = customers
            .iter()
            .map(|customer| {
                let namespace = if *customer == "bookbuyer" { &self.buyer } else { &self.thief };
                format!(
                    "  - {{kind: ServiceAccount, name: {customer}, namespace: {}}}\n",
                    namespace.name()
                )
            })
            .collect();
        let target = |version: &str| {
            format!(
                "---\napiVersion: access.smi-spec.io/v1alpha3\nkind: TrafficTarget\n\
                 metadata: {{name: {version}}}\nspec:\n  \
                   destination: {{kind: ServiceAccount, name: {version}, namespace: {store}}}\n  \
                   rules:\n  \
                   - {{kind: HTTPRouteGroup, name: bookstore-service-routes, matches: [buy-a-book, books-bought]}}\n  \
                   sources:\n{sources}",
                store = self.store.name(),
            )
        };
        let targets = target("bookstore-v1") + &target("bookstore-v2");
        self.store.apply_manifests(&format!("{STORE_ROUTES}{targets}"));
    }

    fn split_traffic(&self, weight_v1: u32, weight_v2: u32) {
        self.store.apply_manifests(&format!(
            "{{apiVersion: split.smi-spec.io/v1alpha2, kind: TrafficSplit, metadata: {{name: bookstore-split}}, spec: \
             {{service: bookstore.{}, backends: [{{service: bookstore-v1, weight: {weight_v1}}}, \
             {{service: bookstore-v2, weight: {weight_v2}}}]}}}}",
            self.store.name()
        ));
    }

    /// Waits until all of a customer's attempts have this result.
    fn wait_for_result(&self, customer: &str, status: &str, sellers: &[&str]) {
        for path in ["/books-bought", "/buy-a-book/new"] {
            self.expect_attempts(customer, path, status, sellers);
        }
    }

    /// Waits until the last forty attempts at a path have this status, with exactly these sellers among them.
    fn expect_attempts(&self, customer: &str, path: &str, status: &str, sellers: &[&str]) {
        let namespace = if customer == "bookbuyer" { &self.buyer } else { &self.thief };
        let expected_sellers: BTreeSet<&str> = sellers.iter().copied().collect();
        let mut last_output = String::new();
        eventually(
            &format!("{customer} gets {status} at {path} from {sellers:?}"),
            MAX_WAIT,
            || {
                let log = namespace.kubectl(&[
                    "logs",
                    "-l",
                    &format!("app={customer}"),
                    "-c",
                    "app",
                    "--tail=80",
                ]);
                let log = expect_stdout(&log);
                let attempts: Vec<Vec<&str>> = log
                    .lines()
                    .map(|line| line.split(' ').collect::<Vec<_>>())
                    .filter(|columns| columns[0] == path)
                    .collect();
                // Half of the 80 lines are about this path; one attempt may be outside the tail.
                let all_have_status =
                    attempts.len() >= 39 && attempts.iter().all(|columns| columns[1] == status);
                let seen_sellers: BTreeSet<&str> =
                    attempts.iter().filter_map(|columns| columns.get(2).copied()).collect();
                let last_attempt =
                    attempts.last().map(|columns| columns.join(" ")).unwrap_or_default();
                if last_attempt != last_output {
                    eprintln!("{customer}: {last_attempt}");
                    last_output = last_attempt;
                }
                // Rejections contain the mesh's reason, in any wording.
                let is_expected = all_have_status
                    && (expected_sellers.is_empty() || seen_sellers == expected_sellers);
                is_expected.then_some(())
            },
        );
    }
}

fn annotate_namespace(namespace: &TestNamespace, annotation: &str) {
    expect_stdout(&kubectl(&[
        "annotate",
        "--overwrite",
        "namespace",
        namespace.name(),
        annotation,
    ]));
}

/// Returns the manifests of one application of the demo: account, Deployment, and the Service of the same name.
fn shop_manifests(name: &str, app: &str, arguments: &str) -> String {
    let selector = format!("app: {app}, part: {name}");
    format!(
        "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}}}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  selector: {{matchLabels: {{{selector}}}}}
  template:
    metadata: {{labels: {{{selector}}}}}
    spec:
      serviceAccountName: {name}
      terminationGracePeriodSeconds: 1
      containers:
      - {{name: app, image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [bookstore, {arguments}]}}
---
{}",
        service_manifest(name, &selector)
    )
}

fn service_manifest(name: &str, selector: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{selector: {{{selector}}}, ports: [
  {{name: http, port: 14001, appProtocol: http}}]}}}}
"
    )
}

/// The database: a StatefulSet with a server-first protocol.
const MYSQL: &str = "
{apiVersion: v1, kind: ServiceAccount, metadata: {name: mysql}}
---
apiVersion: v1
kind: Service
metadata: {name: mysql}
spec: {clusterIP: None, selector: {app: mysql}, ports: [{name: client, port: 3306, appProtocol: tcp-server-first}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: mysql}
spec:
  serviceName: mysql
  selector: {matchLabels: {app: mysql}}
  template:
    metadata: {labels: {app: mysql}}
    spec:
      serviceAccountName: mysql
      terminationGracePeriodSeconds: 1
      containers:
      - {name: app, image: 'kc.local/testapp:1', imagePullPolicy: Never, args: [tcp, -listen, ':3306', -banner, mysql]}
";

/// The permitted requests to the store.
const STORE_ROUTES: &str = "
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: bookstore-service-routes}
spec:
  matches:
  - name: books-bought
    pathRegex: /books-bought
    methods: [GET]
    headers: [{user-agent: '.*-http-client/*.*'}, {client-app: bookbuyer}]
  - {name: buy-a-book, pathRegex: '.*a-book.*new', methods: [GET]}
  - {name: update-books-bought, pathRegex: /update-books-bought, methods: [POST]}
";

/// The permitted requests of the store to the warehouse, and of the warehouse to the database.
const WAREHOUSE_POLICIES: &str = "
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: bookwarehouse-service-routes}
spec:
  matches: [{name: restock-books, methods: [POST]}]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: bookwarehouse}
spec:
  destination: {kind: ServiceAccount, name: bookwarehouse, namespace: WAREHOUSE}
  rules: [{kind: HTTPRouteGroup, name: bookwarehouse-service-routes, matches: [restock-books]}]
  sources:
  - {kind: ServiceAccount, name: bookstore-v1, namespace: STORE}
  - {kind: ServiceAccount, name: bookstore-v2, namespace: STORE}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: TCPRoute
metadata: {name: mysql}
spec: {matches: {ports: [3306]}}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: mysql}
spec:
  destination: {kind: ServiceAccount, name: mysql, namespace: WAREHOUSE}
  rules: [{kind: TCPRoute, name: mysql}]
  sources: [{kind: ServiceAccount, name: bookwarehouse, namespace: WAREHOUSE}]
";

const MAX_WAIT: Duration = Duration::from_secs(120);

//! A Kubernetes cluster started by `./test kubernetes`, with Leno installed.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::eventually;

/// Runs `kubectl` against the cluster of this run.
///
/// # Panics
/// If there is no cluster: `./test kubernetes` sets `KUBECONFIG`.
#[must_use]
pub fn kubectl(arguments: &[&str]) -> Output {
    kubectl_with(arguments, "")
}

/// Runs `kubectl` like [`kubectl`], with this standard input.
///
/// # Panics
/// As [`kubectl`].
#[must_use]
pub fn kubectl_with(arguments: &[&str], input: &str) -> Output {
    assert!(std::env::var_os("KUBECONFIG").is_some(), "no cluster: run ./test kubernetes");
    let mut child = Command::new("kubectl")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("./test kubernetes puts kubectl into the path");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Returns the image of the program under test.
///
/// # Panics
/// As [`kubectl`].
#[must_use]
pub fn program_image() -> String {
    let image = std::env::var_os("LENO_IMAGE").expect("no cluster: run ./test kubernetes");
    image.into_string().expect("images have names of ASCII")
}

/// Returns the image for upgrades: the same program with another tag.
///
/// # Panics
/// As [`kubectl`].
#[must_use]
pub fn next_image() -> String {
    let image = std::env::var_os("LENO_IMAGE_NEXT").expect("no cluster: run ./test kubernetes");
    image.into_string().expect("images have names of ASCII")
}

/// Returns the standard output of a successful command.
///
/// # Panics
/// If the command failed; the message contains its standard error.
#[allow(clippy::must_use_candidate, reason = "to know that a command succeeded is enough for some")]
pub fn expect_stdout(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    stdout
}

/// The namespace of one test, deleted when dropped.
pub struct TestNamespace {
    name: String,
}

/// The injection of sidecars into the Pods of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SidecarInjection {
    /// Sidecars are injected.
    Enabled,
    /// Sidecars are not injected.
    Disabled,
}

/// The result of a `curl` request in a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurlResult {
    /// The exit status of `curl`: 7 if the connection was refused, 56 if it was reset.
    pub exit: i32,
    /// The response status; 0 without a response.
    pub status: u16,
    /// The response body.
    pub body: String,
}

impl TestNamespace {
    /// Creates a namespace with a name that begins with `prefix`.
    #[must_use]
    pub fn new(prefix: &str, injection: SidecarInjection) -> Self {
        let label = match injection {
            SidecarInjection::Enabled => "labels: {leno.dev/injection: enabled}",
            SidecarInjection::Disabled => "labels: {}",
        };
        Self::with_metadata(prefix, label)
    }

    /// Creates a namespace with additional metadata, as part of a YAML map.
    #[must_use]
    pub fn with_metadata(prefix: &str, metadata: &str) -> Self {
        static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
        let namespace_number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        // Namespaces of a previous run may still be terminating.
        let name = format!("{prefix}-{}-{namespace_number}", std::process::id());
        let namespace = Self { name };
        apply_globally(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {}, {metadata}}}}}",
            namespace.name
        ));
        namespace
    }

    /// Returns the name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Applies manifests, in this namespace by default. A ready Pod becomes reachable a moment later, so the
    /// call is retried until the webhooks respond.
    pub fn apply_manifests(&self, manifests: &str) {
        let (output, _) = eventually("webhooks are reached", MAX_CONDITION_WAIT, || {
            let output = self.try_apply(manifests);
            let stderr = String::from_utf8_lossy(&output.stderr);
            (!stderr.contains("failed calling webhook")).then_some(output)
        });
        expect_stdout(&output);
    }

    /// As [`Self::apply_manifests`], but the API server may reject the manifests.
    #[must_use]
    pub fn try_apply(&self, manifests: &str) -> Output {
        kubectl_with(&["apply", "-n", &self.name, "-f", "-"], manifests)
    }

    /// Runs `kubectl -n NAMESPACE …`.
    #[must_use]
    pub fn kubectl(&self, arguments: &[&str]) -> Output {
        kubectl(&[&["-n", &self.name][..], arguments].concat())
    }

    /// Creates a Deployment of the HTTP test application on port 8080, and its Service on port 80, with an
    /// account of the same name.
    pub fn create_http_server(&self, name: &str, replicas: u32) {
        self.apply_manifests(&http_server(name, replicas, ""));
    }

    /// Creates a Pod for `curl`, with an account of the same name.
    pub fn create_client(&self, name: &str) {
        self.create_annotated_client(name, "");
    }

    /// As [`Self::create_client`], with annotations as part of a YAML map.
    pub fn create_annotated_client(&self, name: &str, annotations: &str) {
        self.create_single_pod(
            name,
            annotations,
            "image: 'kc.local/toolbox:1', command: [sh, '-c', 'trap exit TERM; sleep infinity & wait']",
        );
    }

    /// Creates a Pod for `/testapp call`, with an account of the same name.
    pub fn create_caller(&self, name: &str) {
        self.create_single_pod(name, "", "image: 'kc.local/testapp:1', args: [idle]");
    }

    fn create_single_pod(&self, name: &str, annotations: &str, container: &str) {
        self.apply_manifests(&format!(
            "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}}}}}\n---\n{{apiVersion: v1, \
             kind: Pod, metadata: {{name: {name}, labels: {{app: {name}}}, annotations: {{{annotations}}}}}, \
             spec: {{serviceAccountName: {name}, terminationGracePeriodSeconds: 1, \
             containers: [{{name: client, imagePullPolicy: Never, {container}}}]}}}}"
        ));
    }

    /// Waits until all Pods are ready and all Deployments have rolled out.
    ///
    /// # Panics
    /// On timeout.
    pub fn wait_ready(&self) {
        let deployments = expect_stdout(&self.kubectl(&["get", "deployments", "-o", "name"]));
        for deployment in deployments.lines() {
            let rollout = self.kubectl(&["rollout", "status", deployment, KUBECTL_TIMEOUT]);
            assert!(rollout.status.success(), "{deployment}:\n{}", self.describe_objects());
        }
        // Waits for terminating Pods first: `kubectl wait` fails if a Pod disappears.
        let terminating = "go-template={{range .items}}{{if .metadata.deletionTimestamp}}pod/{{.metadata.name}} \
                       {{end}}{{end}}";
        for pod in
            expect_stdout(&self.kubectl(&["get", "pods", "-o", terminating])).split_whitespace()
        {
            expect_stdout(&self.kubectl(&["wait", "--for=delete", pod, KUBECTL_TIMEOUT]));
        }
        let wait_output =
            self.kubectl(&["wait", "--for=condition=Ready", "pods", "--all", KUBECTL_TIMEOUT]);
        assert!(
            wait_output.status.success(),
            "pods of {}:\n{}",
            self.name,
            self.describe_objects()
        );
    }

    /// Returns the objects and events of the namespace, for failure analysis.
    fn describe_objects(&self) -> String {
        let pods = self.kubectl(&["get", "pods", "-o", "wide"]);
        let events = self.kubectl(&["get", "events", "--sort-by=.lastTimestamp"]);
        // `kubectl logs` requires a selector: every Pod matches this one.
        let logs = self.kubectl(&[
            "logs",
            "--all-containers",
            "--prefix",
            "--tail=15",
            "-l",
            "none!=none",
        ]);
        let texts = [pods, events, logs].map(|output| [output.stdout, output.stderr].concat());
        String::from_utf8_lossy(&texts.concat()).into_owned()
    }

    /// Runs a command in the container `client` of a Pod.
    #[must_use]
    pub fn exec(&self, pod: &str, command: &[&str]) -> Output {
        self.kubectl(&[&["exec", pod, "-c", "client", "--"], command].concat())
    }

    /// Returns the names of the containers of an application's Pods in order, separated by spaces, init containers first.
    #[must_use]
    pub fn list_containers(&self, app: &str) -> String {
        let names = "jsonpath={.items[*].spec.initContainers[*].name} \
                     {.items[*].spec.containers[*].name}";
        let selector = format!("app={app}");
        expect_stdout(&self.kubectl(&["get", "pods", "-l", &selector, "-o", names]))
    }

    /// Sends a request from a Pod. The exit status is -1 if no command can run there.
    #[must_use]
    pub fn curl(&self, pod: &str, arguments: &[&str]) -> CurlResult {
        let result = self.curl_repeatedly(pod, 1, arguments).pop();
        result.unwrap_or(CurlResult { exit: -1, status: 0, body: String::new() })
    }

    /// Sends a number of sequential requests from a Pod; empty if no command can run there.
    #[must_use]
    pub fn curl_repeatedly(
        &self,
        pod: &str,
        request_count: u32,
        arguments: &[&str],
    ) -> Vec<CurlResult> {
        let request_count = request_count.to_string();
        let output =
            self.exec(pod, &[&["sh", "-c", REPEAT_SCRIPT, &request_count], arguments].concat());
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let results = stdout.split_terminator(RESPONSE_SEPARATOR).filter_map(|result_text| {
            let (body_and_status, exit) = result_text.rsplit_once('\n')?;
            let (body, status) = body_and_status.rsplit_once('\n')?;
            let (exit, status) = (exit.parse().ok()?, status.parse().ok()?);
            Some(CurlResult { exit, status, body: body.to_owned() })
        });
        results.collect()
    }

    /// Sends requests until five in a row have this result, the stability criterion of OSM's tests.
    pub fn expect_curl(&self, pod: &str, arguments: &[&str], exit: i32, status: u16) {
        let mut last_outcomes = Vec::new();
        eventually(
            &format!("curl {arguments:?} from {pod} ends with {exit}, {status}"),
            MAX_CONDITION_WAIT,
            || {
                let results = self.curl_repeatedly(pod, STABLE_RESULTS, arguments);
                let outcomes: Vec<_> =
                    results.iter().map(|result| (result.exit, result.status)).collect();
                let is_stable = outcomes.len() == STABLE_RESULTS as usize
                    && outcomes.iter().all(|outcome| *outcome == (exit, status));
                if outcomes != last_outcomes {
                    eprintln!("{pod}: curl {arguments:?} -> {outcomes:?}");
                }
                last_outcomes = outcomes;
                is_stable.then_some(())
            },
        );
    }

    /// Sends requests until each of these Pods, given by name prefixes, has responded; no other Pod may
    /// respond, and no request may fail after the first response.
    ///
    /// # Panics
    /// On timeout.
    pub fn expect_reached(&self, pod: &str, arguments: &[&str], expected_prefixes: &[&str]) {
        self.expect_curl(pod, arguments, 0, 200);
        let mut unreached_prefixes: Vec<&str> = expected_prefixes.to_vec();
        eventually(
            &format!("{pod} reaches {expected_prefixes:?} by {arguments:?}"),
            MAX_CONDITION_WAIT,
            || {
                for result in self.curl_repeatedly(pod, STABLE_RESULTS, arguments) {
                    assert_eq!((result.exit, result.status), (0, 200), "{result:?}");
                    let name = result.body.strip_prefix("pod=").unwrap_or_default();
                    let has_prefix = |prefix: &&str| name.starts_with(*prefix);
                    assert!(
                        expected_prefixes.iter().any(has_prefix),
                        "{name} answers {arguments:?}, and not one of {expected_prefixes:?}"
                    );
                    unreached_prefixes.retain(|prefix| !has_prefix(prefix));
                }
                unreached_prefixes.is_empty().then_some(())
            },
        );
    }

    /// Returns the names of an application's Pods.
    #[must_use]
    pub fn list_pods(&self, app: &str) -> Vec<String> {
        let selector = format!("app={app}");
        let template = "jsonpath={.items[*].metadata.name}";
        let names = expect_stdout(&self.kubectl(&["get", "pods", "-l", &selector, "-o", template]));
        names.split_whitespace().map(str::to_owned).collect()
    }
}

impl Drop for TestNamespace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.describe_objects());
        }
        // Does not wait for the deletion: the next test uses another namespace.
        drop(kubectl(&["delete", "namespace", &self.name, "--wait=false", "--ignore-not-found"]));
    }
}

/// Applies cluster-wide manifests.
///
/// # Panics
/// If the API server rejects the manifests.
pub fn apply_globally(manifests: &str) {
    let output = kubectl_with(&["apply", "-f", "-"], manifests);
    drop(expect_stdout(&output));
}

/// Returns the HTTP test application: account, Deployment and Service; `extra_metadata` is added to the metadata of its
/// Pods.
#[must_use]
pub fn http_server(name: &str, replicas: u32, extra_metadata: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}}}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}, {extra_metadata}}}
    spec:
      serviceAccountName: {name}
      containers:
      - name: app
        image: kc.local/testapp:1
        imagePullPolicy: Never
        args: [http, -linger, 8s]
        ports: [{{containerPort: 8080, name: http}}]
        readinessProbe: {{httpGet: {{path: /, port: http}}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: 80, targetPort: http}}]}}
"
    )
}

/// A shell script that sends sequential requests and prints body, status and exit code of each, and a separator that
/// no response contains.
const REPEAT_SCRIPT: &str = "n=$0; while [ $n -gt 0 ]; do curl -s -m 10 -w '\\n%{http_code}' \"$@\"; \
                      printf '\\n%s\\036' $?; n=$((n-1)); done";
/// The character between the results of [`REPEAT_SCRIPT`].
const RESPONSE_SEPARATOR: char = '\u{1e}';
/// The number of consecutive equal results that are required.
const STABLE_RESULTS: u32 = 5;
/// The timeout option of `kubectl`: images are present, but two cores start many Pods at once.
const KUBECTL_TIMEOUT: &str = "--timeout=300s";
/// The timeout of expected conditions.
const MAX_CONDITION_WAIT: Duration = Duration::from_secs(180);

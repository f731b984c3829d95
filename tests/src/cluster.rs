//! A Kubernetes cluster that `./test kubernetes` brought up, with a Leno in it.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::eventually;

/// Runs `kubectl` against the cluster of this run.
///
/// # Panics
/// When there is none: `./test kubernetes` names it in `KUBECONFIG`.
#[must_use]
pub fn kubectl(arguments: &[&str]) -> Output {
    kubectl_with(arguments, "")
}

/// The same, with something on its standard input.
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

/// The image of the program under test.
///
/// # Panics
/// As [`kubectl`].
#[must_use]
pub fn image() -> String {
    let image = std::env::var_os("LENO_IMAGE").expect("no cluster: run ./test kubernetes");
    image.into_string().expect("images have names of ASCII")
}

/// The same program under another name: what an upgrade installs.
///
/// # Panics
/// As [`kubectl`].
#[must_use]
pub fn next_image() -> String {
    let image = std::env::var_os("LENO_IMAGE_NEXT").expect("no cluster: run ./test kubernetes");
    image.into_string().expect("images have names of ASCII")
}

/// What a command printed, which must have succeeded.
///
/// # Panics
/// When it failed, with what it complained of.
#[allow(clippy::must_use_candidate, reason = "to know that a command succeeded is enough for some")]
pub fn printed(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// A namespace of one test, gone when dropped.
pub struct Namespace {
    name: String,
}

/// Whether the pods of a namespace get sidecars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Injection {
    /// They do.
    Enabled,
    /// They do not.
    Disabled,
}

/// What became of a request that `curl` in a pod made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Curl {
    /// Its exit status: 7 when refused, 56 when reset.
    pub exit: i32,
    /// The status of the answer; 0 without one.
    pub status: u16,
    /// Its body.
    pub body: String,
}

impl Namespace {
    /// A new one, whose name begins with `what`.
    #[must_use]
    pub fn new(what: &str, injection: Injection) -> Self {
        let label = match injection {
            Injection::Enabled => "labels: {leno.dev/injection: enabled}",
            Injection::Disabled => "labels: {}",
        };
        Self::with_metadata(what, label)
    }

    /// A new one with more metadata than its name, as a part of a YAML map.
    #[must_use]
    pub fn with_metadata(what: &str, metadata: &str) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        // Those of a run before may still be on their way out.
        let name = format!("{what}-{}-{number}", std::process::id());
        let namespace = Self { name };
        apply(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {}, {metadata}}}}}",
            namespace.name
        ));
        namespace
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Creates or changes objects; those that name no namespace are of this one. Who is ready is reached a
    /// moment later: a webhook that is not yet is waited for.
    pub fn apply(&self, manifests: &str) {
        let (output, _) = eventually("webhooks are reached", PATIENT, || {
            let output = self.try_apply(manifests);
            let said = String::from_utf8_lossy(&output.stderr);
            (!said.contains("failed calling webhook")).then_some(output)
        });
        printed(&output);
    }

    /// The same, which may be refused.
    #[must_use]
    pub fn try_apply(&self, manifests: &str) -> Output {
        kubectl_with(&["apply", "-n", &self.name, "-f", "-"], manifests)
    }

    /// Runs `kubectl -n NAMESPACE …`.
    #[must_use]
    pub fn kubectl(&self, arguments: &[&str]) -> Output {
        kubectl(&[&["-n", &self.name][..], arguments].concat())
    }

    /// A Deployment of the HTTP test application, on port 8080, and its Service, on port 80; its
    /// account has its name.
    pub fn http_server(&self, name: &str, replicas: u32) {
        self.apply(&http_server(name, replicas, ""));
    }

    /// A pod that `curl` can be run in; its account has its name.
    pub fn client(&self, name: &str) {
        self.annotated_client(name, "");
    }

    /// The same, with annotations, as a part of a YAML map.
    pub fn annotated_client(&self, name: &str, annotations: &str) {
        self.lone_pod(
            name,
            annotations,
            "image: 'kc.local/toolbox:1', command: [sh, '-c', 'trap exit TERM; sleep infinity & wait']",
        );
    }

    /// A pod that `/testapp call` can be run in; its account has its name.
    pub fn caller(&self, name: &str) {
        self.lone_pod(name, "", "image: 'kc.local/testapp:1', args: [idle]");
    }

    fn lone_pod(&self, name: &str, annotations: &str, container: &str) {
        self.apply(&format!(
            "{{apiVersion: v1, kind: ServiceAccount, metadata: {{name: {name}}}}}\n---\n{{apiVersion: v1, \
             kind: Pod, metadata: {{name: {name}, labels: {{app: {name}}}, annotations: {{{annotations}}}}}, \
             spec: {{serviceAccountName: {name}, terminationGracePeriodSeconds: 1, \
             containers: [{{name: client, imagePullPolicy: Never, {container}}}]}}}}"
        ));
    }

    /// Waits until all pods are ready and all Deployments have rolled out.
    ///
    /// # Panics
    /// When that takes longer than a pod may.
    pub fn wait_ready(&self) {
        let deployments = printed(&self.kubectl(&["get", "deployments", "-o", "name"]));
        for deployment in deployments.lines() {
            let rolled = self.kubectl(&["rollout", "status", deployment, PATIENCE]);
            assert!(rolled.status.success(), "{deployment}:\n{}", self.describe());
        }
        // Those that are replaced are gone first: one that goes while it is waited for is an error.
        let leaving = "go-template={{range .items}}{{if .metadata.deletionTimestamp}}pod/{{.metadata.name}} \
                       {{end}}{{end}}";
        for pod in printed(&self.kubectl(&["get", "pods", "-o", leaving])).split_whitespace() {
            printed(&self.kubectl(&["wait", "--for=delete", pod, PATIENCE]));
        }
        let waited = self.kubectl(&["wait", "--for=condition=Ready", "pods", "--all", PATIENCE]);
        assert!(waited.status.success(), "pods of {}:\n{}", self.name, self.describe());
    }

    /// What is there and what happened, for who looks at a failure.
    fn describe(&self) -> String {
        let pods = self.kubectl(&["get", "pods", "-o", "wide"]);
        let events = self.kubectl(&["get", "events", "--sort-by=.lastTimestamp"]);
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

    /// Runs a command in the container `client` of a pod.
    #[must_use]
    pub fn exec(&self, pod: &str, command: &[&str]) -> Output {
        self.kubectl(&[&["exec", pod, "-c", "client", "--"], command].concat())
    }

    /// The containers of the pods of an application, in order: init containers first.
    #[must_use]
    pub fn containers(&self, app: &str) -> String {
        let names = "jsonpath={.items[*].spec.initContainers[*].name} \
                     {.items[*].spec.containers[*].name}";
        let selector = format!("app={app}");
        printed(&self.kubectl(&["get", "pods", "-l", &selector, "-o", names]))
    }

    /// Makes a request from a pod.
    #[must_use]
    pub fn curl(&self, pod: &str, arguments: &[&str]) -> Curl {
        let said = self.curls(pod, 1, arguments).pop();
        said.unwrap_or(Curl { exit: -1, status: 0, body: String::new() })
    }

    /// Makes a request from a pod so many times, one after the other; none when nothing can be run there.
    #[must_use]
    pub fn curls(&self, pod: &str, times: u32, arguments: &[&str]) -> Vec<Curl> {
        let times = times.to_string();
        let output = self.exec(pod, &[&["sh", "-c", REPEAT, &times], arguments].concat());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let each = said.split_terminator(END_OF_ANSWER).filter_map(|one| {
            let (rest, exit) = one.rsplit_once('\n')?;
            let (body, status) = rest.rsplit_once('\n')?;
            let (exit, status) = (exit.parse().ok()?, status.parse().ok()?);
            Some(Curl { exit, status, body: body.to_owned() })
        });
        each.collect()
    }

    /// Makes requests until they end so, five times in a row: OSM's tests call that stable.
    pub fn expect_curl(&self, pod: &str, arguments: &[&str], exit: i32, status: u16) {
        let mut last = Vec::new();
        eventually(
            &format!("curl {arguments:?} from {pod} ends with {exit}, {status}"),
            PATIENT,
            || {
                let seen = self.curls(pod, STABLE, arguments);
                let ends: Vec<_> = seen.iter().map(|one| (one.exit, one.status)).collect();
                let held =
                    ends.len() == STABLE as usize && ends.iter().all(|end| *end == (exit, status));
                if ends != last {
                    eprintln!("{pod}: curl {arguments:?} -> {ends:?}");
                }
                last = ends;
                held.then_some(())
            },
        );
    }

    /// Makes requests until each of these pods has answered one, by the beginnings of their names; nobody
    /// else may, and none may fail once the first was answered.
    ///
    /// # Panics
    /// When that does not come true.
    pub fn expect_reached(&self, pod: &str, arguments: &[&str], wanted: &[&str]) {
        self.expect_curl(pod, arguments, 0, 200);
        let mut missing: Vec<&str> = wanted.to_vec();
        eventually(&format!("{pod} reaches {wanted:?} by {arguments:?}"), PATIENT, || {
            for answer in self.curls(pod, STABLE, arguments) {
                assert_eq!((answer.exit, answer.status), (0, 200), "{answer:?}");
                let name = answer.body.strip_prefix("pod=").unwrap_or_default();
                let of = |wanted: &&str| name.starts_with(*wanted);
                assert!(
                    wanted.iter().any(of),
                    "{name} answers {arguments:?}, and not one of {wanted:?}"
                );
                missing.retain(|wanted| !of(wanted));
            }
            missing.is_empty().then_some(())
        });
    }

    /// The pods of an application.
    #[must_use]
    pub fn pods(&self, app: &str) -> Vec<String> {
        let selector = format!("app={app}");
        let names = "jsonpath={.items[*].metadata.name}";
        let found = printed(&self.kubectl(&["get", "pods", "-l", &selector, "-o", names]));
        found.split_whitespace().map(str::to_owned).collect()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.describe());
        }
        // Not waited for: the next test does not need it gone.
        drop(kubectl(&["delete", "namespace", &self.name, "--wait=false", "--ignore-not-found"]));
    }
}

/// Creates or changes objects of the cluster.
///
/// # Panics
/// When the API server refuses them.
pub fn apply(manifests: &str) {
    let output = kubectl_with(&["apply", "-f", "-"], manifests);
    drop(printed(&output));
}

/// The HTTP test application: account, Deployment and Service; `more` goes into the metadata of its
/// pods.
#[must_use]
pub fn http_server(name: &str, replicas: u32, more: &str) -> String {
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
    metadata: {{labels: {{app: {name}}}, {more}}}
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

/// Requests in a row: body, status and exit of each, and a sign that no answer has.
const REPEAT: &str = "n=$0; while [ $n -gt 0 ]; do curl -s -m 10 -w '\\n%{http_code}' \"$@\"; \
                      printf '\\n%s\\036' $?; n=$((n-1)); done";
/// That sign.
const END_OF_ANSWER: char = '\u{1e}';
/// How often in a row something has to come true.
const STABLE: u32 = 5;
/// For `kubectl`: images are there, but two cores start many pods at once.
const PATIENCE: &str = "--timeout=300s";
/// For what must come true.
const PATIENT: Duration = Duration::from_secs(180);

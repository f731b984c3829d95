//! etcd and an API server for one test, with functions to write objects.

use std::fs;
use std::future::Future;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, Config};
use leno_tests::eventually;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Runs a test on a runtime with one thread.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test);
}

/// etcd and an API server, stopped when dropped.
pub(crate) struct ApiServerProcess {
    directory: TempDir,
    admin: Client,
    /// The restarted API server.
    restarted_server: Option<Child>,
}

impl ApiServerProcess {
    pub(crate) async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let output = Command::new(script_path()).arg("up").arg(directory.path()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "no API server: {stderr}");
        let admin = client_for(&directory.path().join("kubeconfig"), None).await;
        Self { directory, admin, restarted_server: None }
    }

    pub(crate) async fn admin_client(&self) -> Client {
        client_for(&self.kubeconfig(), None).await
    }

    /// Returns the kubeconfig file for programs.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    /// Returns a client that impersonates a user.
    pub(crate) async fn client_as(&self, user: &str) -> Client {
        client_for(&self.directory.path().join("kubeconfig"), Some(user)).await
    }

    /// Kills the API server and restarts it on the same port with the same etcd.
    pub(crate) async fn restart_server(&mut self) {
        let file = |name: &str| self.directory.path().join(name);
        let id: u32 = fs::read_to_string(file("apiserver.pid")).unwrap().trim().parse().unwrap();
        let command_line = fs::read(format!("/proc/{id}/cmdline")).unwrap();
        let program = fs::read_link(format!("/proc/{id}/exe")).unwrap();
        let arguments: Vec<String> = command_line
            .split(|byte| *byte == 0)
            .map(|argument| String::from_utf8(argument.to_vec()).unwrap())
            .collect();
        let arguments: Vec<&String> =
            arguments.iter().filter(|argument| !argument.is_empty()).collect();
        assert!(Command::new("kill").args(["-9", &id.to_string()]).status().unwrap().success());
        let process_directory = PathBuf::from(format!("/proc/{id}/cwd"));
        eventually("the API server has ended", MAX_WAIT, || {
            (!process_directory.exists()).then_some(())
        });
        let log = fs::File::create(file("apiserver-2.log")).unwrap();
        let child = Command::new(program)
            .arg0(arguments[0])
            .args(&arguments[1..])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        fs::write(file("apiserver.pid"), child.id().to_string()).unwrap();
        self.restarted_server = Some(child);
        let admin = self.admin_client().await;
        let deadline = Instant::now() + MAX_WAIT;
        let readiness_request = || http::Request::get("/readyz").body(Vec::new()).unwrap();
        while admin.request_text(readiness_request()).await.is_err() {
            let log = || fs::read_to_string(file("apiserver-2.log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "the API server does not come back: {}", log());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.admin = admin;
    }

    /// Writes an object of a `kind` such as `group/version/Kind`; retries while the server starts.
    pub(crate) async fn apply_object(
        &self,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
        mut object: Value,
    ) {
        let (api, resource) = self.dynamic_api(kind, namespace);
        object["apiVersion"] = json!(resource.api_version);
        object["kind"] = json!(resource.kind);
        object["metadata"]["name"] = json!(name);
        let parameters = PatchParams::apply("test").force();
        let deadline = Instant::now() + MAX_WAIT;
        while let Err(error) = api.patch(name, &parameters, &Patch::Apply(&object)).await {
            assert!(Instant::now() < deadline, "{kind} {name}: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if object.get("status").is_some() {
            api.patch_status(name, &parameters, &Patch::Apply(&object)).await.unwrap();
        }
    }

    /// Writes an object once; the error is the API server's message.
    pub(crate) async fn try_apply(
        &self,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
        mut object: Value,
    ) -> Result<(), String> {
        let (api, resource) = self.dynamic_api(kind, namespace);
        object["apiVersion"] = json!(resource.api_version);
        object["kind"] = json!(resource.kind);
        object["metadata"]["name"] = json!(name);
        let parameters = PatchParams::apply("test").force();
        let result = api.patch(name, &parameters, &Patch::Apply(&object)).await;
        result.map(drop).map_err(|error| error.to_string())
    }

    /// Creates an object as most controllers do, without validation of unknown fields.
    pub(crate) async fn create_unvalidated(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        mut object: Value,
    ) {
        let (_, resource) = self.dynamic_api(kind, None);
        let (version, plural) = (&resource.api_version, &resource.plural);
        object["apiVersion"] = json!(version);
        object["kind"] = json!(resource.kind);
        object["metadata"]["name"] = json!(name);
        let path =
            format!("/apis/{version}/namespaces/{namespace}/{plural}?fieldValidation=Ignore");
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            let request = http::Request::post(&path)
                .header("content-type", "application/json")
                .body(kube::client::Body::from(object.to_string().into_bytes()))
                .unwrap();
            let response = self.admin.send(request).await.unwrap();
            if response.status().is_success() {
                return;
            }
            assert!(Instant::now() < deadline, "{kind} {name}: {}", response.status());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the API server's warnings about the creation of an empty object.
    pub(crate) async fn creation_warnings(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> String {
        let (_, resource) = self.dynamic_api(kind, None);
        let (version, plural) = (&resource.api_version, &resource.plural);
        let object = json!({
            "apiVersion": version, "kind": resource.kind, "metadata": {"name": name}, "spec": {},
        });
        let path = format!("/apis/{version}/namespaces/{namespace}/{plural}?dryRun=All");
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(kube::client::Body::from(object.to_string().into_bytes()))
            .unwrap();
        let response = self.admin.send(request).await.unwrap();
        let warnings = response.headers().get_all("warning");
        warnings.iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join("\n")
    }

    /// Deletes an object and waits until it is gone: definitions delete their objects first.
    pub(crate) async fn delete_object(&self, kind: &str, namespace: Option<&str>, name: &str) {
        let immediately = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.dynamic_api(kind, namespace).0.delete(name, &immediately).await.unwrap();
        let deadline = Instant::now() + MAX_WAIT;
        while self.find_object(kind, namespace, name).await.is_some() {
            assert!(Instant::now() < deadline, "{kind} {name} stays");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) async fn create_namespace(&self, name: &str) {
        self.apply_object("v1/Namespace", None, name, json!({"metadata": {}})).await;
    }

    /// Creates a ready Pod with a sidecar.
    pub(crate) async fn create_pod(&self, name: &str, address: &str) {
        let pod = json!({
            "metadata": {"labels": {"app": "web", "leno.dev/meshed": "sidecar"}},
            "spec": {
                "serviceAccountName": "web",
                "containers": [{"name": "web", "image": "none"}],
            },
            "status": {
                "phase": "Running",
                "podIP": address,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        self.apply_object("v1/Pod", Some("shop"), name, pod).await;
    }

    pub(crate) async fn create_service(&self, name: &str, target: u16) {
        let ports = json!([{"port": 80, "targetPort": target, "protocol": "TCP"}]);
        let service = json!({"spec": {"selector": {"app": "web"}, "ports": ports}});
        self.apply_object("v1/Service", Some("shop"), name, service).await;
    }

    /// Defines a `kind` such as `group/version/Kind` without a schema, and waits until it is served.
    pub(crate) async fn define_kind(&self, kind: &str) {
        let (_, resource) = self.dynamic_api(kind, None);
        let ApiResource { group, version, kind, plural, api_version } = resource;
        let schema = json!({"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        }});
        let version = json!({
            "name": version, "served": true, "storage": true, "schema": schema,
            "subresources": {"status": {}},
        });
        let singular = kind.to_lowercase();
        let list_kind = format!("{kind}List");
        let definition = json!({
            // Kubernetes protects its own API groups without this annotation.
            "metadata": {"annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {
                    "kind": kind, "plural": plural, "singular": singular, "listKind": list_kind,
                },
                "versions": [version],
            },
        });
        let name = format!("{plural}.{group}");
        self.apply_object(
            "apiextensions.k8s.io/v1/CustomResourceDefinition",
            None,
            &name,
            definition,
        )
        .await;
        let deadline = Instant::now() + MAX_WAIT;
        let is_listed = |resources: kube::Result<_>| {
            let resources: APIResourceList = resources.ok()?;
            resources.resources.iter().any(|resource| resource.name == plural).then_some(())
        };
        while is_listed(self.admin.list_api_group_resources(&api_version).await).is_none() {
            assert!(Instant::now() < deadline, "{name} is not served");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn read(&self, kind: &str, namespace: &str, name: &str) -> Value {
        let object = self.dynamic_api(kind, Some(namespace)).0.get(name).await.unwrap();
        serde_json::to_value(object).unwrap()
    }

    /// Returns an object, if it exists.
    pub(crate) async fn find_object(
        &self,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<Value> {
        let object = self.dynamic_api(kind, namespace).0.get_opt(name).await.unwrap();
        object.map(|object| serde_json::to_value(object).unwrap())
    }

    /// Waits until an object satisfies a condition, and returns it. An object that does not exist is null.
    pub(crate) async fn wait_until(
        &self,
        kind: &str,
        namespace: Option<&str>,
        name: &str,
        is_satisfied: impl Fn(&Value) -> bool,
    ) -> Value {
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            let object = self.find_object(kind, namespace, name).await.unwrap_or_default();
            if is_satisfied(&object) {
                return object;
            }
            assert!(
                Instant::now() < deadline,
                "{kind} {name} does not meet the condition: {object}"
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    pub(crate) async fn list_events(&self, namespace: &str) -> Vec<Value> {
        let api = self.dynamic_api("events.k8s.io/v1/Event", Some(namespace)).0;
        let list = api.list(&ListParams::default()).await.unwrap();
        list.items.into_iter().map(|event| event.data).collect()
    }

    /// Installs third-party kinds with the script that extracts them from their module.
    pub(crate) fn install_kinds(&self, script: &str) {
        let script = script_path().with_file_name(script);
        let kubeconfig = self.directory.path().join("kubeconfig");
        let output = Command::new(script).arg(kubeconfig).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Patches the status of an object.
    pub(crate) async fn patch_status(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        status: Value,
    ) {
        let patch = Patch::Merge(json!({"status": status}));
        let (api, _) = self.dynamic_api(kind, Some(namespace));
        api.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Allows a user to read only some of the kinds of the core group.
    pub(crate) async fn allow_reading(&self, user: &str, resources: &[&str]) {
        let rules =
            json!([{"apiGroups": [""], "resources": resources, "verbs": ["list", "watch"]}]);
        let role = "rbac.authorization.k8s.io";
        self.apply_object(&format!("{role}/v1/ClusterRole"), None, user, json!({"rules": rules}))
            .await;
        let binding = json!({
            "roleRef": {"apiGroup": role, "kind": "ClusterRole", "name": user},
            "subjects": [{"apiGroup": role, "kind": "User", "name": user}],
        });
        self.apply_object(&format!("{role}/v1/ClusterRoleBinding"), None, user, binding).await;
    }

    fn dynamic_api(
        &self,
        kind: &str,
        namespace: Option<&str>,
    ) -> (Api<DynamicObject>, ApiResource) {
        let mut kind_parts = kind.rsplit('/');
        let (kind, version) = (kind_parts.next().unwrap(), kind_parts.next().unwrap());
        let group = kind_parts.next().unwrap_or_default();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api = match namespace {
            Some(namespace) => Api::namespaced_with(self.admin.clone(), namespace, &resource),
            None => Api::all_with(self.admin.clone(), &resource),
        };
        (api, resource)
    }
}

impl Drop for ApiServerProcess {
    fn drop(&mut self) {
        let output = Command::new(script_path()).arg("down").arg(self.directory.path()).output();
        if let Some(child) = &mut self.restarted_server {
            // The script has stopped the process.
            child.wait().ok();
        }
        assert!(
            output.is_ok_and(|output| output.status.success()),
            "the API server was not stopped"
        );
    }
}

async fn client_for(kubeconfig: &Path, user: Option<&str>) -> Client {
    let mut kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    for user_entry in &mut kubeconfig.auth_infos {
        if let Some(auth_info) = &mut user_entry.auth_info {
            auth_info.impersonate = user.map(str::to_owned);
        }
    }
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    Client::try_from(config).unwrap()
}

fn script_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster/envtest.sh")
}

const MAX_WAIT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

//! Support for running the binary in a temporary directory.

use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A directory with files, in which commands run.
pub(crate) struct TestDirectory(TempDir);

/// The result of a command.
#[derive(Debug)]
pub(crate) struct CommandResult {
    /// The exit code; `None` if a signal ended the command.
    pub(crate) exit_code: Option<i32>,
    /// The standard output.
    pub(crate) stdout: String,
    /// The standard error.
    pub(crate) stderr: String,
}

impl TestDirectory {
    /// Creates a directory with these files.
    pub(crate) fn with_files(files: &[(&str, &str)]) -> Self {
        let test_directory = Self(tempfile::tempdir().expect("a temporary directory"));
        for (name, text) in files {
            let path = test_directory.0.path().join(name);
            let folder = path.parent().expect("a file is in a folder");
            std::fs::create_dir_all(folder).expect("a new folder");
            std::fs::write(path, text).expect("a new file");
        }
        test_directory
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs `leno` with these arguments in the directory, which is also the user's home.
    pub(crate) fn run_leno(&self, arguments: &[&str]) -> CommandResult {
        self.run(Command::new(LENO_BINARY).args(arguments))
    }

    /// Runs a shell command line with `leno` as `$0`.
    pub(crate) fn run_shell(&self, line: &str) -> CommandResult {
        self.run(Command::new("/bin/sh").args(["-c", line, LENO_BINARY]))
    }

    fn run(&self, command: &mut Command) -> CommandResult {
        let output = command
            .current_dir(self.0.path())
            .env_clear()
            .env("HOME", self.0.path())
            .stdin(Stdio::null())
            .output()
            .expect("the command runs");
        CommandResult {
            exit_code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

const LENO_BINARY: &str = env!("CARGO_BIN_EXE_leno");

/// A mesh with `defaultPolicy: deny`: a client that may read ratings, and a split of reviews.
pub(crate) const MESH: &str = r#"
apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {name: mesh}
spec: {trustDomain: cluster.local, defaultPolicy: deny}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: page-1, namespace: shop, labels: {app: page}}
spec:
  serviceAccount: page
  outbound:
  - {service: ratings.shop, port: 9080, listen: "127.0.0.1:19081"}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: stranger-1, namespace: shop, labels: {app: stranger}}
spec: {serviceAccount: stranger}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: ratings-1, namespace: shop, labels: {app: ratings}}
spec: {serviceAccount: ratings, ports: [{name: http, port: 9085, protocol: HTTP}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: reviews-v1-1, namespace: shop, labels: {app: reviews, version: v1}}
spec: {serviceAccount: reviews, ports: [{name: http, port: 9082, protocol: HTTP}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: reviews-v2-1, namespace: shop, labels: {app: reviews, version: v2}}
spec: {serviceAccount: reviews, ports: [{name: http, port: 9083, protocol: HTTP}]}
---
apiVersion: v1
kind: Service
metadata: {name: ratings, namespace: shop}
spec: {selector: {app: ratings}, ports: [{name: http, port: 9080, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: reviews, namespace: shop}
spec: {selector: {app: reviews}, ports: [{name: http, port: 9080, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: reviews-v1, namespace: shop}
spec: {selector: {app: reviews, version: v1}, ports: [{port: 9080, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: reviews-v2, namespace: shop}
spec: {selector: {app: reviews, version: v2}, ports: [{port: 9080, targetPort: http}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: reviews, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: reviews, port: 9080}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /reviews}, headers: [{name: end-user, value: jason}]}]
    backendRefs: [{name: reviews-v2, port: 9080}]
  - matches: [{path: {type: PathPrefix, value: /reviews}}]
    backendRefs:
    - {name: reviews-v1, port: 9080, weight: 90}
    - {name: reviews-v2, port: 9080, weight: 10}
---
apiVersion: specs.smi-spec.io/v1alpha4
kind: HTTPRouteGroup
metadata: {name: reading, namespace: shop}
spec:
  matches:
  - {name: ratings, pathRegex: "/ratings/[0-9]+", methods: [GET]}
  - {name: reviews, pathRegex: "/reviews/[0-9]+", methods: [GET]}
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: ratings, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: ratings, namespace: shop}
  sources: [{kind: ServiceAccount, name: page, namespace: shop}]
  rules: [{kind: HTTPRouteGroup, name: reading, matches: [ratings]}]
---
apiVersion: access.smi-spec.io/v1alpha3
kind: TrafficTarget
metadata: {name: reviews, namespace: shop}
spec:
  destination: {kind: ServiceAccount, name: reviews, namespace: shop}
  sources: [{kind: ServiceAccount, name: page, namespace: shop}]
  rules: [{kind: HTTPRouteGroup, name: reading, matches: [reviews]}]
"#;

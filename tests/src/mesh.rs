//! A mesh under test: `leno up` with files in a temporary directory.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{TestProgram, leno_command};

/// A mesh run by `leno up` with files written by the test.
pub struct TestMesh {
    directory: TempDir,
    /// `leno up` itself.
    pub up: TestProgram,
}

impl TestMesh {
    /// Starts a mesh with manifests and waits until it is ready.
    ///
    /// # Panics
    /// If the mesh does not start.
    #[must_use]
    pub fn up(manifests: &str) -> Self {
        Self::up_with(manifests, &[])
    }

    /// As [`Self::up`], with further arguments.
    ///
    /// # Panics
    /// If the mesh does not start.
    #[must_use]
    pub fn up_with(manifests: &str, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the mesh");
        std::fs::create_dir(directory.path().join("mesh")).expect("a folder for manifests");
        std::fs::write(directory.path().join("mesh/mesh.yaml"), manifests).expect("manifests");
        let mut command = leno_command();
        command.arg("up").arg("-f").arg(directory.path().join("mesh"));
        command.arg("--data").arg(directory.path().join("data")).args(arguments);
        let up = TestProgram::start("leno up", &mut command);
        up.wait_for_line("The mesh is up", Duration::from_secs(60));
        Self { directory, up }
    }

    /// Writes another file of manifests, which the mesh notices by itself.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn write(&self, file: &str, manifests: &str) {
        std::fs::write(self.manifest_file(file), manifests).expect("manifests");
    }

    /// Removes a file of manifests.
    ///
    /// # Panics
    /// If the file does not exist.
    pub fn remove(&self, file: &str) {
        std::fs::remove_file(self.manifest_file(file)).expect("the file is there");
    }

    /// Returns the data directory of the mesh.
    #[must_use]
    pub fn data_directory(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Returns the path of a file of manifests.
    #[must_use]
    pub fn manifest_file(&self, file: &str) -> PathBuf {
        self.directory.path().join("mesh").join(file)
    }

    /// Returns the output of `leno get KIND -o json`.
    ///
    /// # Panics
    /// If the command fails or prints no JSON.
    #[must_use]
    pub fn get_json(&self, kind: &str) -> Value {
        let output = self.run_leno(&["get", kind, "-o", "json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("leno get {kind}: {error}: {}", String::from_utf8_lossy(&output.stderr))
        })
    }

    /// Runs `leno` against this mesh.
    ///
    /// # Panics
    /// If `leno` cannot be run.
    #[must_use]
    pub fn run_leno(&self, arguments: &[&str]) -> Output {
        let mut command = leno_command();
        command.args(arguments).arg("--data").arg(self.data_directory());
        command.output().expect("leno runs")
    }
}

/// Returns manifests of a service `ratings` on `port` (run by `command`, or by the test if empty) and a client
/// with an outbound listener for it at `listener_port`; `default_policy` is `allow` or `deny`.
#[must_use]
pub fn ratings_manifests(
    command: &str,
    port: u16,
    listener_port: u16,
    default_policy: &str,
) -> String {
    let run_field = if command.is_empty() { String::new() } else { format!("\n  run: {command}") };
    let listener_address = SocketAddr::from((Ipv4Addr::LOCALHOST, listener_port));
    format!(
        "apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: ratings-1, namespace: bookinfo, labels: {{app: ratings, version: v1}}}}
spec:
  serviceAccount: ratings
  ports: [{{name: http, port: {port}, protocol: HTTP}}]{run_field}
---
apiVersion: v1
kind: Service
metadata: {{name: ratings, namespace: bookinfo}}
spec: {{selector: {{app: ratings}}, ports: [{{name: http, port: 9080, targetPort: http}}]}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {{name: client-1, namespace: bookinfo, labels: {{app: client}}}}
spec:
  serviceAccount: client
  outbound:
  - {{service: ratings.bookinfo, port: 9080, listen: \"{listener_address}\"}}
---
apiVersion: leno.dev/v1alpha1
kind: MeshConfig
metadata: {{name: mesh}}
spec: {{trustDomain: cluster.local, defaultPolicy: {default_policy}}}
"
    )
}

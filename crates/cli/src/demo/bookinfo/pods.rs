//! Renders the manifests of bookinfo for a Kubernetes cluster: the output of `leno demo --kubernetes`.

use super::manifests::services_and_rules;

/// Returns all bookinfo manifests for `kubectl apply`: a namespace of the mesh, Deployments with the given
/// image, and the same services and rules as in a local mesh.
pub(crate) fn render_manifests(image: &str) -> String {
    let mut documents = vec![NAMESPACE.to_owned()];
    documents.extend(ACCOUNTS.iter().map(|account| {
        format!(
            "apiVersion: v1\n\
             kind: ServiceAccount\n\
             metadata: {{name: {account}, namespace: bookinfo}}\n"
        )
    }));
    documents.extend(DEPLOYMENTS.iter().map(|deployment| deployment.render(image)));
    documents.extend(services_and_rules());
    format!("{HEADER_COMMENT}{}", documents.join("---\n"))
}

/// A Deployment of one pod.
struct BookinfoDeployment {
    name: &'static str,
    app: &'static str,
    version: &'static str,
    /// The arguments after the program name.
    arguments: &'static [&'static str],
    /// True if the pod serves requests; the traffic generator does not.
    is_server: bool,
}

impl BookinfoDeployment {
    const fn service_pod(
        name: &'static str,
        app: &'static str,
        version: &'static str,
        arguments: &'static [&'static str],
    ) -> Self {
        Self { name, app, version, arguments, is_server: true }
    }

    fn render(&self, image: &str) -> String {
        let Self { name, app, version, arguments, is_server } = self;
        let quoted_arguments = arguments.iter().map(|argument| format!("\"{argument}\""));
        let arguments_text = quoted_arguments.collect::<Vec<_>>().join(", ");
        let port_and_probe = if *is_server {
            "        ports: [{name: http, containerPort: 9080}]\n        \
             readinessProbe: {httpGet: {path: /health, port: http}, periodSeconds: 2}\n"
        } else {
            ""
        };
        format!(
            "apiVersion: apps/v1\n\
             kind: Deployment\n\
             metadata: {{name: {name}, namespace: bookinfo}}\n\
             spec:\n  \
               selector: {{matchLabels: {{app: {app}, version: {version}}}}}\n  \
               template:\n    \
                 metadata: {{labels: {{app: {app}, version: {version}}}}}\n    \
                 spec:\n      \
                   serviceAccountName: {app}\n      \
                   automountServiceAccountToken: false\n      \
                   securityContext: {{runAsNonRoot: true, runAsUser: 65532, seccompProfile: {{type: RuntimeDefault}}}}\n      \
                   containers:\n      \
                   - name: {app}\n        \
                     image: {image}\n        \
                     args: [{arguments_text}]\n\
             {port_and_probe}        \
                     resources: {{requests: {{cpu: 10m, memory: 8Mi}}, limits: {{memory: 64Mi}}}}\n        \
                     securityContext: {{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {{drop: [ALL]}}}}\n"
        )
    }
}

const HEADER_COMMENT: &str = "\
# Bookinfo for a cluster with Leno and the CRDs of SMI and of the Gateway API.
";

const NAMESPACE: &str = "\
apiVersion: v1
kind: Namespace
metadata:
  name: bookinfo
  labels: {leno.dev/injection: enabled}
  annotations: {leno.dev/default-policy: deny}
";

const ACCOUNTS: [&str; 6] =
    ["productpage", "details", "reviews", "ratings", "gateway-ratings", "traffic"];

/// Arguments of a serving process: `"--address", "0.0.0.0", "--port", "9080"` after the name of the service.
macro_rules! service_arguments {
    ($($word:literal),+) => {
        &["demo-service", $($word),+, "--address", "0.0.0.0", "--port", "9080"]
    };
}

const DEPLOYMENTS: [BookinfoDeployment; 8] = [
    BookinfoDeployment::service_pod(
        "productpage",
        "productpage",
        "v1",
        service_arguments!("productpage"),
    ),
    BookinfoDeployment::service_pod("details", "details", "v1", service_arguments!("details")),
    BookinfoDeployment::service_pod(
        "reviews-v1",
        "reviews",
        "v1",
        service_arguments!("reviews", "--version", "v1"),
    ),
    BookinfoDeployment::service_pod(
        "reviews-v2",
        "reviews",
        "v2",
        service_arguments!("reviews", "--version", "v2"),
    ),
    BookinfoDeployment::service_pod(
        "reviews-v3",
        "reviews",
        "v3",
        service_arguments!("reviews", "--version", "v3"),
    ),
    BookinfoDeployment::service_pod("ratings", "ratings", "v1", service_arguments!("ratings")),
    BookinfoDeployment::service_pod(
        "gateway-ratings",
        "gateway-ratings",
        "v1",
        service_arguments!("gateway"),
    ),
    BookinfoDeployment {
        name: "traffic",
        app: "traffic",
        version: "v1",
        arguments: &[
            "load",
            "--rate=5",
            "--connections=2",
            "--duration=24h",
            "http://productpage:9080/productpage?id=1",
        ],
        is_server: false,
    },
];

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::Cli;

    #[test]
    fn the_printed_pods_match_the_golden_file() {
        expect_test::expect_file!["golden/pods.yaml"].assert_eq(&render_manifests("leno:test"));
    }

    #[test]
    fn the_command_line_accepts_all_commands_of_the_pods() {
        for deployment in &DEPLOYMENTS {
            let arguments = std::iter::once("leno").chain(deployment.arguments.iter().copied());
            Cli::try_parse_from(arguments).unwrap();
        }
    }
}

//! Renders the manifests of a mesh of a given size, and assigns the services that each workload uses.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{RunningMesh, USED_SERVICES, WORKLOADS_PER_SERVICE, workload_name};
use crate::bench::testbed::BenchDefaultPolicy;

impl RunningMesh<'_, '_> {
    /// Returns the numbers of the services that a workload uses. The services form a ring, and a workload uses the
    /// services that follow its own service in the ring, so that every service is used. If there are enough real
    /// sidecars, their services form a separate ring, so that real sidecars call real sidecars only. In the ring of the
    /// simulated sidecars, the last service has more clients than the others.
    pub(super) fn used_services(&self, index: usize) -> Vec<usize> {
        let (own_service, service_count, real_service_count) =
            (index / WORKLOADS_PER_SERVICE, self.service_count(), self.real_service_count());
        let ring = if own_service < real_service_count {
            0..real_service_count
        } else {
            real_service_count..service_count
        };
        let successor = |step: usize| ring.start + (own_service - ring.start + step) % ring.len();
        let mut used_services: Vec<usize> =
            (1..=USED_SERVICES.min(ring.len())).map(successor).collect();
        let popular_service = service_count - 1;
        let is_near = (1..=POPULAR_SERVICE_CLIENTS).any(|step| successor(step) == popular_service);
        if own_service >= real_service_count && is_near && !used_services.contains(&popular_service)
        {
            used_services.push(popular_service);
        }
        used_services
    }

    /// Returns the number of services in the ring of the real sidecars; 0 if there are too few real sidecars for a
    /// ring.
    fn real_service_count(&self) -> usize {
        let count = self.setup.real_sidecars.min(self.setup.sidecars) / WORKLOADS_PER_SERVICE;
        if count > 1 { count } else { 0 }
    }

    /// True if real sidecars can call each other.
    pub(super) fn has_real_services(&self) -> bool {
        self.real_service_count() > 0
    }

    /// Returns the name of a service, and the number of its workloads.
    pub(super) fn service_name_and_size(&self, service: usize) -> (String, usize) {
        let remaining = self.setup.sidecars - service * WORKLOADS_PER_SERVICE;
        (format!("bench/service-{service}"), remaining.min(WORKLOADS_PER_SERVICE))
    }

    pub(super) fn service_count(&self) -> usize {
        self.setup.sidecars.div_ceil(WORKLOADS_PER_SERVICE).max(1)
    }

    /// Returns the port of a workload's application. All real workloads share one application.
    pub(super) fn application_port(&mut self, index: usize) -> anyhow::Result<u16> {
        match index < self.setup.real_sidecars {
            true => self.ports.port_for("application"),
            false => Ok(UNUSED_PORT),
        }
    }

    /// Returns all manifests of the mesh, except the rule that the policies reference.
    pub(super) fn render_manifests(&mut self) -> anyhow::Result<String> {
        let default_policy = self.testbed.default_policy;
        let mut manifests = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: MeshConfig\nmetadata: {{name: mesh}}\n\
             spec: {{defaultPolicy: {}}}\n",
            default_policy.as_str()
        );
        for index in 0..self.setup.sidecars {
            let (service, port) = (index / WORKLOADS_PER_SERVICE, self.application_port(index)?);
            let name = workload_name(index);
            let name = name.trim_start_matches("bench/");
            write!(
                manifests,
                "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\n\
                 metadata: {{name: {name}, namespace: bench, labels: {{app: service-{service}}}}}\n\
                 spec:\n  serviceAccount: service-{service}\n  \
                 ports: [{{name: main, port: {port}, protocol: HTTP}}]\n"
            )?;
            if index < self.setup.real_sidecars {
                manifests.push_str("  outbound:\n");
                for (number, used_service) in self.used_services(index).into_iter().enumerate() {
                    let listener_address =
                        self.ports.address_for(&format!("listener-{index}-{number}"))?;
                    writeln!(
                        manifests,
                        "  - {{service: service-{used_service}.bench, port: 80, listen: \"{listener_address}\"}}"
                    )?;
                }
            }
        }
        for service in 0..self.service_count() {
            write!(
                manifests,
                "---\napiVersion: v1\nkind: Service\n\
                 metadata: {{name: service-{service}, namespace: bench}}\n\
                 spec: {{selector: {{app: service-{service}}}, ports: [{{port: 80, \
                 targetPort: main}}]}}\n"
            )?;
        }
        if default_policy == BenchDefaultPolicy::Deny {
            self.write_policies(&mut manifests)?;
        }
        Ok(manifests)
    }

    /// Adds a `TrafficTarget` per service, which allows the requests of all services with workloads that use it.
    fn write_policies(&self, manifests: &mut String) -> anyhow::Result<()> {
        let service_count = self.service_count();
        let mut sources_by_service = vec![BTreeSet::new(); service_count];
        for index in 0..self.setup.sidecars {
            for used_service in self.used_services(index) {
                sources_by_service[used_service].insert(index / WORKLOADS_PER_SERVICE);
            }
        }
        for (service, sources) in sources_by_service.iter().enumerate() {
            write!(
                manifests,
                "---\napiVersion: access.smi-spec.io/v1alpha3\nkind: TrafficTarget\n\
                 metadata: {{name: service-{service}, namespace: bench}}\nspec:\n  destination: \
                 {{kind: ServiceAccount, name: service-{service}, namespace: bench}}\n  sources:\n"
            )?;
            for source in sources {
                writeln!(
                    manifests,
                    "  - {{kind: ServiceAccount, name: service-{source}, namespace: bench}}"
                )?;
            }
            manifests.push_str("  rules: [{kind: HTTPRouteGroup, name: all, matches: [all]}]\n");
        }
        Ok(())
    }
}

/// Returns a version of the rule that every policy references. Versions differ, and all allow the requests of
/// the benchmark.
pub(super) fn render_rule(version: usize) -> String {
    format!(
        "apiVersion: specs.smi-spec.io/v1alpha4\nkind: HTTPRouteGroup\n\
         metadata: {{name: all, namespace: bench}}\n\
         spec: {{matches: [{{name: all, pathRegex: \"/.*|/edition-{version}\", methods: [\"*\"]}}]}}\n"
    )
}

/// The unused port of the crowd's applications.
const UNUSED_PORT: u16 = 8080;
/// The number of services that use the last service: with ten workloads each, a hundred workloads.
const POPULAR_SERVICE_CLIENTS: usize = 10;

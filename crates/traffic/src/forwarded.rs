//! The traffic policies for ports that routes forward to: the policies of the called service combined with those of
//! the backend. Compiled with the snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_model::{Endpoint, ServiceName, WeightedBackend};

use crate::balance::hashing::EndpointHashTable;
use crate::compiled_snapshot::{CompiledPort, CompiledService, hash_inputs};
use crate::traffic_policy::PortTrafficPolicy;

/// The backend ports that the routes of a port with policies forward to, each with its effective policies.
#[derive(Debug)]
pub struct ForwardedPorts {
    ports: Box<[ForwardedPort]>,
    /// The index in `ports` of each backend, by rule index and backend index. `None` for a backend that is the port
    /// itself or does not exist.
    by_rule: Box<[Box<[Option<u32>]>]>,
}

/// A port that a route of the called service forwards to, with the policies that apply to the forwarded requests.
#[derive(Debug)]
pub struct ForwardedPort {
    /// The service of the backend.
    pub service: ServiceName,
    /// The number of the backend's port.
    pub port: u16,
    /// The combined policies of the called service and the backend.
    pub traffic_policy: Arc<PortTrafficPolicy>,
    /// The hash table of the port's endpoints, if the called service uses consistent hashing.
    pub hash_table: Option<Arc<EndpointHashTable>>,
    /// The policies of the called service, from which the fields above are compiled.
    called_policy: Arc<PortTrafficPolicy>,
    /// The policies of the backend itself.
    own_policy: Option<Arc<PortTrafficPolicy>>,
    /// The endpoints of the backend.
    endpoints: Arc<[Arc<Endpoint>]>,
}

/// The policies that apply to a request to a port.
#[derive(Debug, Clone, Copy)]
pub struct EffectivePolicies<'a> {
    /// The traffic policies, if any.
    pub traffic_policy: Option<&'a Arc<PortTrafficPolicy>>,
    /// The hash table of the port's endpoints, if a policy uses consistent hashing.
    pub hash_table: Option<&'a Arc<EndpointHashTable>>,
}

impl CompiledPort {
    /// Returns the policies of requests that no route of another port forwards.
    #[must_use]
    pub fn own_policies(&self) -> EffectivePolicies<'_> {
        EffectivePolicies {
            traffic_policy: self.traffic_policy.as_ref(),
            hash_table: self.hash_table.as_ref(),
        }
    }

    /// Returns the policies of a request that a rule of this port forwards to a backend. `rule_index` is the index of
    /// the rule in the port, `backend_index` the index of the backend in the rule, and `backend_port` the compiled port
    /// of the backend.
    #[must_use]
    pub fn policies_of_rule<'a>(
        &'a self,
        rule_index: usize,
        backend_index: usize,
        backend_port: &'a Self,
    ) -> EffectivePolicies<'a> {
        match &self.forwarded {
            None => backend_port.own_policies(),
            Some(forwarded) => match forwarded.find_by_rule(rule_index, backend_index) {
                None => backend_port.own_policies(),
                Some(port) => port.effective_policies(),
            },
        }
    }

    /// Returns the policies of a request or connection that this port forwards to a backend. `service` and `port` name
    /// the backend; `backend_port` is its compiled port.
    #[must_use]
    pub fn policies_to<'a>(
        &'a self,
        service: &ServiceName,
        port: u16,
        backend_port: &'a Self,
    ) -> EffectivePolicies<'a> {
        let forwarded =
            self.forwarded.as_ref().and_then(|forwarded| forwarded.find_port(service, port));
        forwarded.map_or_else(|| backend_port.own_policies(), ForwardedPort::effective_policies)
    }
}

impl ForwardedPort {
    /// Returns the policies of requests that are forwarded to the port.
    fn effective_policies(&self) -> EffectivePolicies<'_> {
        EffectivePolicies {
            traffic_policy: Some(&self.traffic_policy),
            hash_table: self.hash_table.as_ref(),
        }
    }

    /// True if the policies are the same objects as those of `other`.
    fn has_same_policies(&self, other: &Self) -> bool {
        let has_same_hash_table = match (&self.hash_table, &other.hash_table) {
            (None, None) => true,
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            _ => false,
        };
        has_same_hash_table
            && Arc::ptr_eq(&self.traffic_policy, &other.traffic_policy)
            && (&self.service, self.port) == (&other.service, other.port)
    }
}

impl ForwardedPorts {
    /// Compiles the policies of all forwarding routes of a port; `None` if the port has no policies, or no rule
    /// forwards to another port. `called_service` and `port_number` name the port.
    pub(crate) fn for_port(
        called_service: &ServiceName,
        port_number: u16,
        port: &CompiledPort,
        services: &BTreeMap<ServiceName, Arc<CompiledService>>,
        previous: Option<&Self>,
    ) -> Option<Arc<Self>> {
        let called_policy = port.traffic_policy.as_ref()?;
        let mut ports: Vec<ForwardedPort> = Vec::new();
        let mut index_for = |backend: &WeightedBackend| {
            let (service, number) = (&backend.service, backend.port);
            if (service, number) == (called_service, port_number) {
                return None;
            }
            let existing_index = ports
                .iter()
                .position(|existing| (&existing.service, existing.port) == (service, number));
            let index = existing_index.or_else(|| {
                let backend_port = services.get(service)?.ports.get(&number)?;
                let previous = previous.and_then(|previous| previous.find_port(service, number));
                ports.push(ForwardedPort::for_backend(
                    service,
                    number,
                    called_policy,
                    backend_port,
                    previous,
                ));
                Some(ports.len() - 1)
            })?;
            u32::try_from(index).ok()
        };
        let by_rule: Box<[Box<[Option<u32>]>]> = port
            .routes
            .rules()
            .iter()
            .map(|rule| rule.backends.iter().map(&mut index_for).collect())
            .collect();
        let tcp_backends = port.tcp_rule.iter().flat_map(|rule| &rule.backends);
        // Adds the ports of these backends. They are found by service and port number, so their indices are not stored.
        for backend in tcp_backends.chain(port.tls_routes.backends()) {
            index_for(backend);
        }
        (!ports.is_empty()).then(|| Arc::new(Self { ports: ports.into(), by_rule }))
    }

    /// Returns the ports that routes forward to.
    #[must_use]
    pub fn ports(&self) -> &[ForwardedPort] {
        &self.ports
    }

    /// Returns the port of a backend, by the indices of the rule and the backend.
    fn find_by_rule(&self, rule_index: usize, backend_index: usize) -> Option<&ForwardedPort> {
        let index = (*self.by_rule.get(rule_index)?.get(backend_index)?)?;
        self.ports.get(usize::try_from(index).ok()?)
    }

    /// Returns the port of a backend, by its service and port number.
    fn find_port(&self, service: &ServiceName, port: u16) -> Option<&ForwardedPort> {
        self.ports.iter().find(|candidate| candidate.port == port && candidate.service == *service)
    }

    /// True if all policies are the same objects as those of `other`.
    pub(crate) fn has_same_policies(&self, other: &Self) -> bool {
        self.by_rule == other.by_rule
            && self.ports.len() == other.ports.len()
            && self.ports.iter().zip(&other.ports).all(|(own, other)| own.has_same_policies(other))
    }
}

impl ForwardedPort {
    /// Combines the policies of the called service with those of a backend. Reuses the previous result if its inputs
    /// are unchanged.
    fn for_backend(
        service: &ServiceName,
        port: u16,
        called_policy: &Arc<PortTrafficPolicy>,
        backend_port: &CompiledPort,
        previous: Option<&Self>,
    ) -> Self {
        let own_policy = backend_port.traffic_policy.as_ref();
        let previous = previous.filter(|previous| {
            Arc::ptr_eq(&previous.called_policy, called_policy)
                && previous.own_policy.as_ref().map(Arc::as_ptr) == own_policy.map(Arc::as_ptr)
        });
        let traffic_policy = match previous {
            Some(previous) => Arc::clone(&previous.traffic_policy),
            None => PortTrafficPolicy::for_forwarded(called_policy, own_policy),
        };
        let has_own_balancing = own_policy.is_some_and(|own_policy| own_policy.balancing.is_some());
        let hash_table = match (&traffic_policy.balancing, previous) {
            (None, _) => None,
            (Some(_), _) if has_own_balancing => backend_port.hash_table.clone(),
            (Some(_), Some(previous))
                if hash_inputs(&previous.endpoints).eq(hash_inputs(&backend_port.endpoints)) =>
            {
                previous.hash_table.clone()
            }
            (Some(balancing), _) => {
                EndpointHashTable::for_endpoints(&balancing.rule.algorithm, &backend_port.endpoints)
                    .map(Arc::new)
            }
        };
        Self {
            service: service.clone(),
            port,
            traffic_policy,
            hash_table,
            called_policy: Arc::clone(called_policy),
            own_policy: own_policy.cloned(),
            endpoints: Arc::clone(&backend_port.endpoints),
        }
    }
}

#[cfg(test)]
mod tests;

//! Policies of a called service on the ports that its routes forward to, compiled with the snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_model::{Endpoint, ServiceName, WeightedBackend};

use crate::balance::hashing::EndpointHashTable;
use crate::compiled_snapshot::{CompiledPort, CompiledService, hash_inputs};
use crate::traffic_policy::PortTrafficPolicy;

/// The ports that the routes of a port with policies forward to, each with its effective policies.
#[derive(Debug)]
pub struct Forwarded {
    ports: Box<[ForwardedPort]>,
    /// The index in `ports` of each backend, by rule and backend index. A backend that is the port itself, or
    /// does not exist, has none.
    by_rule: Box<[Box<[Option<u32>]>]>,
}

/// A port that a route forwards to, with the policies that apply to callers of the routing service.
#[derive(Debug)]
pub struct ForwardedPort {
    /// The backend.
    pub service: ServiceName,
    /// Its port.
    pub port: u16,
    /// The combined policies of both.
    pub traffic_policy: Arc<PortTrafficPolicy>,
    /// The hash table of the port's endpoints, if the called service uses consistent hashing.
    pub hash_table: Option<Arc<EndpointHashTable>>,
    /// The inputs of the above.
    called: Arc<PortTrafficPolicy>,
    own: Option<Arc<PortTrafficPolicy>>,
    endpoints: Arc<[Arc<Endpoint>]>,
}

/// The policies of one path to a port, and the hash table of its endpoints under them.
pub type EffectivePolicies<'a> =
    (Option<&'a Arc<PortTrafficPolicy>>, Option<&'a Arc<EndpointHashTable>>);

impl CompiledPort {
    /// Returns the policies of direct calls.
    #[must_use]
    pub fn own_policies(&self) -> EffectivePolicies<'_> {
        (self.traffic_policy.as_ref(), self.hash_table.as_ref())
    }

    /// Returns the policies of a request that a rule of this port forwards to a backend, by both indices;
    /// `behind` is the backend's port.
    #[must_use]
    pub fn policies_of_rule<'a>(
        &'a self,
        rule: usize,
        backend: usize,
        behind: &'a Self,
    ) -> EffectivePolicies<'a> {
        match &self.forwarded {
            None => behind.own_policies(),
            Some(forwarded) => match forwarded.of_rule(rule, backend) {
                None => behind.own_policies(),
                Some(port) => port.effective_policies(),
            },
        }
    }

    /// Does the same by the name of the backend.
    #[must_use]
    pub fn policies_to<'a>(
        &'a self,
        service: &ServiceName,
        port: u16,
        behind: &'a Self,
    ) -> EffectivePolicies<'a> {
        let forwarded = self.forwarded.as_ref().and_then(|it| it.find_port(service, port));
        forwarded.map_or_else(|| behind.own_policies(), ForwardedPort::effective_policies)
    }
}

impl ForwardedPort {
    fn effective_policies(&self) -> EffectivePolicies<'_> {
        (Some(&self.traffic_policy), self.hash_table.as_ref())
    }

    fn is_same(&self, other: &Self) -> bool {
        let are_placed = match (&self.hash_table, &other.hash_table) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        are_placed
            && Arc::ptr_eq(&self.traffic_policy, &other.traffic_policy)
            && (&self.service, self.port) == (&other.service, other.port)
    }
}

impl Forwarded {
    /// Compiles the policies of all forwarding routes of a port; `None` if the port has no policies, or no rule
    /// forwards elsewhere.
    pub(crate) fn for_port(
        name: &ServiceName,
        number: u16,
        port: &CompiledPort,
        services: &BTreeMap<ServiceName, Arc<CompiledService>>,
        before: Option<&Self>,
    ) -> Option<Arc<Self>> {
        let called = port.traffic_policy.as_ref()?;
        let mut ports: Vec<ForwardedPort> = Vec::new();
        let mut place_of = |backend: &WeightedBackend| {
            let (service, to) = (&backend.service, backend.port);
            if (service, to) == (name, number) {
                return None;
            }
            let known = ports.iter().position(|it| (&it.service, it.port) == (service, to));
            let place = known.or_else(|| {
                let behind = services.get(service)?.ports.get(&to)?;
                let before = before.and_then(|it| it.find_port(service, to));
                ports.push(ForwardedPort::for_backend(service, to, called, behind, before));
                Some(ports.len() - 1)
            })?;
            u32::try_from(place).ok()
        };
        let by_rule: Box<[Box<[Option<u32>]>]> = port
            .routes
            .rules()
            .iter()
            .map(|rule| rule.backends.iter().map(&mut place_of).collect())
            .collect();
        let of_bytes = port.tcp_rule.iter().flat_map(|rule| &rule.backends);
        for backend in of_bytes.chain(port.tls_routes.backends()) {
            place_of(backend);
        }
        (!ports.is_empty()).then(|| Arc::new(Self { ports: ports.into(), by_rule }))
    }

    /// Returns the ports that routes forward to.
    #[must_use]
    pub fn ports(&self) -> &[ForwardedPort] {
        &self.ports
    }

    fn of_rule(&self, rule: usize, backend: usize) -> Option<&ForwardedPort> {
        let place = (*self.by_rule.get(rule)?.get(backend)?)?;
        self.ports.get(usize::try_from(place).ok()?)
    }

    fn find_port(&self, service: &ServiceName, port: u16) -> Option<&ForwardedPort> {
        self.ports.iter().find(|it| it.port == port && it.service == *service)
    }

    /// True if all policies are identical to those of `other`.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.by_rule == other.by_rule
            && self.ports.len() == other.ports.len()
            && self.ports.iter().zip(&other.ports).all(|(one, other)| one.is_same(other))
    }
}

impl ForwardedPort {
    fn for_backend(
        service: &ServiceName,
        port: u16,
        called: &Arc<PortTrafficPolicy>,
        behind: &CompiledPort,
        before: Option<&Self>,
    ) -> Self {
        let own = behind.traffic_policy.as_ref();
        let before = before.filter(|it| {
            Arc::ptr_eq(&it.called, called)
                && it.own.as_ref().map(Arc::as_ptr) == own.map(Arc::as_ptr)
        });
        let traffic_policy = match before {
            Some(before) => Arc::clone(&before.traffic_policy),
            None => PortTrafficPolicy::for_forwarded(called, own),
        };
        let is_own = own.is_some_and(|own| own.balancing.is_some());
        let places = match (&traffic_policy.balancing, before) {
            (None, _) => None,
            (Some(_), _) if is_own => behind.hash_table.clone(),
            (Some(_), Some(before))
                if hash_inputs(&before.endpoints).eq(hash_inputs(&behind.endpoints)) =>
            {
                before.hash_table.clone()
            }
            (Some(balancing), _) => {
                EndpointHashTable::for_endpoints(&balancing.rule.algorithm, &behind.endpoints)
                    .map(Arc::new)
            }
        };
        Self {
            service: service.clone(),
            port,
            traffic_policy,
            hash_table: places,
            called: Arc::clone(called),
            own: own.cloned(),
            endpoints: Arc::clone(&behind.endpoints),
        }
    }
}

#[cfg(test)]
mod tests;

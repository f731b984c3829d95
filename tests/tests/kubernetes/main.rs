//! Scenarios on a real cluster: Pods, kubelet, API server. `./test kubernetes` starts it, installs Leno and
//! runs them; each has its own namespaces.

#[cfg(test)]
mod alone;
#[cfg(test)]
mod both_versions;
#[cfg(test)]
mod by_plugin;
#[cfg(test)]
mod calls;
#[cfg(test)]
mod connectivity;
#[cfg(test)]
mod demonstrations;
#[cfg(test)]
mod empty;
#[cfg(test)]
mod ensembles;
#[cfg(test)]
mod exclusions;
#[cfg(test)]
mod gateways;
#[cfg(test)]
mod ingress_backends;
#[cfg(test)]
mod injection;
#[cfg(test)]
mod joining;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod migration;
#[cfg(test)]
mod policies;
#[cfg(test)]
mod precedence;
#[cfg(test)]
mod rejections;
#[cfg(test)]
mod sidecar_queries;
#[cfg(test)]
mod splits;
#[cfg(test)]
mod tcp;
#[cfg(test)]
mod under_load;
#[cfg(test)]
mod workloads;

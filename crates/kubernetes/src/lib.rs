//! What Kubernetes is told and asked: facts from its API server, pods that get a sidecar, identities
//! of service accounts.

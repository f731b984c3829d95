//! What Kubernetes is told and asked: objects of its API server in the mesh's terms.

pub mod node;
pub mod inject;
pub mod webhook;
pub mod words;

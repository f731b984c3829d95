//! What Kubernetes is told and asked: objects of its API server in the mesh's terms.

pub mod failure;
pub mod inject;
pub mod install;
pub mod webhook;
pub mod words;

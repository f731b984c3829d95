//! What Kubernetes is told and asked: objects of its API server in the mesh's terms.

pub mod read;
pub mod source;
pub mod status;
pub mod words;

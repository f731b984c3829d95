//! What Kubernetes is told and asked: objects of its API server in the mesh's terms.

pub mod api;
pub mod authority;
pub mod gateway;
pub mod guests;
pub mod inject;
pub mod install;
pub mod node;
pub mod peers;
pub mod read;
pub mod rejections;
pub mod review;
pub mod source;
pub mod status;
#[cfg(test)]
mod testing;
pub mod webhook;
pub mod words;

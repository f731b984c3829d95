//! Integration with Kubernetes: objects of its API server, in terms of the mesh.

pub mod api;
pub mod authority;
pub mod external_principals;
pub mod gateway;
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

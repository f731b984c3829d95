//! Integrates Leno with Kubernetes: converts the API server's objects into objects of the mesh, injects
//! sidecars, installs the mesh, provisions gateways, and writes statuses as the elected leader.

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
pub mod well_known;

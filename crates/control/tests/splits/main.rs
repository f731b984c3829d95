//! Traffic splits and TCP routes, from documents to a sidecar's decisions.

#[cfg(test)]
mod vectors;

//! Traffic splits and TCP routes, from documents to what a sidecar decides.

#[cfg(test)]
mod vectors;

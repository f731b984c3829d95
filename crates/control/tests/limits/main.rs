//! Rate limits, from documents to the decisions of a server's sidecar.

#[cfg(test)]
mod vectors;

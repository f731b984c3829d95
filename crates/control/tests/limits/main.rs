//! Rate limits, from documents to what the sidecar of a server decides.

#[cfg(test)]
mod vectors;

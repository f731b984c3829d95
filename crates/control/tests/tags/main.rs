//! Tag rules from documents to instances.

#[cfg(test)]
mod vectors;

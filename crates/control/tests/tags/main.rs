//! Tag rules, from documents to instances.

#[cfg(test)]
mod group;
#[cfg(test)]
mod vectors;

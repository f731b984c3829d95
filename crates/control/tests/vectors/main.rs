//! Vectors from documents through reader, mesh and compilation to sidecars' decisions.

#[cfg(test)]
mod access;
#[cfg(test)]
mod case;
#[cfg(test)]
mod removal;
#[cfg(test)]
mod retry;
#[cfg(test)]
mod routes;

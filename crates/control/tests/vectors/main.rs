//! Vectors that go from documents through reader, mesh and compilation to what sidecars decide.

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

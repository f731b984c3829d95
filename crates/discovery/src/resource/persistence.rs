//! Wire conversion of session persistence settings.

use std::time::Duration;

use leno_model::{Carries, Persistence};

use super::action::to_nanoseconds;
use super::field::Invalid;
use crate::proto;

pub(super) fn to_wire(persistence: &Persistence) -> proto::Persistence {
    let carrier = match persistence.carrier {
        Carries::Cookie => proto::Carries::Cookie,
        Carries::LastingCookie => proto::Carries::LastingCookie,
        Carries::Header => proto::Carries::Header,
    };
    proto::Persistence {
        name: persistence.name.clone(),
        carrier: carrier.into(),
        absolute_nanoseconds: persistence.absolute.map(to_nanoseconds),
        idle_nanoseconds: persistence.idle.map(to_nanoseconds),
        path: persistence.path.clone(),
    }
}

/// Name and path are copied into headers: those that could break a message are rejected.
pub(super) fn from_wire(wire: proto::Persistence) -> Result<Persistence, Invalid> {
    let carrier = match proto::Carries::try_from(wire.carrier) {
        Ok(proto::Carries::Cookie) => Carries::Cookie,
        Ok(proto::Carries::LastingCookie) => Carries::LastingCookie,
        Ok(proto::Carries::Header) => Carries::Header,
        Ok(proto::Carries::Unspecified) | Err(_) => {
            return Err(Invalid::new("carrier", "is unknown to this version"));
        }
    };
    if wire.name.as_ref().is_some_and(|name| !Persistence::is_name(name, carrier)) {
        return Err(Invalid::new("name", "is not a valid cookie or header name"));
    }
    if wire.path.as_ref().is_some_and(|path| !Persistence::is_path(path)) {
        return Err(Invalid::new("path", "is not a valid cookie path"));
    }
    if carrier == Carries::LastingCookie && wire.absolute_nanoseconds.is_none() {
        return Err(Invalid::new("absolute_nanoseconds", "is missing"));
    }
    Ok(Persistence {
        name: wire.name,
        carrier,
        absolute: wire.absolute_nanoseconds.map(Duration::from_nanos),
        idle: wire.idle_nanoseconds.map(Duration::from_nanos),
        path: wire.path,
    })
}

//! Converts session persistence settings to and from the wire. They are a part of rule actions.

use std::time::Duration;

use leno_model::{PersistenceType, SessionPersistence};

use super::field::{InvalidField, to_nanoseconds};
use crate::proto;

pub(super) fn to_wire(persistence: &SessionPersistence) -> proto::SessionPersistence {
    let kind = match persistence.kind {
        PersistenceType::Cookie => proto::Carries::Cookie,
        PersistenceType::LastingCookie => proto::Carries::LastingCookie,
        PersistenceType::Header => proto::Carries::Header,
    };
    proto::SessionPersistence {
        name: persistence.name.clone(),
        carrier: kind.into(),
        absolute_nanoseconds: persistence.absolute_timeout.map(to_nanoseconds),
        idle_nanoseconds: persistence.idle_timeout.map(to_nanoseconds),
        path: persistence.path.clone(),
    }
}

/// Parses settings. Name and path are copied into headers, so values that could break a message are rejected.
pub(super) fn from_wire(
    wire: proto::SessionPersistence,
) -> Result<SessionPersistence, InvalidField> {
    let kind = match proto::Carries::try_from(wire.carrier) {
        Ok(proto::Carries::Cookie) => PersistenceType::Cookie,
        Ok(proto::Carries::LastingCookie) => PersistenceType::LastingCookie,
        Ok(proto::Carries::Header) => PersistenceType::Header,
        Ok(proto::Carries::Unspecified) | Err(_) => {
            return Err(InvalidField::new("carrier", "is unknown to this version"));
        }
    };
    if wire.name.as_ref().is_some_and(|name| !SessionPersistence::is_valid_name(name, kind)) {
        return Err(InvalidField::new("name", "is not a valid cookie or header name"));
    }
    if wire.path.as_ref().is_some_and(|path| !SessionPersistence::is_valid_path(path)) {
        return Err(InvalidField::new("path", "is not a valid cookie path"));
    }
    if kind == PersistenceType::LastingCookie && wire.absolute_nanoseconds.is_none() {
        return Err(InvalidField::new("absolute_nanoseconds", "is missing"));
    }
    Ok(SessionPersistence {
        name: wire.name,
        kind,
        absolute_timeout: wire.absolute_nanoseconds.map(Duration::from_nanos),
        idle_timeout: wire.idle_nanoseconds.map(Duration::from_nanos),
        path: wire.path,
    })
}

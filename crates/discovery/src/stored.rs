//! Encodes a proxy's last valid configuration for the disk: a magic number, a checksum, and every resource in
//! wire format. A restarted proxy serves from the stored configuration until the control plane responds.

use leno_model::Snapshot;
use prost::Message;

use crate::envelope::{services_from_wire, services_to_wire, upsert_to_wire, upserts_from_wire};
use crate::held_versions::service_endpoints;
use crate::key::{ChangeId, ResourceKey, ResourceVersion};
use crate::message::{ConfigUpdate, Delta, Upsert};
use crate::proto;
use crate::resource::{
    encode_address_entry, encode_dns_record, encode_endpoint, encode_service,
    encode_workload_config,
};

impl ConfigUpdate {
    /// Encodes this configuration for the disk, versioned and checksummed; read by
    /// [`crate::Subscriber::from_bytes`].
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let stored = proto::StoredConfig {
            change: self.change.0,
            resources: snapshot_resources(&self.snapshot).map(upsert_to_wire).collect(),
            absent: Some(services_to_wire(&self.absent)),
        };
        let content = stored.encode_to_vec();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(ResourceVersion::from_content(&content).0.to_be_bytes());
        bytes.extend(content);
        bytes
    }
}

/// Decodes a stored configuration as a delta from an empty one.
pub(crate) fn decode_stored(bytes: &[u8]) -> Result<Delta, InvalidStoredConfig> {
    let checksum_and_content =
        bytes.strip_prefix(MAGIC).ok_or(InvalidStoredConfig::UnknownFormat)?;
    let (checksum, content) =
        checksum_and_content.split_first_chunk::<8>().ok_or(InvalidStoredConfig::Damaged)?;
    if ResourceVersion::from_content(content).0 != u64::from_be_bytes(*checksum) {
        return Err(InvalidStoredConfig::Damaged);
    }
    let stored = proto::StoredConfig::decode(content)
        .map_err(|error| InvalidStoredConfig::Invalid(error.to_string()))?;
    let to_error = |invalid: crate::resource::InvalidField| {
        InvalidStoredConfig::Invalid(format!("{}: {}", invalid.field, invalid.reason))
    };
    let absent = stored.absent.unwrap_or_default();
    Ok(Delta {
        nonce: 0,
        change: ChangeId(stored.change),
        whole: true,
        upserts: upserts_from_wire(stored.resources).map_err(to_error)?,
        removed: Vec::new(),
        absent: Some(services_from_wire(&absent.names).map_err(to_error)?),
    })
}

/// The reason why a stored configuration is unusable. Each message contains the remedy: delete the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStoredConfig {
    /// The magic number is missing, or the file was written by another version.
    #[error("not a stored configuration of this version: delete the file")]
    UnknownFormat,
    /// The checksum does not match.
    #[error("the stored configuration is damaged: delete the file")]
    Damaged,
    /// The content is not a valid configuration.
    #[error("the stored configuration is invalid ({0}): delete the file")]
    Invalid(String),
}

/// Returns all resources of a snapshot: the workload configuration, then each service before its endpoints,
/// then addresses and names.
fn snapshot_resources(snapshot: &Snapshot) -> impl Iterator<Item = Upsert> {
    let config =
        Upsert { key: ResourceKey::Workload, content: encode_workload_config(&snapshot.config) };
    let services = snapshot.services.iter().flat_map(|(name, service_config)| {
        let key = ResourceKey::Service(name.clone());
        let service = Upsert { key, content: encode_service(service_config) };
        let endpoints = service_endpoints(service_config).map(|(_, endpoint)| Upsert {
            key: ResourceKey::Endpoint(endpoint.id.clone()),
            content: encode_endpoint(endpoint),
        });
        std::iter::once(service).chain(endpoints)
    });
    let addresses = snapshot.addresses.iter().map(|(address, address_entry)| Upsert {
        key: ResourceKey::Address(*address),
        content: encode_address_entry(address_entry),
    });
    let names = snapshot.names.iter().map(|(name, dns_record)| Upsert {
        key: ResourceKey::Name(name.clone()),
        content: encode_dns_record(dns_record),
    });
    std::iter::once(config).chain(services).chain(addresses).chain(names)
}

/// The magic number of a stored configuration; the last byte is the version of the format.
const MAGIC: &[u8; 8] = b"lenowld\x01";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Subscriber;
    use crate::fixture::bookinfo_update;

    #[test]
    fn a_stored_configuration_survives_a_round_trip() {
        let update = bookinfo_update();
        let subscriber = Subscriber::from_bytes(&update.to_bytes()).unwrap();
        assert_eq!(subscriber.current_update(), Some(&update));
        assert_eq!(subscriber.to_bytes(), update.to_bytes());
    }

    #[test]
    fn a_changed_or_missing_byte_is_detected() {
        let bytes = bookinfo_update().to_bytes();
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 0x40;
            assert!(Subscriber::from_bytes(&changed).is_err(), "byte {index}");
            assert!(Subscriber::from_bytes(&bytes[..index]).is_err(), "{index} bytes");
        }
    }

    #[test]
    fn a_subscriber_without_a_configuration_stores_no_usable_one() {
        let stored = Subscriber::new().to_bytes();
        assert_eq!(
            Subscriber::from_bytes(&stored).unwrap_err(),
            InvalidStoredConfig::UnknownFormat
        );
    }

    #[test]
    fn a_stored_configuration_with_dangling_references_is_rejected() {
        let mut update = bookinfo_update();
        update.absent.clear();
        let error = Subscriber::from_bytes(&update.to_bytes()).unwrap_err();
        assert!(error.to_string().contains("bookinfo/missing"), "{error}");
    }
}

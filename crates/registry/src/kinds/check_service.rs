//! Reads a check service (external authorization or rate limit service): its address, timeout and failure mode.

use std::time::Duration;

use leno_model::{CheckService, CheckServiceAddress, FailureMode, Name, Server, ServiceName};

use super::request_condition::require_exactly_one_key;
use super::service_policy::read_duration_or;
use crate::field::{Field, MapFields};

/// Reads the address from the field `service` or `url`, and the optional fields `timeout` and `failureMode`.
pub(super) fn read(
    fields: &MapFields<'_>,
    namespace: &Name,
    default_timeout: Duration,
    default_failure_mode: FailureMode,
) -> Option<CheckService> {
    let address = match require_exactly_one_key(fields, &["service", "url"])? {
        "service" => read_service(fields.find("service")?, namespace),
        _ => read_external_server(fields.find("url")?),
    };
    let (min, max) = (CheckService::MIN_TIMEOUT, CheckService::MAX_TIMEOUT);
    let timeout = read_duration_or(fields, "timeout", min, max, default_timeout);
    let failure_mode = match fields.find("failureMode") {
        Some(field) => field.read_choice(FailureMode::ALL),
        None => Some(default_failure_mode),
    };
    Some(CheckService { address: address?, timeout: timeout?, failure_mode: failure_mode? })
}

/// Reads a service of the mesh and its port. The namespace defaults to the policy's.
fn read_service(field: &Field<'_>, own_namespace: &Name) -> Option<CheckServiceAddress> {
    let fields = field.read_fields(&["name", "namespace", "port"])?;
    let name = fields.require("name").and_then(Field::read_label);
    let port = fields.require("port").and_then(Field::read_port);
    let namespace = match fields.find("namespace") {
        Some(field) => field.read_label(),
        None => Some(own_namespace.clone()),
    };
    let service = ServiceName { namespace: namespace?, name: name? };
    Some(CheckServiceAddress::Service { service, port: port? })
}

/// Reads the URL of a server outside the mesh.
fn read_external_server(field: &Field<'_>) -> Option<CheckServiceAddress> {
    match Server::parse(field.read_text()?) {
        Ok(server) => Some(CheckServiceAddress::External(server)),
        Err(reason) => {
            field.reject(
                format!("{} is not a valid server: {reason}", field.quoted_url()),
                "correct it, as in `http://127.0.0.1:9000`",
            );
            None
        }
    }
}

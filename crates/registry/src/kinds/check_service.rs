//! Reader of the address of a check service, and of the action on its failure.

use std::time::Duration;

use leno_model::{CheckService, CheckServiceAddress, FailureMode, Name, Server, ServiceName};

use super::request_test::only_one;
use super::service_policy::time_or;
use crate::field::{Field, MapFields};

/// Reads the fields `service` or `url`, `timeout` and `failureMode`.
pub(super) fn read(
    fields: &MapFields<'_>,
    namespace: &Name,
    timeout: Duration,
    failure_mode: FailureMode,
) -> Option<CheckService> {
    let at = match only_one(fields, &["service", "url"])? {
        "service" => read_service(fields.find("service")?, namespace),
        _ => read_outside_server(fields.find("url")?),
    };
    let timeout =
        time_or(fields, "timeout", CheckService::TIMEOUT_MIN, CheckService::TIMEOUT_MAX, timeout);
    let failure_mode = match fields.find("failureMode") {
        Some(field) => field.read_choice(FailureMode::ALL),
        None => Some(failure_mode),
    };
    Some(CheckService { at: at?, timeout: timeout?, failure_mode: failure_mode? })
}

fn read_service(field: &Field<'_>, own: &Name) -> Option<CheckServiceAddress> {
    let fields = field.read_fields(&["name", "namespace", "port"])?;
    let name = fields.require("name").and_then(Field::read_label);
    let port = fields.require("port").and_then(Field::read_port);
    let namespace = match fields.find("namespace") {
        Some(field) => field.read_label(),
        None => Some(own.clone()),
    };
    let service = ServiceName { namespace: namespace?, name: name? };
    Some(CheckServiceAddress::Service { service, port: port? })
}

fn read_outside_server(field: &Field<'_>) -> Option<CheckServiceAddress> {
    match Server::parse(field.read_text()?) {
        Ok(server) => Some(CheckServiceAddress::External(server)),
        Err(reason) => {
            field.reject(
                format!("{} is not a valid server: {reason}", field.shown_url()),
                "correct it, as in `http://127.0.0.1:9000`",
            );
            None
        }
    }
}

//! Reads the source of a token issuer's keys (JWKS): an inline key set, the path of a file, or the URL of a server.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leno_model::{AddressClass, InvalidEndpoint, IssuerKeys, KeyServer, KeySource, Scheme};

use super::request_condition::require_exactly_one_key;
use super::service_policy::read_duration_or;
use crate::field::{Field, MapFields};

/// Reads exactly one of the fields `inline`, `file` and `url`, and `refreshInterval` together with `url`.
pub(super) fn read(field: &Field<'_>) -> Option<IssuerKeys> {
    if field.plain_text().is_some_and(|text| text.trim_start().starts_with('{')) {
        field.reject("is a text, not a map", "write a map with the text as `inline`");
        return None;
    }
    if let Some(path) = field.plain_text().and_then(file_url_path) {
        let hint = format!("write a map with its path: {{file: \"{path}\"}}");
        field.reject(format!("is {}, not a map", field.quoted_value()), hint);
        return None;
    }
    let fields = field.read_fields(&["inline", "file", "url", "refreshInterval"])?;
    let key = require_exactly_one_key(&fields, &["inline", "file", "url"])?;
    if let (Some(refresh_interval), false) = (fields.find("refreshInterval"), key == "url") {
        refresh_interval.reject("applies to `url` only", "remove it; files are watched");
    }
    match key {
        "inline" => read_inline(fields.find("inline")?),
        "file" => read_file_path(fields.find("file")?).map(KeySource::File).map(IssuerKeys::Source),
        _ => read_server(&fields).map(KeySource::Server).map(IssuerKeys::Source),
    }
}

/// True if the text looks like a URL of any scheme.
fn is_url(text: &str) -> bool {
    text.contains("://")
}

/// Reads a file path. A path that looks like a URL is rejected.
fn read_file_path(field: &Field<'_>) -> Option<PathBuf> {
    let path = field.read_path()?;
    let text = field.read_text()?;
    let hint = match file_url_path(text) {
        Some(path) => format!("write the path alone: \"{path}\""),
        None if !is_url(text) => return Some(path),
        None if KeyServer::parse(text, DEFAULT_REFRESH_INTERVAL).is_ok() => {
            "write it as `url`".to_owned()
        }
        None => "write the path of a file, as in `/etc/leno/keys.json`".to_owned(),
    };
    field.reject(format!("{} is a URL, not the path of a file", field.quoted_value()), hint);
    None
}

/// Returns the path in a local `file` URL (RFC 8089), for a hint; `None` if the text is no such URL or the path is too
/// long or has characters that a hint would have to escape.
fn file_url_path(text: &str) -> Option<&str> {
    let (scheme, after_scheme) = text.split_once(':')?;
    let path = after_scheme
        .strip_prefix("//localhost")
        .or_else(|| after_scheme.strip_prefix("//"))
        .unwrap_or(after_scheme);
    let is_file = scheme.eq_ignore_ascii_case("file") && path.starts_with('/');
    let is_unescaped = |c: char| !c.is_control() && !matches!(c, '"' | '\\' | '`');
    let has_name = Path::new(path).file_name().is_some() && path.len() <= MAX_PATH_IN_HINT_BYTES;
    (is_file && has_name && path.chars().all(is_unescaped)).then_some(path)
}

/// Reads an inline JWK set and checks its form. Sidecars determine whether its keys are usable.
fn read_inline(inline: &Field<'_>) -> Option<IssuerKeys> {
    let text = inline.read_text()?;
    let problem = if text.len() > IssuerKeys::MAX_BYTES {
        Some(format!("has {} bytes, of which {} are read", text.len(), IssuerKeys::MAX_BYTES))
    } else {
        let jwk_set: Option<serde_json::Value> = serde_json::from_str(text).ok();
        let keys = jwk_set.as_ref().and_then(|jwk_set| jwk_set.get("keys")?.as_array());
        let is_public_key = |key: &serde_json::Value| {
            let key_type = key.get("kty").and_then(serde_json::Value::as_str);
            matches!(key_type, Some("RSA" | "EC" | "OKP"))
        };
        match keys {
            None => Some("is not a JWK set, which is JSON with `keys`".to_owned()),
            Some(keys) if !keys.iter().any(is_public_key) => Some(
                "has no public key: only keys with the `kty` RSA, EC or OKP can verify tokens"
                    .to_owned(),
            ),
            Some(_) => None,
        }
    };
    match problem {
        None => Some(IssuerKeys::Inline(text.into())),
        Some(problem) => {
            inline.reject(problem, "copy the content of the issuer's `jwks_uri`");
            None
        }
    }
}

/// Reads the URL of a JWKS server. Plaintext and special addresses, such as link-local ones, are warnings.
fn read_server(fields: &MapFields<'_>) -> Option<KeyServer> {
    let refresh_interval = read_duration_or(
        fields,
        "refreshInterval",
        KeyServer::MIN_REFRESH_INTERVAL,
        KeyServer::MAX_REFRESH_INTERVAL,
        DEFAULT_REFRESH_INTERVAL,
    );
    let field = fields.find("url")?;
    match KeyServer::parse(field.read_text()?, refresh_interval?) {
        Ok(key_server) => {
            if key_server.server.scheme == Scheme::Http
                && !is_loopback_host(&key_server.server.host)
            {
                field.warn(
                    "is queried in plaintext: an attacker on the network path can have tokens \
                     accepted",
                    "use https",
                );
            }
            let address = key_server.server.host.parse::<IpAddr>();
            if address
                .is_ok_and(|address| AddressClass::from_address(address) == AddressClass::Special)
            {
                field.warn(
                    "is a special address: keys are fetched from it only if the operator permits \
                     it",
                    "name the issuer's own server, or list the address in `leno control --jwks-allow`",
                );
            }
            Some(key_server)
        }
        Err(reason) => {
            let text = field.read_text().unwrap_or_default();
            let hint = match (&reason, file_url_path(text)) {
                (_, Some(path)) => format!("write its path as `file`: \"{path}\""),
                (InvalidEndpoint::Scheme, None) if text.starts_with(['/', '.']) => {
                    "write the path of a file as `file`".to_owned()
                }
                _ => "correct it, as in `https://accounts.example.com/.well-known/jwks.json`"
                    .to_owned(),
            };
            field.reject(
                format!("{} is not a valid JWKS endpoint: {reason}", field.quoted_url()),
                hint,
            );
            None
        }
    }
}

/// True if the host is a loopback address or `localhost`.
fn is_loopback_host(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Maximum length of a path that a hint repeats.
const MAX_PATH_IN_HINT_BYTES: usize = 256;
/// The default refresh interval, as in Envoy.
const DEFAULT_REFRESH_INTERVAL: Duration = Duration::from_secs(300);

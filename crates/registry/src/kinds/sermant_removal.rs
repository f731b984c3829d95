//! Reads the `leno.dev/v1alpha1` `SermantRemoval` kind: the settings of Sermant's `sermant.removal.config`.
//!
//! Sermant counts exceptions of the client's JVM by class. A sidecar sees no exceptions: classes with an observable
//! equivalent are mapped to it, and all others are rejected.

use std::time::Duration;

use leno_model::{
    FailureClasses, Name, SermantCommon, SermantConfig, SermantRemovalSpec, SermantRule,
};

use super::service_policy::{read_number_or, read_share};
use crate::document::{DocumentNode, parse_documents};
use crate::field::{Field, MapFields};
use crate::schema_reader::read_definition;

/// Reads the `spec` of a `SermantRemoval`. The field `config` contains Sermant's YAML as text.
pub(super) fn read(namespace: &Name, spec: &Field<'_>) -> Option<SermantConfig> {
    let SermantRemovalSpec { config: text, .. } = read_definition(spec, namespace)?;
    let config = &spec.child("config")?;
    let mut nodes = match parse_documents(&text) {
        Ok(nodes) => nodes,
        Err(error) => {
            config.reject(error.problem, "correct the syntax");
            return None;
        }
    };
    let [node] = nodes.as_mut_slice() else {
        config.reject("is not one document", "write the content of sermant.removal.config");
        return None;
    };
    node.shift_lines(config.line().saturating_sub(1));
    let node: &DocumentNode = node;
    read_config(&config.embedded_field(node))
}

/// Reads the settings of `sermant.removal.config`; the defaults are those of Sermant. If the settings do not enable the
/// removal, the result has no rules.
fn read_config(config: &Field<'_>) -> Option<SermantConfig> {
    let fields = config.read_fields(&[
        "enableRemoval",
        "expireTime",
        "exceptions",
        "recoveryTime",
        "windowsTime",
        "windowsNum",
        "rules",
    ])?;
    let is_enabled = match fields.find("enableRemoval") {
        Some(field) => field.read_flag()?,
        None => false,
    };
    if !is_enabled {
        config.warn(
            "does not enable the removal: no endpoint is ejected",
            "set `enableRemoval: true`",
        );
    }
    let common = SermantCommon {
        failures: read_exceptions(&fields)?,
        expire: read_milliseconds(&fields, "expireTime", 60_000)?,
        recovery: read_milliseconds(&fields, "recoveryTime", 30_000)?,
        window: read_milliseconds(&fields, "windowsTime", 1_000)?,
        windows: read_number_or(&fields, "windowsNum", 1, 1_000, 10)?,
    };
    let (rules, default_rule) = read_rules(&fields)?;
    Some(match is_enabled {
        true => SermantConfig { common, rules, default_rule },
        false => SermantConfig { common, rules: Vec::new(), default_rule: None },
    })
}

/// The rules by service, and the default rule.
type SermantServiceRules = (Vec<(Name, SermantRule)>, Option<SermantRule>);

/// Reads the rules; without the field `rules`, Sermant's default rule applies to all services.
fn read_rules(fields: &MapFields<'_>) -> Option<SermantServiceRules> {
    let Some(field) = fields.find("rules") else {
        return Some((Vec::new(), Some(DEFAULT_RULE)));
    };
    let mut service_rules: Vec<(Name, SermantRule)> = Vec::new();
    let mut default_rule = None;
    for element in field.read_list(MAX_RULES)? {
        let rule_fields =
            element.read_fields(&["key", "scaleUpLimit", "minInstanceNum", "errorRate"])?;
        let key = rule_fields.require("key")?;
        let rule = SermantRule {
            scale_up_limit_ppm: read_share_or(
                &rule_fields,
                "scaleUpLimit",
                DEFAULT_RULE.scale_up_limit_ppm,
            )?,
            min_instances: read_number_or(&rule_fields, "minInstanceNum", 0, 1_000_000, 1)?,
            error_rate_ppm: read_share_or(&rule_fields, "errorRate", DEFAULT_RULE.error_rate_ppm)?,
        };
        let is_duplicate = match key.read_text()? {
            "default-rule" => default_rule.replace(rule).is_some(),
            key_text => {
                // In Nacos, a service name has its group as prefix: `GROUP@@SERVICE`.
                let name_text = key_text.rsplit("@@").next().unwrap_or(key_text);
                let Ok(name) = Name::new(name_text) else {
                    key.reject(
                        format!("{} is not the name of a service here", key.quoted_value()),
                        "use the name of a Service of this namespace, or `default-rule`",
                    );
                    continue;
                };
                let is_duplicate = service_rules.iter().any(|(other, _)| *other == name);
                service_rules.push((name, rule));
                is_duplicate
            }
        };
        if is_duplicate {
            element.reject("has the key of another rule", "remove one of the two");
        }
    }
    service_rules.sort_by(|(a, _), (b, _)| a.cmp(b));
    Some((service_rules, default_rule))
}

/// Reads a share in parts per million; `default` if the field is absent.
fn read_share_or(fields: &MapFields<'_>, key: &str, default: u32) -> Option<u32> {
    match fields.find(key) {
        Some(field) => read_share(field),
        None => Some(default),
    }
}

/// Reads a number of milliseconds from 1 ms to 24 h, or returns `default` if the field is absent.
fn read_milliseconds(fields: &MapFields<'_>, key: &str, default: u32) -> Option<Duration> {
    let number = read_number_or(fields, key, 1, 24 * 3_600_000, default)?;
    Some(Duration::from_millis(number.into()))
}

/// Reads `exceptions` as failure classes; the default is timeouts only.
fn read_exceptions(fields: &MapFields<'_>) -> Option<FailureClasses> {
    let mut classes = FailureClasses::default();
    let Some(field) = fields.find("exceptions") else {
        classes.timeout = true;
        return Some(classes);
    };
    for element in field.read_list(MAX_EXCEPTIONS)? {
        match element.read_choice(EXCEPTION_CLASSES)? {
            ClientException::Timeout => classes.timeout = true,
            ClientException::Connect => classes.connect = true,
            ClientException::Reset => classes.reset = true,
        }
    }
    Some(classes)
}

/// A failure that a sidecar can observe, in place of the exceptions of the client's JVM.
#[derive(Clone, Copy)]
enum ClientException {
    Timeout,
    Connect,
    Reset,
}

/// The supported exception classes.
const EXCEPTION_CLASSES: &[(&str, ClientException)] = &[
    ("com.alibaba.dubbo.remoting.TimeoutException", ClientException::Timeout),
    ("org.apache.dubbo.remoting.TimeoutException", ClientException::Timeout),
    ("java.util.concurrent.TimeoutException", ClientException::Timeout),
    ("java.net.SocketTimeoutException", ClientException::Timeout),
    ("java.net.ConnectException", ClientException::Connect),
    ("java.net.NoRouteToHostException", ClientException::Connect),
    ("java.net.SocketException", ClientException::Reset),
];

/// Sermant's default rule.
const DEFAULT_RULE: SermantRule =
    SermantRule { scale_up_limit_ppm: 600_000, min_instances: 1, error_rate_ppm: 600_000 };
/// Maximum number of rules per configuration.
const MAX_RULES: usize = 1024;
/// Maximum number of exception classes per configuration.
const MAX_EXCEPTIONS: usize = 64;

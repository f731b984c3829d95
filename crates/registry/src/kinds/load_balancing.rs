//! Reader of the `leno.dev/v1alpha1` `LoadBalancing` kind.

use std::time::Duration;

use leno_model::{BalanceAlgorithm, HashKey, LoadBalancing, Name, PolicyScope, SlowStart};

use super::http_route::header_name;
use super::service_policy::{number_or, percent_or, read_duration_within, read_targets};
use crate::field::{Field, MapFields};

pub(super) fn read(namespace: &Name, spec: &Field<'_>) -> Option<(PolicyScope, LoadBalancing)> {
    let fields = spec.read_fields(&["targetRefs", "algorithm", "choiceCount", "key", "warmup"])?;
    let scope = read_targets(&fields, namespace);
    let algorithm = read_algorithm(&fields);
    let warm_up = match fields.find("warmup") {
        Some(field) => Some(read_warm_up(field)?),
        None => None,
    };
    let algorithm = algorithm?;
    if let (Some(field), Some(_)) = (fields.find("warmup"), algorithm.hash_key()) {
        field.reject(
            "is not supported with a key, which selects its endpoint regardless of age",
            "remove it, or use another algorithm",
        );
    }
    Some((scope?, LoadBalancing { algorithm, slow_start: warm_up }))
}

fn read_algorithm(fields: &MapFields<'_>) -> Option<BalanceAlgorithm> {
    let word = match fields.find("algorithm") {
        Some(field) => field.read_choice(ALGORITHMS)?,
        None => BalancingAlgorithm::PeakEwma,
    };
    let compares = matches!(word, BalancingAlgorithm::PeakEwma | BalancingAlgorithm::LeastRequest);
    if let (Some(field), false) = (fields.find("choiceCount"), compares) {
        field.reject("requires PeakEwma or LeastRequest", "remove it, or use one of these");
    }
    let hashes = matches!(word, BalancingAlgorithm::RingHash | BalancingAlgorithm::Maglev);
    if let (Some(field), false) = (fields.find("key"), hashes) {
        field.reject("requires RingHash or Maglev", "remove it, or use one of these");
    }
    let choices = || {
        let most = LoadBalancing::CHOICES_MAX.into();
        u8::try_from(number_or(fields, "choiceCount", 2, most, 2)?).ok()
    };
    Some(match word {
        BalancingAlgorithm::PeakEwma => BalanceAlgorithm::PeakEwma { choices: choices()? },
        BalancingAlgorithm::LeastRequest => BalanceAlgorithm::LeastRequest { choices: choices()? },
        BalancingAlgorithm::RoundRobin => BalanceAlgorithm::RoundRobin,
        BalancingAlgorithm::Random => BalanceAlgorithm::Random,
        BalancingAlgorithm::RingHash => {
            BalanceAlgorithm::RingHash(read_key(fields.require("key")?)?)
        }
        BalancingAlgorithm::Maglev => BalanceAlgorithm::Maglev(read_key(fields.require("key")?)?),
    })
}

/// Reads `{header: NAME}`, `{cookie: NAME}` or `{source: true}`.
fn read_key(field: &Field<'_>) -> Option<HashKey> {
    let fields = field.read_fields(&["header", "cookie", "source"])?;
    let given = |key: &&str| fields.find(key).is_some();
    let [key] =
        ["header", "cookie", "source"].into_iter().filter(|it| given(it)).collect::<Vec<_>>()[..]
    else {
        field.reject(
            "must have exactly one key",
            "use one of `header`, `cookie` and `source: true`",
        );
        return None;
    };
    let value = fields.require(key)?;
    match key {
        "header" => header_name(value, value.read_text()?).map(HashKey::Header),
        "cookie" => {
            let name = value.read_text()?;
            // RFC 6265 §4.1.1: a cookie name is a token.
            let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
            if name.is_empty() || !name.bytes().all(token) {
                let problem = format!("{} is not the name of a cookie", value.quoted_value());
                value.reject(problem, "use letters, digits and `-`");
                return None;
            }
            Some(HashKey::Cookie(name.to_owned()))
        }
        _ => {
            if !value.read_boolean()? {
                value.reject("has no key", "use `source: true`, or another key");
            }
            Some(HashKey::Source)
        }
    }
}

fn read_warm_up(field: &Field<'_>) -> Option<SlowStart> {
    let fields = field.read_fields(&["duration", "minimumPercent"])?;
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(24 * 3600));
    let time =
        fields.require("duration").and_then(|field| read_duration_within(field, least, most));
    let percent_min = percent_or(&fields, "minimumPercent", 1, 10)?;
    Some(SlowStart { time: time?, percent_min })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BalancingAlgorithm {
    PeakEwma,
    LeastRequest,
    RoundRobin,
    Random,
    RingHash,
    Maglev,
}

const ALGORITHMS: &[(&str, BalancingAlgorithm)] = &[
    ("PeakEwma", BalancingAlgorithm::PeakEwma),
    ("LeastRequest", BalancingAlgorithm::LeastRequest),
    ("RoundRobin", BalancingAlgorithm::RoundRobin),
    ("Random", BalancingAlgorithm::Random),
    ("RingHash", BalancingAlgorithm::RingHash),
    ("Maglev", BalancingAlgorithm::Maglev),
];

//! Reads the `leno.dev/v1alpha1` `LoadBalancing` kind.

use std::time::Duration;

use leno_model::{
    BalanceAlgorithm, HashKey, LoadBalancing, Name, PolicyScope, SlowStart, is_token,
};

use super::http_route::read_header_name;
use super::service_policy::{read_number_or, read_percent_or, read_targets};
use crate::duration::read_duration_within;
use crate::field::{Field, MapFields};

/// Reads the `spec` of a `LoadBalancing`.
pub(super) fn read(namespace: &Name, spec: &Field<'_>) -> Option<(PolicyScope, LoadBalancing)> {
    let fields = spec.read_fields(&["targetRefs", "algorithm", "choiceCount", "key", "warmup"])?;
    let scope = read_targets(&fields, namespace);
    let algorithm = read_algorithm(&fields);
    let slow_start = match fields.find("warmup") {
        Some(field) => Some(read_slow_start(field)?),
        None => None,
    };
    let algorithm = algorithm?;
    if let (Some(field), Some(_)) = (fields.find("warmup"), algorithm.hash_key()) {
        field.reject(
            "is not supported with a key, which selects its endpoint regardless of age",
            "remove it, or use another algorithm",
        );
    }
    Some((scope?, LoadBalancing { algorithm, slow_start }))
}

/// Reads the algorithm, which defaults to `PeakEwma`, with its parameters: `choiceCount` or `key`.
fn read_algorithm(fields: &MapFields<'_>) -> Option<BalanceAlgorithm> {
    let name = match fields.find("algorithm") {
        Some(field) => field.read_choice(ALGORITHMS)?,
        None => AlgorithmName::PeakEwma,
    };
    let uses_choice_count = matches!(name, AlgorithmName::PeakEwma | AlgorithmName::LeastRequest);
    if let (Some(field), false) = (fields.find("choiceCount"), uses_choice_count) {
        field.reject("requires PeakEwma or LeastRequest", "remove it, or use one of these");
    }
    let uses_key = matches!(name, AlgorithmName::RingHash | AlgorithmName::Maglev);
    if let (Some(field), false) = (fields.find("key"), uses_key) {
        field.reject("requires RingHash or Maglev", "remove it, or use one of these");
    }
    let read_choice_count = || {
        let max = LoadBalancing::MAX_CHOICES.into();
        u8::try_from(read_number_or(fields, "choiceCount", 2, max, 2)?).ok()
    };
    Some(match name {
        AlgorithmName::PeakEwma => BalanceAlgorithm::PeakEwma { choices: read_choice_count()? },
        AlgorithmName::LeastRequest => {
            BalanceAlgorithm::LeastRequest { choices: read_choice_count()? }
        }
        AlgorithmName::RoundRobin => BalanceAlgorithm::RoundRobin,
        AlgorithmName::Random => BalanceAlgorithm::Random,
        AlgorithmName::RingHash => BalanceAlgorithm::RingHash(read_key(fields.require("key")?)?),
        AlgorithmName::Maglev => BalanceAlgorithm::Maglev(read_key(fields.require("key")?)?),
    })
}

/// Reads the hash key: `{header: NAME}`, `{cookie: NAME}`, or `{source: true}`, which means the calling workload.
fn read_key(field: &Field<'_>) -> Option<HashKey> {
    let fields = field.read_fields(&["header", "cookie", "source"])?;
    let is_present = |key: &&str| fields.find(key).is_some();
    let [key] = ["header", "cookie", "source"]
        .into_iter()
        .filter(|key| is_present(key))
        .collect::<Vec<_>>()[..]
    else {
        field.reject(
            "must have exactly one key",
            "use one of `header`, `cookie` and `source: true`",
        );
        return None;
    };
    let value = fields.require(key)?;
    match key {
        "header" => read_header_name(value, value.read_text()?).map(HashKey::Header),
        "cookie" => {
            let name = value.read_text()?;
            // RFC 6265 §4.1.1: a cookie name is a token.
            if !is_token(name) {
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

/// Reads `warmup`, the slow start of new endpoints.
fn read_slow_start(field: &Field<'_>) -> Option<SlowStart> {
    let fields = field.read_fields(&["duration", "minimumPercent"])?;
    let (min, max) = (Duration::from_secs(1), Duration::from_secs(24 * 3600));
    let duration =
        fields.require("duration").and_then(|field| read_duration_within(field, min, max));
    let min_percent = read_percent_or(&fields, "minimumPercent", 1, 10)?;
    Some(SlowStart { duration: duration?, min_percent })
}

/// An algorithm as named in documents, without its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AlgorithmName {
    PeakEwma,
    LeastRequest,
    RoundRobin,
    Random,
    RingHash,
    Maglev,
}

/// The algorithms by name.
const ALGORITHMS: &[(&str, AlgorithmName)] = &[
    ("PeakEwma", AlgorithmName::PeakEwma),
    ("LeastRequest", AlgorithmName::LeastRequest),
    ("RoundRobin", AlgorithmName::RoundRobin),
    ("Random", AlgorithmName::Random),
    ("RingHash", AlgorithmName::RingHash),
    ("Maglev", AlgorithmName::Maglev),
];

//! Contains the built-in contender files.

use anyhow::Context as _;

use super::description::ContenderDescription;

/// Returns the descriptions of a third-party contender, one per layout.
///
/// # Errors
/// If no built-in contender has this name.
pub(super) fn built_in_descriptions(name: &str) -> anyhow::Result<Vec<ContenderDescription>> {
    let texts = FILES.iter().filter(|(contender, _)| *contender == name);
    let descriptions: Vec<ContenderDescription> =
        texts.map(|(_, text)| ContenderDescription::parse(text)).collect::<anyhow::Result<_>>()?;
    (!descriptions.is_empty())
        .then_some(descriptions)
        .with_context(|| format!("unknown contender `{name}`"))
}

/// Contender files, by contender name.
const FILES: &[(&str, &str)] = &[
    ("envoy", include_str!("../../../../../deploy/bench/envoy.yaml")),
    ("envoy", include_str!("../../../../../deploy/bench/envoy-tcp.yaml")),
    ("envoy", include_str!("../../../../../deploy/bench/envoy-bookinfo.yaml")),
    ("envoy", include_str!("../../../../../deploy/bench/envoy-fan.yaml")),
    ("haproxy", include_str!("../../../../../deploy/bench/haproxy.yaml")),
    ("haproxy", include_str!("../../../../../deploy/bench/haproxy-tcp.yaml")),
    ("nginx", include_str!("../../../../../deploy/bench/nginx.yaml")),
    ("nginx", include_str!("../../../../../deploy/bench/nginx-tcp.yaml")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_file_is_valid() {
        for (name, _) in FILES {
            for description in built_in_descriptions(name).unwrap() {
                assert_eq!(description.name, *name);
                assert!(!description.about.is_empty(), "{name}");
            }
        }
        assert!(built_in_descriptions("nothing").is_err());
    }
}

//! The security floor of a mesh: the minimum security settings, which annotations, labels and fields of namespaces
//! and workloads cannot weaken.

use std::collections::BTreeSet;

use crate::definition::{Definition, LABEL, ManifestBuilder, TextProblem, TextSchema};
use crate::mesh::{AdmissionSettings, DefaultPolicy, MAX_NAMESPACES, MtlsMode};
use crate::name::Name;
use crate::suggest::join_with_or;

/// The minimum security settings of every namespace that is not excepted. The default has no minimum.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecurityFloor {
    /// The least strict default policy that is allowed; any when absent.
    pub default_policy: Option<DefaultPolicy>,
    /// True if connections without mutual TLS are always rejected.
    pub mtls_strict: bool,
    /// True if pods of a namespace with injection cannot opt out.
    pub injection_required: bool,
    /// True if annotations cannot exclude ports, addresses and interfaces from interception.
    pub exclusions_forbidden: bool,
    /// The allowed repositories of sidecar images; any when empty.
    pub sidecar_images: BTreeSet<String>,
    /// The namespaces that the floor does not apply to.
    pub except_namespaces: BTreeSet<Name>,
}

/// The fields of a floor. A minimum accepts only the strict word, because the other word would mean no minimum.
#[derive(Definition, PartialEq, Eq, Default)]
#[definition(builds = SecurityFloor)]
struct FloorFields {
    /// Least strict default policy. `dry-run` is stricter than `allow`, and `deny` is the strictest.
    #[field(absent = "no minimum")]
    default_policy: Option<DefaultPolicy>,
    /// With `strict`, no workload accepts clients without mutual TLS.
    #[field(absent = "no minimum")]
    mtls: Option<RequiredMtls>,
    /// With `required`, pods of namespaces with injection cannot opt out.
    #[field(absent = "no minimum")]
    injection: Option<RequiredInjection>,
    /// With `forbidden`, annotations that exclude ports, addresses and interfaces from interception have no effect.
    #[field(absent = "no minimum")]
    exclusions: Option<ForbiddenExclusions>,
    /// Repositories of images that sidecars may run, in addition to the repository of the control plane's image. A
    /// repository that ends with `/` stands for all below it.
    #[field(list(1, 64), text = REPOSITORY, absent = "any image")]
    sidecar_images: Option<Vec<String>>,
    /// Namespaces that the floor does not apply to.
    #[field(list(0, MAX_NAMESPACES), text = LABEL, absent = "none")]
    except_namespaces: Option<Vec<Name>>,
}

/// The only minimum of the mutual TLS mode.
#[derive(Definition, PartialEq, Eq)]
enum RequiredMtls {
    #[field(name = "strict")]
    Strict,
}

/// The only requirement for the injection of sidecars.
#[derive(Definition, PartialEq, Eq)]
enum RequiredInjection {
    #[field(name = "required")]
    Required,
}

/// The only limit of exclusions from interception.
#[derive(Definition, PartialEq, Eq)]
enum ForbiddenExclusions {
    #[field(name = "forbidden")]
    Forbidden,
}

impl FloorFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<SecurityFloor> {
        if self == Self::default() {
            let fields = Self::SCHEMA.map_schema().all_fields();
            let names: Vec<&str> = fields.into_iter().map(|field| field.name).collect();
            let hint = format!("remove it, or use {}", join_with_or(&names));
            builder.reject("sets no floor", hint);
            return None;
        }
        Some(SecurityFloor {
            default_policy: self.default_policy,
            mtls_strict: self.mtls.is_some(),
            injection_required: self.injection.is_some(),
            exclusions_forbidden: self.exclusions.is_some(),
            sidecar_images: self.sidecar_images.into_iter().flatten().collect(),
            except_namespaces: self.except_namespaces.into_iter().flatten().collect(),
        })
    }
}

/// A setting that the floor overrides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverriddenSetting {
    /// The name of the setting's field in manifests.
    pub field: &'static str,
    /// The value that the author requested.
    pub requested: &'static str,
    /// The value that applies instead.
    pub effective: &'static str,
}

impl SecurityFloor {
    /// Returns the requested settings that are weaker than the floor, with the values that replace them.
    #[must_use]
    pub fn overridden_settings(&self, requested: AdmissionSettings) -> Vec<OverriddenSetting> {
        let below_minimum = self.default_policy.zip(requested.default_policy).filter(
            |(minimum, requested_policy)| requested_policy.stricter(*minimum) != *requested_policy,
        );
        let default_policy = below_minimum.map(|(minimum, requested_policy)| OverriddenSetting {
            field: DEFAULT_POLICY_FIELD,
            requested: requested_policy.as_str(),
            effective: minimum.as_str(),
        });
        let is_permissive = self.mtls_strict && requested.mtls == Some(MtlsMode::Permissive);
        let mtls = is_permissive.then_some(OverriddenSetting {
            field: MTLS_FIELD,
            requested: MtlsMode::Permissive.as_str(),
            effective: MtlsMode::Strict.as_str(),
        });
        default_policy.into_iter().chain(mtls).collect()
    }

    /// True if the settings of the current map are not below the floor. Otherwise their fields are rejected.
    pub(crate) fn check_settings(
        &self,
        requested: AdmissionSettings,
        hint: &str,
        builder: &mut ManifestBuilder<'_>,
    ) -> bool {
        let overridden = self.overridden_settings(requested);
        for OverriddenSetting { field, effective, .. } in &overridden {
            let problem = format!("is below spec.floor.{field}");
            builder.reject_field(field, problem, format!("use {effective}, or {hint}"));
        }
        overridden.is_empty()
    }

    /// True if sidecars may run this image: its repository is allowed, with any tag or digest. An allowed repository
    /// that ends with `/` matches all repositories with that prefix.
    #[must_use]
    pub fn permits_image(&self, image: &str) -> bool {
        let repository = repository_of(image);
        let is_repository =
            |permitted_repository: &String| match permitted_repository.ends_with('/') {
                true => repository.starts_with(permitted_repository.as_str()),
                false => repository == permitted_repository,
            };
        self.sidecar_images.is_empty() || self.sidecar_images.iter().any(is_repository)
    }
}

/// Returns the repository of an image, without tag and digest.
#[must_use]
pub fn repository_of(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    match name.rsplit_once(':') {
        // A colon before a `/` precedes the registry's port, not a tag.
        Some((repository, tag)) if !tag.contains('/') => repository,
        Some(_) | None => name,
    }
}

fn check_repository(text: &str) -> Result<(), TextProblem> {
    let is_invalid_character = |c: char| c.is_whitespace() || c.is_control();
    if text.is_empty() || text.len() > MAX_REPOSITORY_BYTES || text.contains(is_invalid_character) {
        return Err(TextProblem::new(
            "is not a repository",
            "use one such as registry.example.org/leno, or registry.example.org/mesh/ for all below",
        ));
    }
    match repository_of(text) {
        repository if repository == text => Ok(()),
        repository => {
            let hint = format!("use the repository: {repository}");
            Err(TextProblem::new("has a tag or a digest", hint))
        }
    }
}

/// An image repository, without a tag or digest.
const REPOSITORY: TextSchema = TextSchema::new(MAX_REPOSITORY_BYTES, check_repository);
/// Maximum length of a repository.
const MAX_REPOSITORY_BYTES: usize = 255;
/// The manifest field of the default policy.
const DEFAULT_POLICY_FIELD: &str = "defaultPolicy";
/// The manifest field of the mutual TLS mode.
const MTLS_FIELD: &str = "mtls";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::MeshConfig;

    fn parse_name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn namespace_settings_do_not_go_below_the_floor() {
        use DefaultPolicy::{Allow, Deny, DryRun};
        let mut config = MeshConfig::default();
        for (requested, floor, effective) in [
            (Allow, None, Allow),
            (Allow, Some(DryRun), DryRun),
            (Allow, Some(Deny), Deny),
            (DryRun, Some(Deny), Deny),
            (Deny, Some(DryRun), Deny),
            (DryRun, Some(Allow), DryRun),
        ] {
            config.floor.default_policy = floor;
            let admission = AdmissionSettings { default_policy: Some(requested), mtls: None };
            config.namespaces.insert(parse_name("shop"), admission);
            assert_eq!(
                config.default_policy_in(&parse_name("shop")),
                effective,
                "{requested:?} {floor:?}"
            );
            assert_eq!(
                config.overridden_in(&parse_name("shop"), admission).len(),
                usize::from(requested != effective)
            );
            config.floor.except_namespaces = [parse_name("shop")].into();
            assert_eq!(config.default_policy_in(&parse_name("shop")), requested, "excepted");
            config.floor.except_namespaces.clear();
        }
        // The floor also overrides the default of the mesh.
        config.floor.default_policy = Some(Deny);
        assert_eq!(config.default_policy_in(&parse_name("other")), Deny);
        assert!(config.default_policies().any(|default_policy| default_policy == Deny));
    }

    #[test]
    fn plaintext_below_the_floor_is_overridden() {
        let floor = SecurityFloor { mtls_strict: true, ..SecurityFloor::default() };
        let permissive =
            AdmissionSettings { default_policy: None, mtls: Some(MtlsMode::Permissive) };
        let overridden = floor.overridden_settings(permissive);
        assert_eq!(overridden.len(), 1);
        assert_eq!((overridden[0].field, overridden[0].effective), ("mtls", "strict"));
        assert_eq!(SecurityFloor::default().overridden_settings(permissive), []);
    }

    #[test]
    fn images_are_compared_by_their_repository() {
        let floor_with_images = |images: &[&str]| SecurityFloor {
            sidecar_images: images.iter().map(|image| (*image).to_owned()).collect(),
            ..SecurityFloor::default()
        };
        let floor = floor_with_images(&["registry.example:5000/leno", "mirror.example/mesh/"]);
        for (image, permitted) in [
            ("registry.example:5000/leno", true),
            ("registry.example:5000/leno:0.1", true),
            ("registry.example:5000/leno:0.1@sha256:00", true),
            ("registry.example:5000/leno@sha256:00", true),
            ("mirror.example/mesh/leno:1", true),
            ("registry.example:5000/leno2", false),
            ("registry.example:5000/leno/other", false),
            ("registry.example/leno", false),
            ("registry.example:5000/leno:1/other", false),
            ("mirror.example/mesh", false),
            ("mirror.example/meshes/leno", false),
            ("leno", false),
            ("", false),
        ] {
            assert_eq!(floor.permits_image(image), permitted, "{image}");
        }
        assert!(floor_with_images(&[]).permits_image("anything"));
    }
}

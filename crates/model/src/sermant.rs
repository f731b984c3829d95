//! Defines the `spec` of the kinds with configurations of Sermant, without the content of the configurations.

use crate::definition::{
    AnyValue, Definition, LABEL, ManifestBuilder, ManifestValue, Schema, TextProblem, TextSchema,
};
use crate::name::Name;

/// The `spec` of a `SermantRouteRule`. The reader of the kind reads the content of the field `rules`.
#[derive(Debug, Definition)]
pub struct SermantRouteSpec {
    /// Format of the rules.
    #[expect(dead_code, reason = "the field has one value")]
    compat: SermantFormat,
    /// Key of the item in the configuration center: `servicecomb.routeRule.SERVICE`, `servicecomb.routeRule` (a map from
    /// services to documents) or `servicecomb.globalRouteRule`.
    pub key: SermantKey,
    /// Content of the item: the published text, or the same content as YAML.
    #[expect(dead_code, reason = "the reader of the kind reads it")]
    rules: AnyValue,
}

/// The `spec` of a `SermantRemoval`. The reader of the kind reads the content of the text.
#[derive(Debug, Definition)]
pub struct SermantRemovalSpec {
    /// Format of the configuration.
    #[expect(dead_code, reason = "the field has one value")]
    compat: SermantFormat,
    /// Content of Sermant's `sermant.removal.config`.
    #[field(text = CONFIG)]
    pub config: String,
}

/// The only format.
#[derive(Debug, Definition)]
enum SermantFormat {
    #[field(name = "sermant")]
    Sermant,
}

/// A key of the configuration center, such as `servicecomb.routeRule.reviews`. It determines the form of the content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SermantKey {
    /// The documents of one service of the object's namespace.
    Service(Name),
    /// A map from services to documents.
    ServiceMap,
    /// The documents of all services without documents of their own.
    Global,
}

impl SermantKey {
    fn parse(text: &str) -> Result<Self, TextProblem> {
        if let Some(service) = text.strip_prefix("servicecomb.routeRule.") {
            let name = Name::new(service).ok().filter(|name| LABEL.validate(name.as_str()).is_ok());
            return name.map(Self::Service).ok_or_else(|| {
                TextProblem::new(
                    "does not end with the name of a Service",
                    "use the name of a Service of this namespace: lower-case letters, digits, `-`",
                )
            });
        }
        match text {
            "servicecomb.routeRule" => Ok(Self::ServiceMap),
            "servicecomb.globalRouteRule" => Ok(Self::Global),
            _ => Err(TextProblem::new(
                "is not a key of the service-router",
                "use `servicecomb.routeRule.SERVICE`, `servicecomb.routeRule` or \
                 `servicecomb.globalRouteRule`",
            )),
        }
    }
}

impl Definition for SermantKey {
    const SCHEMA: Schema = Schema::Text(&KEY);

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        Self::parse(&value.into_text()?).ok()
    }
}

/// A key. The longest one ends with a label.
const KEY: TextSchema = TextSchema::new(512, |text| SermantKey::parse(text).map(drop));
/// A configuration.
const CONFIG: TextSchema = TextSchema::bounded(MAX_CONFIG_BYTES);
const MAX_CONFIG_BYTES: usize = 65_536;

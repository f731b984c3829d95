//! Settings of JSON web token (JWT) validation: accepted issuers, required tokens, and claims forwarded to the
//! application.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::action::HeaderEdits;
use crate::definition::{
    Definition, HEADER_NAME, ManifestBuilder, ManifestValue, Schema, TextProblem, TextSchema,
    normalize_header_name,
};
use crate::issuer_keys::IssuerKeys;
use crate::request_match::RequestMatch;

/// The JSON web tokens that requests may or must carry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Definition)]
pub struct JwtValidation {
    /// The requests that must carry a token.
    #[field(include)]
    pub required: TokenRequirement,
    /// Issuers whose tokens are accepted, each once.
    #[field(list(1, 16), required, check = check_different_issuers)]
    pub issuers: Vec<JwtIssuer>,
}

/// The requests that must carry a token. A request with an invalid token is always denied.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TokenRequirement {
    /// Tokens are optional for all requests.
    Never,
    /// Every request must carry a token.
    Always,
    /// Requests that match one of these entries must carry a token. There is at least one entry.
    Matching(Vec<RequestMatch>),
}

/// The fields of a token requirement.
#[derive(Definition)]
#[definition(
    builds = TokenRequirement,
    cel(
        "!has(self.required) || !self.required || !has(self.requiredFor)",
        "keep one of required and requiredFor"
    )
)]
struct TokenRequirementFields {
    /// True if every request must present a token.
    #[field(default = "false")]
    required: bool,
    /// Matches of the requests that must present a token, if not every request must. One match is enough.
    #[field(list(1, MAX_LIST), absent = "all requests if `required` is true, otherwise none")]
    required_for: Vec<RequestMatch>,
}

impl TokenRequirementFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<TokenRequirement> {
        match (self.required, self.required_for.is_empty()) {
            (true, true) => Some(TokenRequirement::Always),
            (false, true) => Some(TokenRequirement::Never),
            (false, false) => Some(TokenRequirement::Matching(self.required_for)),
            (true, false) => {
                builder.reject("has both `required` and `requiredFor`", "keep one of them");
                None
            }
        }
    }
}

/// Rejects a second issuer with the same name.
fn check_different_issuers(
    issuers: Vec<JwtIssuer>,
    builder: &mut ManifestBuilder<'_>,
) -> Option<Vec<JwtIssuer>> {
    let (problem, hint) = ("is listed twice", "remove one of the two");
    let name_of = |issuer: &JwtIssuer| issuer.issuer.clone();
    builder.check_unique("issuers", &issuers, name_of, problem, hint).then_some(issuers)
}

/// An issuer of tokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Definition)]
#[definition(check = Self::with_default_location)]
pub struct JwtIssuer {
    /// `iss` claim of the issuer's tokens, compared literally.
    #[field(text = COMPARED_TEXT)]
    pub issuer: String,
    /// Accepted audiences, one of which the `aud` claim of a token must contain.
    #[field(name = "audiences", list(1, MAX_LIST), text = COMPARED_TEXT, absent = "any audience")]
    pub aud: Vec<String>,
    /// Public keys of the issuer.
    #[field(name = "jwks")]
    pub keys: IssuerKeys,
    /// Accepted signature algorithms (RFC 7518, RFC 8037, RFC 9864). The type of the key must permit the algorithm too.
    #[field(list(1, 16), absent = "every supported algorithm")]
    pub algorithms: BTreeSet<JwtAlgorithm>,
    /// Locations of tokens in requests.
    #[field(
        name = "from",
        list(1, MAX_LIST),
        absent = "the header `authorization`, after `Bearer` and a space"
    )]
    pub locations: Vec<JwtLocation>,
    /// Tolerated difference between the clocks of the issuer and the sidecar. A token stays valid for this time after its
    /// expiration.
    #[field(duration("0s", Self::MAX_CLOCK_SKEW), default = "60s")]
    pub clock_skew: Duration,
    /// True if tokens without an expiration time (`exp`) are denied.
    #[field(name = "requireExpiration", default = "true")]
    pub requires_expiration: bool,
    /// Maximum age of a token since its issue (`iat`). If you set it, tokens without `iat` are denied.
    #[field(duration("1s", "8784h"), absent = "no maximum")]
    pub max_age: Option<Duration>,
    /// Claims that the application receives in headers, each in its own.
    #[field(list(1, MAX_LIST), absent = "no claims", check = check_different_claim_headers)]
    pub claim_to_headers: Vec<ClaimHeader>,
    /// True if the sidecar forwards a token in a header to the application.
    #[field(default = "false")]
    pub forward_original_token: bool,
}

impl JwtIssuer {
    /// The maximum clock skew. A token stays valid for the clock skew after its expiration.
    pub const MAX_CLOCK_SKEW: Duration = Duration::from_secs(3600);

    fn with_default_location(mut self, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        if self.locations.is_empty() {
            let (name, prefix) = ("authorization".to_owned(), "Bearer ".to_owned());
            self.locations.push(JwtLocation::Header { name, prefix });
        }
        Some(self)
    }
}

/// A supported signature algorithm. All are asymmetric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JwtAlgorithm(&'static str);

impl JwtAlgorithm {
    /// Returns the algorithm with this `alg` name; `None` if it is not supported.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        JWT_ALGORITHMS.iter().find(|algorithm| **algorithm == name).copied().map(Self)
    }

    /// Returns the `alg` name, such as `ES256`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl Definition for JwtAlgorithm {
    const SCHEMA: Schema = Schema::Choice(JWT_ALGORITHMS);

    fn build(value: ManifestValue, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        JWT_ALGORITHMS.get(value.choice_index()?).copied().map(Self)
    }
}

/// The supported algorithms. `EdDSA` and `Ed25519` are two names of one algorithm.
const JWT_ALGORITHMS: &[&str] = &[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
    "Ed25519",
];

/// The location of a token in a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum JwtLocation {
    /// A header, after a prefix such as `Bearer `.
    Header {
        /// The header name, in lower case.
        name: String,
        /// The text before the token in the header's value; matched case-insensitively.
        prefix: String,
    },
    /// A query parameter of this name.
    Query(String),
}

/// The fields of a token's location.
#[derive(Definition)]
#[definition(
    builds = JwtLocation,
    cel("!has(self.prefix) || has(self.header)", "prefix requires header")
)]
struct JwtLocationFields {
    /// The header or query parameter.
    #[field(include)]
    source: TokenSource,
    /// Text before the token in the header, in any case, such as `Bearer` and a space.
    #[field(text = PREFIX, absent = "no text")]
    prefix: Option<String>,
}

/// The header or query parameter with a token.
#[derive(Definition)]
#[definition(noun = "location")]
enum TokenSource {
    /// Name of the header with the token, in any case.
    #[field(text = HEADER_NAME)]
    Header(String),
    /// Name of the query parameter with the token.
    #[field(text = COMPARED_TEXT)]
    Query(String),
}

impl JwtLocationFields {
    fn build_type(self, builder: &mut ManifestBuilder<'_>) -> Option<JwtLocation> {
        match (self.source, self.prefix) {
            (TokenSource::Header(name), prefix) => Some(JwtLocation::Header {
                name: normalize_header_name(&name),
                prefix: prefix.unwrap_or_default(),
            }),
            (TokenSource::Query(parameter), None) => Some(JwtLocation::Query(parameter)),
            (TokenSource::Query(_), Some(_)) => {
                builder.reject_field("prefix", "requires `header`", "remove it");
                None
            }
        }
    }
}

/// A claim forwarded to the application. Headers of this name from clients are removed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Definition)]
#[definition(check = Self::with_lower_case_header)]
pub struct ClaimHeader {
    /// Name of the claim. Dots separate the keys of nested objects.
    #[field(text = COMPARED_TEXT)]
    pub claim: String,
    /// Name of the header, in any case. The sidecar removes headers of clients with this name.
    #[field(text = CLAIM_HEADER)]
    pub header: String,
}

impl ClaimHeader {
    fn with_lower_case_header(mut self, _: &mut ManifestBuilder<'_>) -> Option<Self> {
        self.header.make_ascii_lowercase();
        Some(self)
    }
}

/// Rejects a second claim in the same header.
fn check_different_claim_headers(
    claims: Vec<ClaimHeader>,
    builder: &mut ManifestBuilder<'_>,
) -> Option<Vec<ClaimHeader>> {
    let problem = "has the header of another claim";
    let hint = "use another header for one of them";
    let header_of = |claim: &ClaimHeader| claim.header.clone();
    builder.check_unique("claimToHeaders", &claims, header_of, problem, hint).then_some(claims)
}

/// A claim and its accepted values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimMatch {
    /// The name of the claim; dots separate the keys of nested objects.
    pub name: String,
    /// The accepted values of the claim or of one of its elements; at least one.
    pub values: Vec<String>,
}

/// A text that is compared with a part of tokens, such as an issuer, an audience or a claim.
pub(crate) const COMPARED_TEXT: TextSchema = TextSchema::new(MAX_COMPARED_TEXT_BYTES, |text| {
    let has_valid_length = (1..=MAX_COMPARED_TEXT_BYTES).contains(&text.len());
    match has_valid_length && !text.contains(char::is_control) {
        true => Ok(()),
        false => {
            let hint = "use 1 to 512 bytes without control characters";
            Err(TextProblem::new("is not a text to compare", hint))
        }
    }
});
/// A header for a claim: not one of the protocol.
const CLAIM_HEADER: TextSchema = TextSchema::new(HEADER_NAME.max_bytes, |text| {
    HEADER_NAME.validate(text)?;
    let name = normalize_header_name(text);
    match HeaderEdits::is_valid_name(&name) && HeaderEdits::may_edit(&name) {
        true => Ok(()),
        false => {
            let hint = "use another header, such as `x-user`";
            Err(TextProblem::new("is a header of the protocol", hint))
        }
    }
});
/// The text before a token.
const PREFIX: TextSchema = TextSchema::bounded(64);
/// Maximum length of an issuer, audience or claim.
const MAX_COMPARED_TEXT_BYTES: usize = 512;
/// Maximum number of audiences, locations, claims, or matches of requests.
const MAX_LIST: usize = 256;

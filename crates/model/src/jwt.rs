//! JSON web tokens that requests show: whose are accepted, and what becomes of their claims.

use std::sync::Arc;
use std::time::Duration;

use crate::route::RequestMatch;

/// Which tokens requests may, or must, show.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JwtValidation {
    /// Whose tokens are accepted; at least one, each name once.
    pub issuers: Vec<JwtIssuer>,
    /// Which requests must show one, any of these.
    pub required: Required,
}

/// Which requests must show a token. One that shows a token that is not accepted is denied anyway.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Required {
    /// None.
    Never,
    /// All.
    Always,
    /// Any of these; at least one.
    Of(Vec<RequestMatch>),
}

/// Who issues tokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct JwtIssuer {
    /// What its tokens say of themselves as `iss`.
    pub issuer: String,
    /// Whom they must be for, any of these; anybody when empty.
    pub audiences: Vec<String>,
    /// Its public keys: a JWK set.
    pub keys: Arc<str>,
    /// Where requests show them; at least one.
    pub places: Vec<JwtPlace>,
    /// How far clocks may be apart.
    pub leeway: Duration,
    /// Claims that the application is told, each in a header of its own.
    pub forwards: Vec<ClaimHeader>,
    /// Whether the application gets the token itself.
    pub passes_token: bool,
}

impl JwtIssuer {
    /// The most that clocks may be apart.
    pub const LEEWAY_MAX: Duration = Duration::from_secs(3600);
}

/// Where a request shows a token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum JwtPlace {
    /// In a header, behind a prefix, such as `Bearer `.
    Header {
        /// Its name, in lower case.
        name: String,
        /// What stands before the token; compared without regard to case.
        prefix: String,
    },
    /// In a parameter of the query.
    Query(String),
}

/// A claim that the application is told. What clients send under the header's name goes no further.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimHeader {
    /// The claim; dots lead into objects.
    pub claim: String,
    /// The header, in lower case.
    pub header: String,
}

/// A claim and the values it may have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimMatch {
    /// The claim; dots lead into objects.
    pub name: String,
    /// One of these is its value, or an element of it; at least one.
    pub values: Vec<String>,
}

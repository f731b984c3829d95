//! Parses the attributes `#[definition(…)]` and `#[field(…)]`, and doc comments.

use proc_macro2::TokenStream;
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, LitStr, Path, Token, parenthesized};

/// The attributes of a type.
#[derive(Default)]
pub(crate) struct TypeAttributes {
    /// Expressions of the type `MapRule`.
    pub(crate) rules: Vec<TokenStream>,
    /// The function that checks the built value.
    pub(crate) check: Option<Path>,
    /// The type that `build_type` of the fields builds, if it is not the struct itself.
    pub(crate) builds: Option<Path>,
    /// A field and its value, for the proposal of a map in place of a scalar.
    pub(crate) example: Option<[LitStr; 2]>,
    /// The noun for the values of an enum in messages, such as `probe`.
    pub(crate) noun: Option<LitStr>,
    /// The function that returns the problem of a text in place of a map.
    pub(crate) text_problem: Option<Path>,
}

/// The attributes of a field or a variant.
#[derive(Default)]
pub(crate) struct FieldAttributes {
    /// The key in manifests, if it is not the camel case of the Rust name, or the word, if it is not the Rust name.
    pub(crate) name: Option<String>,
    /// The default, as written in manifests.
    pub(crate) default: Option<LitStr>,
    /// The meaning of an absent field.
    pub(crate) absent: Option<LitStr>,
    /// The values of the field, or of the elements of a list.
    pub(crate) values: Option<ValueAttribute>,
    /// The minimum and maximum number of elements.
    pub(crate) list: Option<[Expr; 2]>,
    /// The minimum and maximum number of entries of a map with any keys.
    pub(crate) entries: Option<[Expr; 2]>,
    /// The `TextSchema` of the keys of a map with any keys.
    pub(crate) key: Option<Path>,
    /// True if an absent list is rejected.
    pub(crate) required: bool,
    /// The function that checks the built value of the field, independently of other fields.
    pub(crate) check: Option<Path>,
    /// True if the fields of the type belong to the enclosing map.
    pub(crate) include: bool,
}

/// The values of a basic type.
pub(crate) enum ValueAttribute {
    /// The minimum and maximum of a number.
    Integer(Box<[Expr; 2]>),
    /// The minimum and maximum of a duration: literals such as `"5s"`, or constants of the type `Duration`.
    Duration(Box<[Expr; 2]>),
    /// A `TextSchema`.
    Text(Path),
    /// A percentage, in parts per million.
    Percentage,
}

impl ValueAttribute {
    /// Returns the expression of the `Schema`.
    pub(crate) fn schema(&self) -> TokenStream {
        let schema = quote!(crate::definition::Schema);
        match self {
            Self::Integer(bounds) => {
                let [min, max] = &**bounds;
                quote!(#schema::Integer { min: #min as i64, max: #max as i64 })
            }
            Self::Duration(bounds) => {
                let [min, max] = bounds.each_ref().map(duration_bound);
                quote!(#schema::Duration { min: #min, max: #max })
            }
            Self::Text(text) => quote!(#schema::Text(&#text)),
            Self::Percentage => quote!(#schema::Percentage),
        }
    }
}

impl TypeAttributes {
    /// Parses the attributes of a type, of which `supported` have an effect.
    pub(crate) fn parse(attributes: &[Attribute], supported: &[&str]) -> syn::Result<Self> {
        let mut parsed = Self::default();
        for attribute in attributes.iter().filter(|a| a.path().is_ident("definition")) {
            attribute.parse_nested_meta(|meta| {
                require_supported(&meta, supported)?;
                parsed.parse_entry(&meta)
            })?;
        }
        Ok(parsed)
    }

    fn parse_entry(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        if meta.path.is_ident("check") {
            self.check = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("builds") {
            self.builds = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("example") {
            self.example = Some(parse_pair(meta)?);
        } else if meta.path.is_ident("noun") {
            self.noun = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("text_problem") {
            self.text_problem = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("cel") {
            let [expression, message] = parse_pair::<LitStr>(meta)?;
            self.rules.push(quote!(crate::definition::MapRule::Cel {
                expression: #expression,
                message: #message,
            }));
        } else {
            return Err(meta.error("unknown attribute"));
        }
        Ok(())
    }
}

impl FieldAttributes {
    /// Parses the attributes of a field or variant, of which `supported` have an effect.
    pub(crate) fn parse(attributes: &[Attribute], supported: &[&str]) -> syn::Result<Self> {
        let mut parsed = Self::default();
        for attribute in attributes.iter().filter(|a| a.path().is_ident("field")) {
            attribute.parse_nested_meta(|meta| {
                require_supported(&meta, supported)?;
                parsed.parse_entry(&meta)
            })?;
        }
        Ok(parsed)
    }

    fn parse_entry(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        if meta.path.is_ident("name") {
            self.name = Some(meta.value()?.parse::<LitStr>()?.value());
        } else if meta.path.is_ident("default") {
            self.default = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("absent") {
            self.absent = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("integer") {
            self.values = Some(ValueAttribute::Integer(Box::new(parse_pair(meta)?)));
        } else if meta.path.is_ident("duration") {
            self.values = Some(ValueAttribute::Duration(Box::new(parse_pair(meta)?)));
        } else if meta.path.is_ident("text") {
            self.values = Some(ValueAttribute::Text(meta.value()?.parse()?));
        } else if meta.path.is_ident("percentage") {
            self.values = Some(ValueAttribute::Percentage);
        } else if meta.path.is_ident("list") {
            self.list = Some(parse_pair(meta)?);
        } else if meta.path.is_ident("entries") {
            self.entries = Some(parse_pair(meta)?);
        } else if meta.path.is_ident("key") {
            self.key = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("check") {
            self.check = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("required") {
            self.required = true;
        } else if meta.path.is_ident("include") {
            self.include = true;
        } else {
            return Err(meta.error("unknown attribute"));
        }
        Ok(())
    }
}

/// Rejects an attribute that would have no effect, so that no check is lost by mistake.
fn require_supported(meta: &ParseNestedMeta<'_>, supported: &[&str]) -> syn::Result<()> {
    match supported.iter().any(|name| meta.path.is_ident(name)) {
        true => Ok(()),
        false => Err(meta.error(format!("only {} are supported here", supported.join(", ")))),
    }
}

/// Returns the expression of a bound of a duration.
fn duration_bound(bound: &Expr) -> TokenStream {
    match bound {
        Expr::Lit(literal) => quote!(crate::definition::duration(#literal)),
        constant => quote!(#constant),
    }
}

/// Parses two arguments in parentheses.
fn parse_pair<T: syn::parse::Parse>(meta: &ParseNestedMeta<'_>) -> syn::Result<[T; 2]> {
    let content;
    parenthesized!(content in meta.input);
    let arguments = Punctuated::<T, Token![,]>::parse_terminated(&content)?;
    let arguments: Vec<T> = arguments.into_iter().collect();
    arguments.try_into().map_err(|_| meta.error("two arguments are required"))
}

/// Returns the doc comment as one line. A type of manifests requires it, because users read it.
pub(crate) fn description(attributes: &[Attribute], item: &syn::Ident) -> syn::Result<String> {
    let lines = attributes.iter().filter_map(|attribute| {
        let value = &attribute.meta.require_name_value().ok()?;
        match &value.value {
            Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. })
                if value.path.is_ident("doc") =>
            {
                Some(text.value().trim().to_owned())
            }
            _ => None,
        }
    });
    let text = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    match text.is_empty() {
        true => Err(syn::Error::new_spanned(item, "a doc comment is missing: users read it")),
        false => Ok(text),
    }
}

/// Returns a Rust name (`snake_case` or `PascalCase`) in camel case, as in manifests.
pub(crate) fn camel_case(name: &str) -> String {
    let mut camel = String::with_capacity(name.len());
    let mut capitalize = false;
    for (index, character) in name.chars().enumerate() {
        match character {
            '_' => capitalize = true,
            _ if capitalize => {
                camel.extend(character.to_uppercase());
                capitalize = false;
            }
            _ if index == 0 => camel.extend(character.to_lowercase()),
            _ => camel.push(character),
        }
    }
    camel
}

#[cfg(test)]
mod tests {
    use super::camel_case;

    #[test]
    fn rust_names_become_camel_case() {
        for (name, expected) in [
            ("after", "after"),
            ("max_ejection_time", "maxEjectionTime"),
            ("HttpGet", "httpGet"),
            ("Grpc", "grpc"),
        ] {
            assert_eq!(camel_case(name), expected);
        }
    }
}

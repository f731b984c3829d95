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
    /// The type that the fields build, if it is not the struct itself.
    pub(crate) builds: Option<Path>,
    /// The noun for the values of an enum in messages, such as `probe`.
    pub(crate) noun: Option<LitStr>,
}

/// The attributes of a field or a variant.
#[derive(Default)]
pub(crate) struct FieldAttributes {
    /// The key or word in manifests, if it is not the camel case of the Rust name.
    pub(crate) name: Option<String>,
    /// The default, as written in manifests.
    pub(crate) default: Option<LitStr>,
    /// The meaning of an absent field.
    pub(crate) absent: Option<LitStr>,
    /// The values of the field, or of the elements of a list.
    pub(crate) values: Option<ValueAttribute>,
    /// The minimum and maximum number of elements.
    pub(crate) list: Option<[Expr; 2]>,
    /// True if an absent list is rejected.
    pub(crate) required: bool,
    /// True if the fields of the type belong to the enclosing map.
    pub(crate) include: bool,
}

/// The values of a basic type.
pub(crate) enum ValueAttribute {
    /// The minimum and maximum of a number.
    Integer(Box<[Expr; 2]>),
    /// The minimum and maximum of a duration.
    Duration([LitStr; 2]),
    /// A `TextSchema`.
    Text(Path),
}

impl ValueAttribute {
    /// Returns the expression of the `Schema`.
    pub(crate) fn schema(&self) -> TokenStream {
        let schema = quote!(crate::definition::Schema);
        match self {
            Self::Integer(bounds) => {
                let [min, max] = &**bounds;
                quote!(#schema::Integer { min: #min, max: #max })
            }
            Self::Duration([min, max]) => quote!(#schema::Duration {
                min: crate::definition::duration(#min),
                max: crate::definition::duration(#max),
            }),
            Self::Text(text) => quote!(#schema::Text(&#text)),
        }
    }
}

impl TypeAttributes {
    pub(crate) fn parse(attributes: &[Attribute]) -> syn::Result<Self> {
        let mut parsed = Self::default();
        for attribute in attributes.iter().filter(|a| a.path().is_ident("definition")) {
            attribute.parse_nested_meta(|meta| parsed.parse_entry(&meta))?;
        }
        Ok(parsed)
    }

    fn parse_entry(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        if meta.path.is_ident("check") {
            self.check = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("builds") {
            self.builds = Some(meta.value()?.parse()?);
        } else if meta.path.is_ident("noun") {
            self.noun = Some(meta.value()?.parse()?);
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
    pub(crate) fn parse(attributes: &[Attribute]) -> syn::Result<Self> {
        let mut parsed = Self::default();
        for attribute in attributes.iter().filter(|a| a.path().is_ident("field")) {
            attribute.parse_nested_meta(|meta| parsed.parse_entry(&meta))?;
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
            self.values = Some(ValueAttribute::Duration(parse_pair(meta)?));
        } else if meta.path.is_ident("text") {
            self.values = Some(ValueAttribute::Text(meta.value()?.parse()?));
        } else if meta.path.is_ident("list") {
            self.list = Some(parse_pair(meta)?);
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

/// Parses two arguments in parentheses.
fn parse_pair<T: syn::parse::Parse>(meta: &ParseNestedMeta<'_>) -> syn::Result<[T; 2]> {
    let content;
    parenthesized!(content in meta.input);
    let arguments: Vec<T> =
        Punctuated::<T, Token![,]>::parse_terminated(&content)?.into_iter().collect();
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

//! Derives the definition of an enum with values in its variants: a map with exactly one of several keys.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DataEnum, DeriveInput, Fields, Ident, Type, Variant};

use crate::attributes::{FieldAttributes, TypeAttributes, camel_case, description};
use crate::record::{Record, RecordField, derive_built_type};

pub(crate) fn derive(input: &DeriveInput, data: &DataEnum) -> syn::Result<TokenStream> {
    let variants: Vec<KeyVariant<'_>> =
        data.variants.iter().map(KeyVariant::parse).collect::<syn::Result<_>>()?;
    let TypeAttributes { noun, builds, .. } =
        TypeAttributes::parse(&input.attrs, &["noun", "builds"])?;
    let Some(noun) = noun else {
        return Err(syn::Error::new_spanned(&input.ident, "`#[definition(noun = …)]` is missing"));
    };
    let keys: Vec<&String> = variants.iter().map(|variant| &variant.key).collect();
    let (members, variant_builds) =
        (variants.iter().map(KeyVariant::member), variants.iter().map(KeyVariant::build));
    let name = &input.ident;
    let built_type = builds.map(|built_type| derive_built_type(name, &built_type));
    Ok(quote! {
        impl crate::definition::Definition for #name {
            const SCHEMA: crate::definition::Schema =
                crate::definition::Schema::Map(&crate::definition::MapSchema {
                    members: &[#(#members),*],
                    rules: &[crate::definition::MapRule::ExactlyOne {
                        fields: &[#(#keys),*],
                        noun: #noun,
                    }],
                    example: None,
                    text_problem: None,
                });

            fn build(
                value: crate::definition::ManifestValue,
                builder: &mut crate::definition::ManifestBuilder<'_>,
            ) -> Option<Self> {
                let mut values = value.into_members()?;
                #(#variant_builds)*
                None
            }
        }

        #built_type
    })
}

/// A variant and its key in manifests.
struct KeyVariant<'a> {
    ident: &'a Ident,
    key: String,
    description: String,
    content: Content<'a>,
}

/// The value of a variant.
enum Content<'a> {
    /// A variant with one value: its type, and the expression of its schema.
    Value { value_type: &'a Type, schema: TokenStream },
    /// A variant with named fields: a map.
    Map(Record<'a>),
}

impl<'a> KeyVariant<'a> {
    fn parse(variant: &'a Variant) -> syn::Result<Self> {
        let supported: &[&str] = match &variant.fields {
            Fields::Named(_) => &["name"],
            _ => VALUE_ATTRIBUTES,
        };
        let attributes = FieldAttributes::parse(&variant.attrs, supported)?;
        let name = attributes.name.clone();
        let key = name.unwrap_or_else(|| camel_case(&variant.ident.to_string()));
        let description = description(&variant.attrs, &variant.ident)?;
        let ident = &variant.ident;
        let content = match &variant.fields {
            Fields::Unnamed(fields) if fields.unnamed.len() == 1 => {
                let value_type = &fields.unnamed[0].ty;
                let (key, description) = (key.clone(), description.clone());
                let field =
                    RecordField { ident, field_type: value_type, key, description, attributes };
                Content::Value { value_type, schema: field.schema()? }
            }
            Fields::Named(fields) => Content::Map(Record::parse(fields)?),
            _ => return Err(syn::Error::new_spanned(variant, "a variant has one value")),
        };
        Ok(Self { ident, key, description, content })
    }

    fn member(&self) -> TokenStream {
        let (key, description) = (&self.key, &self.description);
        let schema = match &self.content {
            Content::Value { schema, .. } => schema.clone(),
            Content::Map(Record { members, .. }) => quote! {
                crate::definition::Schema::Map(&crate::definition::MapSchema {
                    members: &[#(#members),*],
                    rules: &[],
                    example: None,
                    text_problem: None,
                })
            },
        };
        quote!(crate::definition::Member::Field(crate::definition::FieldSchema {
            name: #key,
            description: #description,
            schema: #schema,
            default: crate::definition::FieldDefault::Absent(""),
        }))
    }

    /// Returns the statements that build the variant if its key is present.
    fn build(&self) -> TokenStream {
        let (ident, key) = (self.ident, &self.key);
        let build = match &self.content {
            Content::Value { value_type, .. } => quote! {
                return builder.build_field::<#value_type>(#key, value).map(Self::#ident);
            },
            Content::Map(Record { field_builds, idents, .. }) => quote! {
                return builder.build_below(#key, |builder| {
                    let mut values = value.into_members()?;
                    #(#field_builds)*
                    Some(Self::#ident { #(#idents: #idents?),* })
                });
            },
        };
        quote! {
            let value = values.next_value();
            if value != crate::definition::ManifestValue::Absent {
                #build
            }
        }
    }
}

/// The attributes of a variant with one value.
const VALUE_ATTRIBUTES: &[&str] =
    &["name", "integer", "duration", "percentage", "text", "list", "entries", "key"];

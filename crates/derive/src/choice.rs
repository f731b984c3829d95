//! Derives the definition of an enum of unit variants: a choice of words.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DataEnum, DeriveInput};

use crate::attributes::{FieldAttributes, TypeAttributes};

pub(crate) fn derive(input: &DeriveInput, data: &DataEnum) -> syn::Result<TokenStream> {
    TypeAttributes::parse(&input.attrs, &[])?;
    let words = data.variants.iter().map(|variant| {
        let attributes = FieldAttributes::parse(&variant.attrs, &["name"])?;
        Ok(attributes.name.unwrap_or_else(|| variant.ident.to_string()))
    });
    let words: Vec<String> = words.collect::<syn::Result<_>>()?;
    let name = &input.ident;
    let variants = data.variants.iter().map(|variant| &variant.ident);
    let indices = 0..words.len();
    Ok(quote! {
        impl crate::definition::Definition for #name {
            const SCHEMA: crate::definition::Schema =
                crate::definition::Schema::Choice(&[#(#words),*]);

            fn build(
                value: crate::definition::ManifestValue,
                _: &mut crate::definition::ManifestBuilder<'_>,
            ) -> Option<Self> {
                match value {
                    #(crate::definition::ManifestValue::Choice(#indices) => Some(Self::#variants),)*
                    _ => None,
                }
            }
        }
    })
}

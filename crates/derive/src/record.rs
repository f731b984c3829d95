//! Derives the definition of a struct: a map with fixed keys.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{
    DeriveInput, Error, Expr, Field, Fields, FieldsNamed, GenericArgument, Ident, Path,
    PathArguments, Type,
};

use crate::attributes::{FieldAttributes, TypeAttributes, ValueAttribute, camel_case, description};

pub(crate) fn derive(input: &DeriveInput, fields: &Fields) -> syn::Result<TokenStream> {
    let Fields::Named(fields) = fields else {
        return Err(Error::new_spanned(&input.ident, "a definition has named fields"));
    };
    let TypeAttributes { rules, check, builds, example, text_problem, .. } =
        TypeAttributes::parse(&input.attrs, TYPE_ATTRIBUTES)?;
    let Record { members, field_builds, idents } = Record::parse(fields)?;
    let example = match example {
        Some([field, value]) => quote!(Some((#field, #value))),
        None => quote!(None),
    };
    let text_problem = match text_problem {
        Some(function) => quote!(Some(#function)),
        None => quote!(None),
    };
    let check =
        check.map(|check| quote!(let built = Option::<Self>::from(#check(built, builder))?;));
    let name = &input.ident;
    let built_type = builds.map(|built_type| derive_built_type(name, &built_type));
    let (generics, type_generics, where_clause) = input.generics.split_for_impl();
    Ok(quote! {
        impl #generics crate::definition::Definition for #name #type_generics #where_clause {
            const SCHEMA: crate::definition::Schema =
                crate::definition::Schema::Map(&crate::definition::MapSchema {
                    members: &[#(#members),*],
                    rules: &[#(#rules),*],
                    example: #example,
                    text_problem: #text_problem,
                });

            fn build(
                value: crate::definition::ManifestValue,
                builder: &mut crate::definition::ManifestBuilder<'_>,
            ) -> Option<Self> {
                let mut values = value.into_members()?;
                #(#field_builds)*
                let built = Self { #(#idents: #idents?),* };
                #check
                Some(built)
            }
        }

        #built_type
    })
}

/// Derives the definition of the type that the struct or enum `name` builds.
pub(crate) fn derive_built_type(name: &Ident, built_type: &Path) -> TokenStream {
    quote! {
        impl crate::definition::Definition for #built_type {
            const SCHEMA: crate::definition::Schema =
                <#name as crate::definition::Definition>::SCHEMA;

            fn build(
                value: crate::definition::ManifestValue,
                builder: &mut crate::definition::ManifestBuilder<'_>,
            ) -> Option<Self> {
                let fields: #name = crate::definition::Definition::build(value, builder)?;
                // The method returns the type or an `Option` of it.
                fields.build_type(builder).into()
            }
        }
    }
}

/// The parts of a map that a struct or a variant with named fields defines.
pub(crate) struct Record<'a> {
    /// The expressions of the members of the schema.
    pub(crate) members: Vec<TokenStream>,
    /// The statements that build the fields from `values`, each as an `Option` with the field's name.
    pub(crate) field_builds: Vec<TokenStream>,
    /// The names of the fields.
    pub(crate) idents: Vec<&'a Ident>,
}

impl<'a> Record<'a> {
    pub(crate) fn parse(fields: &'a FieldsNamed) -> syn::Result<Self> {
        let fields: Vec<RecordField<'_>> =
            fields.named.iter().map(RecordField::parse).collect::<syn::Result<_>>()?;
        Ok(Self {
            members: fields.iter().map(RecordField::member).collect::<syn::Result<_>>()?,
            field_builds: fields.iter().map(RecordField::build).collect(),
            idents: fields.iter().map(|field| field.ident).collect(),
        })
    }
}

/// A field of the struct, or the value of a variant.
pub(crate) struct RecordField<'a> {
    pub(crate) ident: &'a Ident,
    pub(crate) field_type: &'a Type,
    pub(crate) key: String,
    /// The doc comment.
    pub(crate) description: String,
    pub(crate) attributes: FieldAttributes,
}

impl<'a> RecordField<'a> {
    fn parse(field: &'a Field) -> syn::Result<Self> {
        let attributes = FieldAttributes::parse(&field.attrs, FIELD_ATTRIBUTES)?;
        let Some(ident) = &field.ident else {
            return Err(Error::new_spanned(field, "a definition has named fields"));
        };
        let key = attributes.name.clone().unwrap_or_else(|| camel_case(&ident.to_string()));
        let description = description(&field.attrs, ident)?;
        Ok(Self { ident, field_type: &field.ty, key, description, attributes })
    }

    /// Returns the expression of the field's `Member`.
    fn member(&self) -> syn::Result<TokenStream> {
        if self.attributes.include {
            let included = self.field_type;
            return Ok(quote!(crate::definition::Member::Included(
                <#included as crate::definition::Definition>::SCHEMA.map_schema()
            )));
        }
        let (key, description) = (&self.key, &self.description);
        let (schema, default) = (self.schema()?, self.default()?);
        Ok(quote!(crate::definition::Member::Field(crate::definition::FieldSchema {
            name: #key,
            description: #description,
            schema: #schema,
            default: crate::definition::FieldDefault::#default,
        })))
    }

    /// Returns the expression of the field's `Schema`. Texts, durations, lists and maps have bounds.
    pub(crate) fn schema(&self) -> syn::Result<TokenStream> {
        match &self.attributes.entries {
            Some([min, max]) => self.entries_schema(min, max),
            None => self.list_or_value_schema(self.field_type),
        }
    }

    fn list_or_value_schema(&self, field_type: &Type) -> syn::Result<TokenStream> {
        let list_type = type_argument(field_type, "Option").unwrap_or(field_type);
        let set_element = type_argument(list_type, "BTreeSet");
        let element = set_element.or_else(|| type_argument(list_type, "Vec"));
        match (&self.attributes.list, element) {
            (Some([min, max]), Some(element)) => {
                let element_schema = self.value_schema(element)?;
                let is_set = set_element.is_some();
                Ok(quote!(crate::definition::Schema::List {
                    element: &#element_schema,
                    min: #min,
                    max: #max,
                    unique: #is_set,
                }))
            }
            (None, None) => self.value_schema(field_type),
            (Some(_), None) => {
                Err(Error::new_spanned(self.ident, "is neither `Vec` nor `BTreeSet`"))
            }
            (None, Some(_)) => Err(Error::new_spanned(self.ident, "`list(min, max)` is missing")),
        }
    }

    /// Returns the expression of the schema of a map with any keys.
    fn entries_schema(&self, min: &Expr, max: &Expr) -> syn::Result<TokenStream> {
        let map_type = type_argument(self.field_type, "Option").unwrap_or(self.field_type);
        let map_value = MAPS.into_iter().find_map(|map| type_argument(map_type, map));
        let (Some(value), Some(key)) = (map_value, &self.attributes.key) else {
            return Err(Error::new_spanned(self.ident, "a map or `key = SCHEMA` is missing"));
        };
        let value_schema = self.list_or_value_schema(value)?;
        Ok(quote!(crate::definition::Schema::Entries {
            key: &#key,
            value: &#value_schema,
            min: #min,
            max: #max,
        }))
    }

    fn value_schema(&self, value_type: &Type) -> syn::Result<TokenStream> {
        let basic_type = type_argument(value_type, "Option").unwrap_or(value_type);
        let is_type =
            |name: &str| matches!(basic_type, Type::Path(path) if path.path.is_ident(name));
        match &self.attributes.values {
            Some(values @ ValueAttribute::Integer(bounds)) => {
                let [min, max] = &**bounds;
                let schema = values.schema();
                // A bound beyond the type would accept numbers that the type cannot hold.
                Ok(quote!({
                    const {
                        assert!(#min as i128 >= <#basic_type>::MIN as i128);
                        assert!(#max as i128 <= <#basic_type>::MAX as i128);
                    };
                    #schema
                }))
            }
            Some(values) => Ok(values.schema()),
            None if is_type("String") => {
                Err(Error::new_spanned(self.ident, "`text = SCHEMA` is missing"))
            }
            None if is_type("Duration") => {
                Err(Error::new_spanned(self.ident, "`duration(min, max)` is missing"))
            }
            None => Ok(quote!(<#value_type as crate::definition::Definition>::SCHEMA)),
        }
    }

    /// Returns the variant of `FieldDefault`.
    fn default(&self) -> syn::Result<TokenStream> {
        let FieldAttributes { default, absent, required, .. } = &self.attributes;
        let is_optional = ["Option", "Vec", "BTreeSet"]
            .into_iter()
            .chain(MAPS)
            .any(|container| type_argument(self.field_type, container).is_some());
        match (default, absent, required) {
            (Some(_), None, false) if is_optional => {
                Err(Error::new_spanned(self.ident, "an optional field or list has no default"))
            }
            (Some(literal), None, false) => Ok(quote!(Literal(#literal))),
            (None, Some(meaning), false) if is_optional => Ok(quote!(Absent(#meaning))),
            (None, None, true) if is_optional => Ok(quote!(Required)),
            (None, None, false) if is_optional => Ok(quote!(Absent(""))),
            (None, None, false) => Ok(quote!(Required)),
            _ => Err(Error::new_spanned(self.ident, "the attributes exclude each other")),
        }
    }

    /// Returns the statement that builds the field from the next value. The value of an included type has the path of the
    /// enclosing map.
    fn build(&self) -> TokenStream {
        let (ident, key, field_type) = (self.ident, &self.key, self.field_type);
        let check = self.attributes.check.as_ref().map(|check| {
            quote! {
                let #ident = #ident
                    .and_then(|value| Option::<#field_type>::from(#check(value, builder)));
            }
        });
        match self.attributes.include {
            true => quote! {
                let #ident = crate::definition::Definition::build(values.next_value(), builder);
                #check
            },
            false => quote! {
                let #ident = builder.build_field(#key, values.next_value());
                #check
            },
        }
    }
}

/// The attributes of a struct.
const TYPE_ATTRIBUTES: &[&str] =
    &["cel", "exactly_one", "check", "example", "text_problem", "builds"];
/// The attributes of a field.
const FIELD_ATTRIBUTES: &[&str] = &[
    "name",
    "default",
    "absent",
    "required",
    "integer",
    "duration",
    "percentage",
    "text",
    "list",
    "entries",
    "key",
    "check",
    "include",
];
/// The types of maps with any keys.
const MAPS: [&str; 2] = ["BTreeMap", "Entries"];

/// Returns `T` of a type such as `Option<T>` or `BTreeMap<String, T>`.
fn type_argument<'a>(field_type: &'a Type, container: &str) -> Option<&'a Type> {
    let Type::Path(path) = field_type else { return None };
    let segment = path.path.segments.last().filter(|segment| segment.ident == container)?;
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return None };
    match arguments.args.last()? {
        GenericArgument::Type(argument) => Some(argument),
        _ => None,
    }
}

//! `leno explain kind`: the kinds of rules, and the fields of a kind.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::anyhow;
use leno_model::definition::{FieldReference, FieldSchema, MapSchema, field_references};
use leno_model::{KIND_DEFINITIONS, KindDefinition};
use leno_registry::{closest_word, served_kinds};
use serde_json::{Value, json};

use super::ExplainFormat;
use crate::output::{self, Listing, ListingColumn, OutputFormat};

/// Prints the kinds with a definition.
pub(super) fn print_kinds(format: ExplainFormat) -> anyhow::Result<ExitCode> {
    if let Some(structured_format) = format.structured_format() {
        let kinds: Vec<Value> = KIND_DEFINITIONS.iter().map(kind_to_json).collect();
        output::print_value(&kinds, structured_format)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut listing = Listing::new(COLUMNS);
    for definition in KIND_DEFINITIONS {
        listing.add_row([
            definition.kind.to_owned(),
            definition.short_name.to_owned(),
            definition.api_versions.first().copied().unwrap_or_default().to_owned(),
            definition.description.to_owned(),
        ]);
    }
    output::print_raw(&listing.render(OutputFormat::Table))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the fields of a kind, or one of its fields with the fields below it: `path` is `KIND`, `KIND.FIELD` or
/// `KIND.spec.FIELD`.
pub(super) fn print_kind(
    path: &str,
    is_recursive: bool,
    format: ExplainFormat,
) -> anyhow::Result<ExitCode> {
    let (name, field) = path.split_once('.').unwrap_or((path, ""));
    let definition = KindDefinition::from_name(name).ok_or_else(|| unknown_kind(name))?;
    let fields = select_fields(definition, field, is_recursive)?;
    match format.structured_format() {
        Some(structured_format) => {
            let mut value = kind_to_json(definition);
            value["fields"] = fields.iter().map(field_to_json).collect();
            output::print_value(&value, structured_format)?;
        }
        None => output::print_raw(&render(definition, &fields))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the error for a kind without a definition.
fn unknown_kind(name: &str) -> anyhow::Error {
    let kinds: Vec<&str> = KIND_DEFINITIONS.iter().map(|definition| definition.kind).collect();
    let is_supported =
        served_kinds().iter().any(|supported| supported.kind.eq_ignore_ascii_case(name));
    match closest_word(name, &kinds) {
        Some(kind) if !is_supported => anyhow!("unknown kind `{name}`: did you mean `{kind}`?"),
        _ => anyhow!(
            "no description of the kind `{name}`: `leno explain kind` lists the kinds with one, \
             and docs/configuration.md lists all kinds"
        ),
    }
}

/// Returns the fields to print: the field at the path, if there is one, and the fields below it. Without `is_recursive`,
/// deeper fields are omitted.
fn select_fields(
    definition: &KindDefinition,
    path: &str,
    is_recursive: bool,
) -> anyhow::Result<Vec<FieldReference>> {
    let mut selected_path = "spec".to_owned();
    let mut map = Some(definition.spec);
    let mut fields = Vec::new();
    // True after a map with any keys.
    let mut may_be_name = false;
    for key in keys(path) {
        let known_fields = map.map(MapSchema::all_fields).unwrap_or_default();
        let Some(field) = known_fields.iter().find(|field| field.name == key) else {
            if may_be_name {
                may_be_name = false;
                continue;
            }
            return Err(unknown_field(definition, &selected_path, key, &known_fields));
        };
        let selected = FieldReference::new(&selected_path, field);
        selected_path.clone_from(&selected.path);
        may_be_name = selected_path.ends_with(".NAME");
        map = field.map_below();
        fields = vec![selected];
    }
    match map {
        Some(map) if is_recursive => fields.extend(field_references(&selected_path, map)),
        Some(map) => {
            let known_fields = map.all_fields().into_iter();
            fields.extend(known_fields.map(|field| FieldReference::new(&selected_path, field)));
        }
        None => {}
    }
    Ok(fields)
}

/// Returns the keys of a path below `spec`, such as `healthCheck.interval` or `spec.rules[0].from`.
fn keys(path: &str) -> impl Iterator<Item = &str> {
    let path = match path.split_once('.') {
        Some(("spec", below)) => below,
        None if path == "spec" => "",
        _ => path,
    };
    path.split('.').filter_map(|key| key.split('[').next()).filter(|key| !key.is_empty())
}

/// Returns the error for a key that is no field of the map at `path`.
fn unknown_field(
    definition: &KindDefinition,
    path: &str,
    key: &str,
    known_fields: &[&FieldSchema],
) -> anyhow::Error {
    let names: Vec<&str> = known_fields.iter().map(|field| field.name).collect();
    let kind = definition.kind;
    match closest_word(key, &names) {
        Some(name) => anyhow!("`{path}` of {kind} has no field `{key}`: did you mean `{name}`?"),
        None => anyhow!(
            "`{path}` of {kind} has no field `{key}`: `leno explain kind {kind} --recursive` lists \
             all fields"
        ),
    }
}

fn render(definition: &KindDefinition, fields: &[FieldReference]) -> String {
    let short_name = match definition.short_name {
        "" => String::new(),
        short_name => format!(", short name {short_name}"),
    };
    let mut text = format!(
        "{} ({}{short_name})\n{}\nExamples and semantics: docs/rules/{}\n",
        definition.kind,
        definition.api_versions.join(", "),
        definition.description,
        definition.page,
    );
    for field in fields {
        let default = match (&field.default, field.is_required) {
            (_, true) => "; required".to_owned(),
            (Some(default), false) => format!("; default: {default}"),
            (None, false) => String::new(),
        };
        write!(text, "\n{}\n  {}{default}\n  {}\n", field.path, field.values, field.description)
            .expect("writing to a String never fails");
    }
    text
}

fn kind_to_json(definition: &KindDefinition) -> Value {
    json!({
        "kind": definition.kind,
        "api_versions": definition.api_versions,
        "plural": definition.plural,
        "short_name": (!definition.short_name.is_empty()).then_some(definition.short_name),
        "scope": definition.scope.as_str(),
        "description": definition.description,
        "page": format!("docs/rules/{}", definition.page),
    })
}

fn field_to_json(field: &FieldReference) -> Value {
    json!({
        "field": field.path,
        "values": field.values,
        "required": field.is_required,
        "default": field.default,
        "description": field.description,
    })
}

const COLUMNS: &[ListingColumn] = &[
    ListingColumn::always("kind"),
    ListingColumn::always("short name"),
    ListingColumn::always("api version"),
    ListingColumn::always("description"),
];

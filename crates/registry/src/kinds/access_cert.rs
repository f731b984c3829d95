//! Reads the `AccessCert` kind of osm-edge and FSM: the names of a client outside the mesh, and the Secret in which the
//! control plane stores a certificate for the client.

use leno_model::{AccessCert, Name, PolicyName};

use super::ObjectMetadata;
use super::ingress::read_non_empty_list;
use crate::field::{Field, MapFields};

/// Reads the `spec` of an `AccessCert`.
pub(super) fn read(metadata: ObjectMetadata, spec: &Field<'_>) -> Option<AccessCert> {
    let fields = spec.read_fields(&["subjectAltNames", "secret"])?;
    let name = PolicyName { namespace: metadata.namespace, name: metadata.name };
    let subjects = read_subjects(&fields);
    let secret = fields.require("secret").and_then(|field| read_secret(field, &name.namespace));
    Some(AccessCert { subjects: subjects?, secret: secret?, name })
}

/// Reads the names in `subjectAltNames`; `None` if one is invalid.
fn read_subjects(fields: &MapFields<'_>) -> Option<Vec<Name>> {
    let field = fields.require("subjectAltNames")?;
    let elements = read_non_empty_list(field, "name the client, such as batch.corp.example")?;
    let element_count = elements.len();
    if element_count > MAX_SUBJECTS {
        let problem = format!("has {element_count} elements");
        field.reject(problem, format!("use at most {MAX_SUBJECTS}"));
        return None;
    }
    let mut subjects = Vec::new();
    for element in elements {
        let Some(subject) = read_subject(&element) else { continue };
        if subjects.contains(&subject) {
            element.reject("is listed twice", "remove one of the two");
        }
        subjects.push(subject);
    }
    (subjects.len() == element_count).then_some(subjects)
}

/// Reads a DNS name. SPIFFE ids are rejected, because only mesh members have them; wildcards are rejected, because they would
/// name several clients.
fn read_subject(element: &Field<'_>) -> Option<Name> {
    let text = element.read_text()?;
    let (problem, hint) = if text.contains("://") {
        ("is a mesh identity, which only members of the mesh have", JOIN_HINT)
    } else if text.contains('*') {
        ("matches more than one client", "write a separate AccessCert for each client")
    } else if Name::new(text).is_err() || !text.contains('.') {
        ("is not a DNS name", "use lower-case letters, digits and `-` between dots")
    } else {
        return Name::new(text).ok();
    };
    element.reject(format!("{} {problem}", element.quoted_value()), hint);
    None
}

/// Reads the Secret reference. Other namespaces are rejected: the author may have no access there.
fn read_secret(field: &Field<'_>, own_namespace: &Name) -> Option<Name> {
    let fields = field.read_fields(&["name", "namespace"])?;
    let name = fields.require("name").and_then(Field::read_name);
    let namespace = fields.require("namespace")?;
    let secret_namespace = namespace.read_label()?;
    if secret_namespace != *own_namespace {
        namespace.reject(
            format!("{} is not the namespace of the AccessCert", namespace.quoted_value()),
            format!("use {own_namespace}, or put the AccessCert into the namespace of its Secret"),
        );
        return None;
    }
    name
}

/// The hint for an identity of the mesh.
const JOIN_HINT: &str = "use a DNS name, or let the client join with its own token (`leno token`)";
/// Maximum number of names per certificate.
const MAX_SUBJECTS: usize = 16;

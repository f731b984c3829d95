//! Reader of the `AccessCert` kind of osm-edge and FSM.

use leno_model::{AccessCert, Name, PolicyName};

use super::ObjectMetadata;
use super::ingress::not_empty;
use crate::field::{Field, MapFields};

pub(super) fn read(head: ObjectMetadata, spec: &Field<'_>) -> Option<AccessCert> {
    let fields = spec.read_fields(&["subjectAltNames", "secret"])?;
    let name = PolicyName { namespace: head.namespace, name: head.name };
    let subjects = read_subjects(&fields);
    let secret = fields.require("secret").and_then(|field| read_secret(field, &name.namespace));
    Some(AccessCert { subjects: subjects?, secret: secret?, name })
}

fn read_subjects(fields: &MapFields<'_>) -> Option<Vec<Name>> {
    let field = fields.require("subjectAltNames")?;
    let elements = not_empty(field, "name the client, such as batch.corp.example")?;
    let count = elements.len();
    if count > SUBJECTS_MAX {
        field.reject(format!("has {count} elements"), format!("use at most {SUBJECTS_MAX}"));
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
    (subjects.len() == count).then_some(subjects)
}

/// Reads a DNS name. Identities belong to mesh members, and a wildcard would include all subdomains; both are
/// rejected.
fn read_subject(element: &Field<'_>) -> Option<Name> {
    let text = element.read_text()?;
    let rejection = if text.contains("://") {
        ("is a mesh identity, which only members of the mesh have", JOIN)
    } else if text.contains('*') {
        ("matches more than one client", "write a separate AccessCert for each client")
    } else if Name::new(text).is_err() || !text.contains('.') {
        ("is not a DNS name", "use lower-case letters, digits and `-` between dots")
    } else {
        return Name::new(text).ok();
    };
    element.reject(format!("{} {}", element.quoted_value(), rejection.0), rejection.1);
    None
}

/// Reads the Secret reference. Other namespaces are rejected: the author may have no access there.
fn read_secret(field: &Field<'_>, own: &Name) -> Option<Name> {
    let fields = field.read_fields(&["name", "namespace"])?;
    let name = fields.require("name").and_then(Field::read_name);
    let namespace = fields.require("namespace")?;
    let written = namespace.read_label()?;
    if written != *own {
        namespace.reject(
            format!("{} is not the namespace of the AccessCert", namespace.quoted_value()),
            format!("use {own}, or put the AccessCert into the namespace of its Secret"),
        );
        return None;
    }
    name
}

const JOIN: &str = "use a DNS name, or let the client join with its own token (`leno token`)";
/// Limit of names per certificate.
const SUBJECTS_MAX: usize = 16;

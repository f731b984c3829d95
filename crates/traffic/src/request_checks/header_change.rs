//! Converts the header changes that check services request into edits of request and response heads, and rejects
//! changes that would corrupt a message.

use leno_model::{Header, HeaderEdits};

use crate::action::FieldEdits;
use crate::request::HeaderLookup;

/// A change of one header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderChange {
    /// The name of the header, in lower case.
    pub name: String,
    /// The new value.
    pub value: String,
    /// The action for an existing header.
    pub action: HeaderAction,
}

/// The action for an existing header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeaderAction {
    /// The existing header is replaced.
    Replace,
    /// The existing header is retained, and the new value is added.
    Append,
    /// An existing header is retained; the new value is added only if the header is absent.
    IfAbsent,
    /// An existing header is replaced; an absent header is not added.
    IfPresent,
}

/// A header change that is rejected, because the name is invalid or protected or the value is invalid. Contains the
/// name, truncated to 64 characters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this change of the header {0:?} is not allowed")]
pub struct InvalidHeaderChange(pub String);

/// Returns the edits of a request with these header fields. Names in `removed_names` that rules may not edit, such as
/// hop-by-hop headers and `host`, are ignored.
///
/// # Errors
/// [`InvalidHeaderChange`] for the first change that would corrupt the message.
pub fn request_edits(
    changes: &[HeaderChange],
    removed_names: &[String],
    fields: &dyn HeaderLookup,
) -> Result<HeaderEdits, InvalidHeaderChange> {
    let applies = |change: &&HeaderChange| match change.action {
        HeaderAction::Replace | HeaderAction::Append => true,
        HeaderAction::IfAbsent => fields.first_value(&change.name).is_none(),
        HeaderAction::IfPresent => fields.first_value(&change.name).is_some(),
    };
    let mut edits = HeaderEdits::default();
    for change in changes.iter().filter(applies) {
        add_change(&mut edits, change)?;
    }
    for name in removed_names {
        // A change that sets the header takes precedence over its removal.
        let is_editable = HeaderEdits::is_valid_name(name) && HeaderEdits::may_edit(name);
        if is_editable && edits.set.iter().all(|header| header.name != *name) {
            edits.remove.push(name.clone());
        }
    }
    Ok(edits)
}

/// Returns the edits of a response with header fields that are not known yet.
///
/// # Errors
/// [`InvalidHeaderChange`] for a change that would corrupt the message, or that depends on existing fields.
pub fn response_edits(changes: &[HeaderChange]) -> Result<HeaderEdits, InvalidHeaderChange> {
    let mut edits = HeaderEdits::default();
    for change in changes {
        match change.action {
            HeaderAction::Replace | HeaderAction::Append => add_change(&mut edits, change)?,
            HeaderAction::IfAbsent | HeaderAction::IfPresent => {
                return Err(InvalidHeaderChange(change.name.clone()));
            }
        }
    }
    Ok(edits)
}

/// Adds the edit for a change; an error for a change that would corrupt the message.
fn add_change(edits: &mut HeaderEdits, change: &HeaderChange) -> Result<(), InvalidHeaderChange> {
    let HeaderChange { name, value, action } = change;
    if !HeaderEdits::is_valid_name(name)
        || !HeaderEdits::may_edit(name)
        || !HeaderEdits::is_valid_value(value)
    {
        return Err(InvalidHeaderChange(name.chars().take(MAX_NAME_CHARACTERS).collect()));
    }
    let header = Header { name: name.clone(), value: value.clone() };
    match action {
        HeaderAction::Append => edits.add.push(header),
        HeaderAction::Replace | HeaderAction::IfAbsent | HeaderAction::IfPresent => {
            edits.set.retain(|existing| existing.name != *name);
            edits.set.push(header);
        }
    }
    Ok(())
}

impl FieldEdits {
    /// Compiles the edits that a check service requested.
    #[must_use]
    pub fn from_edits(edits: &HeaderEdits) -> Self {
        Self::compile(edits)
    }
}

/// The maximum number of characters of a header name in an error.
const MAX_NAME_CHARACTERS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn header_change(name: &str, value: &str, action: HeaderAction) -> HeaderChange {
        HeaderChange { name: name.to_owned(), value: value.to_owned(), action }
    }

    #[test]
    fn conditional_changes_depend_on_the_existing_headers() {
        let fields = vec![("x-there".to_owned(), "1".to_owned())];
        let changes = [
            header_change("x-user", "ann", HeaderAction::Replace),
            header_change("x-user", "bea", HeaderAction::Replace),
            header_change("x-role", "reader", HeaderAction::Append),
            header_change("x-there", "2", HeaderAction::IfAbsent),
            header_change("x-new", "3", HeaderAction::IfAbsent),
            header_change("x-there", "4", HeaderAction::IfPresent),
            header_change("x-gone", "5", HeaderAction::IfPresent),
        ];
        let names_to_remove = ["cookie", "host", "Content-Length", "x-user"].map(str::to_owned);
        let edits =
            FieldEdits::from_edits(&request_edits(&changes, &names_to_remove, &fields).unwrap());
        assert_eq!(&*edits.lines, "x-user: bea\r\nx-new: 3\r\nx-there: 4\r\nx-role: reader\r\n");
        let mut removed_names: Vec<&str> = edits.remove.iter().map(|name| &**name).collect();
        removed_names.sort_unstable();
        assert_eq!(removed_names, ["cookie", "x-new", "x-there", "x-user"]);
    }

    #[test]
    fn changes_that_would_corrupt_the_message_are_rejected() {
        for (name, value) in [
            ("content-length", "1"),
            ("transfer-encoding", "chunked"),
            ("host", "a"),
            (":path", "/"),
            ("X-Upper", "a"),
            ("", "a"),
            ("x-a", "b\r\nx-c: d"),
        ] {
            let changes = [header_change(name, value, HeaderAction::Replace)];
            assert!(request_edits(&changes, &[], &Vec::new()).is_err(), "{name}");
            assert!(response_edits(&changes).is_err(), "{name}");
        }
        assert!(response_edits(&[header_change("x-a", "b", HeaderAction::IfAbsent)]).is_err());
    }
}

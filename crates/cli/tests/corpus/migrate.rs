//! Properties of `leno migrate`, for any text.

use leno_registry::read_str;

/// Checks that the text is rejected with the problem, or that each new document is valid or a document of the old
/// text, and that a second run has the same result.
pub(crate) fn check_migration(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let result = match leno::migrate_text(&text) {
        Ok(result) => result,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert!(!result.report.is_empty());
    for document in &result.documents {
        let is_unchanged = text.contains(document.trim_end());
        let (objects, rejected) = read_str("new.yaml", document);
        assert!(
            is_unchanged || (objects.len() == 1 && rejected.is_empty()),
            "{document}\n{rejected:?}"
        );
    }
    assert_eq!(leno::migrate_text(&text).ok().as_ref(), Some(&result));
}

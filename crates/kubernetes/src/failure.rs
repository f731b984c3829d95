//! What went wrong with the API server, in its own words.

use std::error::Error;

/// The words of an API server that refuses; otherwise the error and its causes.
#[must_use]
pub fn in_words(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return match status.message.as_str() {
            "" => format!("the API server answers {}", status.code),
            message => message.to_owned(),
        };
    }
    with_causes(error)
}

/// An error with its causes, in one line, each said once.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_as_the_api_server_says_it() {
        let status = |message: &str| {
            let status = kube::core::Status { code: 404, ..kube::core::Status::default() };
            kube::Error::Api(Box::new(kube::core::Status { message: message.to_owned(), ..status }))
        };
        assert_eq!(in_words(&status("pods \"a\" not found")), "pods \"a\" not found");
        assert_eq!(in_words(&status("")), "the API server answers 404");
    }
}

//! Finds the known word that a misspelled word probably means, and joins words to lists for messages.

/// Returns the known word that begins with `word` or, if there is none, the known word within the fewest edits; at most
/// one to three edits are accepted, depending on the length of the known word. Ignores case.
#[must_use]
pub fn closest_word<'a>(word: &str, known_words: &[&'a str]) -> Option<&'a str> {
    if word.is_empty() || word.len() > MAX_WORD_BYTES {
        return None;
    }
    let word_lower = word.to_lowercase();
    let characters: Vec<char> = word_lower.chars().collect();
    known_words
        .iter()
        .map(|candidate| {
            let candidate_lower = candidate.to_lowercase();
            if characters.len() >= MIN_PREFIX_CHARACTERS && candidate_lower.starts_with(&word_lower)
            {
                // A word was more probably abbreviated than misspelled.
                return (0, *candidate);
            }
            let candidate_characters: Vec<char> = candidate_lower.chars().collect();
            (edit_distance(&characters, &candidate_characters), *candidate)
        })
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).clamp(1, 3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Joins words to a list of alternatives: `` `a`, `b` or `c` ``.
#[must_use]
pub fn join_with_or(words: &[&str]) -> String {
    match words {
        [] => "nothing".to_owned(),
        [only] => format!("`{only}`"),
        [preceding @ .., last] => format!("`{}` or `{last}`", preceding.join("`, `")),
    }
}

/// Joins words to a list: `` `a`, `b` and `c` ``.
#[must_use]
pub fn join_with_and(words: &[&str]) -> String {
    match words {
        [] | [_] => join_with_or(words),
        [preceding @ .., last] => format!("`{}` and `{last}`", preceding.join("`, `")),
    }
}

/// Returns the edit distance: insertions, deletions, replacements and swaps of neighbors.
fn edit_distance(source: &[char], target: &[char]) -> usize {
    let mut rows: Vec<Vec<usize>> = vec![(0..=target.len()).collect()];
    for (source_index, source_character) in source.iter().enumerate() {
        let previous_row = &rows[source_index];
        let mut row = vec![source_index + 1];
        for (target_index, target_character) in target.iter().enumerate() {
            let replacement_distance =
                previous_row[target_index] + usize::from(source_character != target_character);
            let mut distance = replacement_distance
                .min(previous_row[target_index + 1] + 1)
                .min(row[target_index] + 1);
            let is_swap = source_index > 0
                && target_index > 0
                && *source_character == target[target_index - 1]
                && source[source_index - 1] == *target_character;
            if is_swap {
                distance = distance.min(rows[source_index - 1][target_index - 1] + 1);
            }
            row.push(distance);
        }
        rows.push(row);
    }
    rows[source.len()][target.len()]
}

/// Minimum length of a word that matches as a prefix.
const MIN_PREFIX_CHARACTERS: usize = 3;
/// Maximum length of a word; a longer one is not a misspelled field name.
const MAX_WORD_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_corrected_and_distant_words_are_not() {
        let words = ["account", "ports", "port", "Service", "TCPRoute"];
        for (word, expected) in [
            ("Account", Some("account")),
            ("acount", Some("account")),
            ("prots", Some("port")),
            ("portz", Some("port")),
            ("Servce", Some("Service")),
            ("TcpRoute", Some("TCPRoute")),
            ("serv", Some("Service")),
            ("ServiceEntry", None),
            ("Deployment", None),
            ("", None),
            ("é", None),
        ] {
            let suggestion = closest_word(word, &words);
            if expected == Some("port") {
                assert!(matches!(suggestion, Some("port" | "ports")), "{word}: {suggestion:?}");
            } else {
                assert_eq!(suggestion, expected, "{word}");
            }
        }
    }
}

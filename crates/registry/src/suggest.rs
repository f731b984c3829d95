//! Suggestions of known words in place of misspelled ones, and lists of words in messages.

/// Returns the known word that is closest to `word`, within one to three edits, or begins with it.
#[must_use]
pub fn closest_word<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    if word.is_empty() || word.len() > MAX_WORD_BYTES {
        return None;
    }
    let word = word.to_lowercase();
    let characters: Vec<char> = word.chars().collect();
    known
        .iter()
        .map(|candidate| {
            let candidate_lower = candidate.to_lowercase();
            if characters.len() >= MIN_BEGINNING_CHARACTERS && candidate_lower.starts_with(&word) {
                // A truncated word is a better guess than a typo.
                return (0, *candidate);
            }
            let target: Vec<char> = candidate_lower.chars().collect();
            (edit_distance(&characters, &target), *candidate)
        })
        .filter(|(distance, candidate)| *distance <= (candidate.len() / 3).clamp(1, 3))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Lists the known words: ``one of `a`, `b` or `c` ``.
pub(crate) fn one_of(known: &[&str]) -> String {
    match known {
        [] => "nothing".to_owned(),
        [only] => format!("`{only}`"),
        [first @ .., last] => format!("`{}` or `{last}`", first.join("`, `")),
    }
}

/// Lists the known words: `` `a`, `b` and `c` ``.
pub(crate) fn all_of(known: &[&str]) -> String {
    match known {
        [] | [_] => one_of(known),
        [first @ .., last] => format!("`{}` and `{last}`", first.join("`, `")),
    }
}

/// Returns the edit distance: insertions, deletions, replacements and swaps of neighbors.
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for (i, from) in a.iter().enumerate() {
        let previous_row = &rows[i];
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let replaced = previous_row[j] + usize::from(from != to);
            let mut best = replaced.min(previous_row[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// Minimum length of a word that matches as a prefix.
const MIN_BEGINNING_CHARACTERS: usize = 3;
/// Length limit of a word; a longer one is not a misspelled field name.
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

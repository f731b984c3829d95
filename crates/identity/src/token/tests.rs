//! Tests of tokens: single use, lifetime, one workload; across threads and restarts.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::sync::Barrier;
use std::thread;

use super::*;
use crate::testing::{now, workload_name};

const MINUTE: Duration = Duration::from_secs(60);

fn open_tokens() -> (tempfile::TempDir, Tokens) {
    let dir = tempfile::tempdir().unwrap();
    let tokens = Tokens::open(&dir.path().join("tokens")).unwrap();
    (dir, tokens)
}

#[test]
fn is_good_once_even_across_a_restart() {
    let (_dir, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    let token = tokens.mint(&ratings, MINUTE, now()).unwrap();
    let restarted = Tokens::open(&tokens.dir).unwrap();
    restarted.redeem(&token, &ratings, now()).unwrap();
    for tokens in [&tokens, &restarted, &Tokens::open(&tokens.dir).unwrap()] {
        assert!(matches!(tokens.redeem(&token, &ratings, now()), Err(TokenError::Unknown)));
    }
}

#[test]
fn a_removed_directory_is_made_again() {
    let (dir, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    fs::remove_dir_all(dir.path()).unwrap();
    let token = tokens.mint(&ratings, MINUTE, now()).unwrap();
    tokens.redeem(&token, &ratings, now()).unwrap();
}

#[test]
fn exactly_one_of_many_racing_redeemers_wins() {
    let (_dir, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    for _ in 0..50 {
        let token = tokens.mint(&ratings, MINUTE, now()).unwrap();
        let start = Barrier::new(4);
        let redeem = || {
            start.wait();
            tokens.redeem(&token, &ratings, now())
        };
        let results: Vec<_> = thread::scope(|scope| {
            let racers: Vec<_> = (0..4).map(|_| scope.spawn(redeem)).collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        for lost in results.into_iter().filter_map(Result::err) {
            assert!(matches!(lost, TokenError::Unknown), "{lost}");
        }
    }
}

#[test]
fn is_refused_when_late_and_then_for_good() {
    let (_dir, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    let made = now();
    let token = tokens.mint(&ratings, MINUTE, made).unwrap();
    let late = tokens.redeem(&token, &ratings, made + MINUTE);
    assert!(matches!(late, Err(TokenError::Expired)));
    let back = tokens.redeem(&token, &ratings, made);
    assert!(matches!(back, Err(TokenError::Unknown)));
    let token = tokens.mint(&ratings, MINUTE, made).unwrap();
    let in_time = made + MINUTE - Duration::from_secs(2);
    tokens.redeem(&token, &ratings, in_time).unwrap();
}

#[test]
fn is_refused_for_another_workload_and_not_used_up_by_it() {
    let (_dir, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    let token = tokens.mint(&ratings, MINUTE, now()).unwrap();
    for other in [workload_name("ratings-2"), WorkloadName::new("shop", "ratings-1").unwrap()] {
        assert!(matches!(tokens.redeem(&token, &other, now()), Err(TokenError::OtherWorkload)));
    }
    tokens.redeem(&token, &ratings, now()).unwrap();
}

#[test]
fn refuses_what_was_never_made() {
    let (_dir, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    let token = tokens.mint(&ratings, MINUTE, now()).unwrap();
    let mut wrong = token.clone();
    let last = wrong.pop().unwrap();
    wrong.push(if last == '0' { '1' } else { '0' });
    let digits = token.trim_start_matches(TOKEN_PREFIX);
    for bad in ["", "leno-join-", "../../etc/passwd", digits, &wrong, &token[1..]] {
        assert!(matches!(tokens.redeem(bad, &ratings, now()), Err(TokenError::Unknown)), "{bad}");
    }
    let upper = token.to_uppercase();
    assert!(tokens.redeem(&upper, &ratings, now()).is_err());
    tokens.redeem(&token, &ratings, now()).unwrap();
}

#[test]
fn leaves_nothing_on_disk_that_could_be_shown() {
    let (_dir, tokens) = open_tokens();
    let token = tokens.mint(&workload_name("ratings-1"), MINUTE, now()).unwrap();
    let entries: Vec<_> = fs::read_dir(&tokens.dir).unwrap().map(Result::unwrap).collect();
    assert_eq!(entries.len(), 1);
    let digits = token.trim_start_matches(TOKEN_PREFIX);
    assert!(!entries[0].file_name().to_str().unwrap().contains(digits));
    assert!(!fs::read_to_string(entries[0].path()).unwrap().contains(digits));
    assert_eq!(entries[0].metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&tokens.dir).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn tokens_differ_and_live_within_bounds() {
    let (_dir, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    let mint = |lifetime| tokens.mint(&ratings, lifetime, now());
    assert_ne!(mint(MINUTE).unwrap(), mint(MINUTE).unwrap());
    assert!(mint(TOKEN_LIFETIME_MAX).is_ok());
    for bad in [Duration::ZERO, TOKEN_LIFETIME_MAX + Duration::from_secs(1)] {
        let error = mint(bad).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn sweeps_what_nobody_will_use_and_nothing_else() {
    let (_dir, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    let made = now();
    tokens.mint(&ratings, MINUTE, made).unwrap();
    let kept = tokens.mint(&ratings, 3 * MINUTE, made).unwrap();
    let draft = tokens.dir.join(".draft-0000000000000000");
    File::create(&draft).unwrap();
    File::create(tokens.dir.join("README")).unwrap();
    // A token file truncated by a failing disk.
    disk::create(&tokens.dir.join("0".repeat(64)), b"bookinfo", FileReaders::Owner).unwrap();
    assert_eq!(tokens.remove_expired(made + 2 * MINUTE).unwrap(), 2, "one token, one draft");
    assert_eq!(fs::read_dir(&tokens.dir).unwrap().count(), 3);
    tokens.redeem(&kept, &ratings, made + 2 * MINUTE).unwrap();
    assert_eq!(tokens.remove_expired(made + 2 * TOKEN_LIFETIME_MAX).unwrap(), 0);
    assert!(!draft.exists());
    assert!(tokens.dir.join("README").exists());
}

#[test]
fn minting_sweeps_from_time_to_time() {
    let (_dir, tokens) = open_tokens();
    let ratings = workload_name("ratings-1");
    let made = now();
    tokens.mint(&ratings, Duration::from_secs(10), made).unwrap();
    tokens.mint(&ratings, MINUTE, made + SWEEP_INTERVAL).unwrap();
    assert_eq!(fs::read_dir(&tokens.dir).unwrap().count(), 1);
}

//! Joins with a token of another issuer, verified by a review.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use leno_control::{ReviewError, ReviewFuture, Reviewer, TokenSubject};
use leno_model::ServiceAccount;

use super::*;
use crate::proxy::join_from;

/// A reviewer that knows the subjects of some tokens.
#[derive(Debug)]
struct KnownTokens(BTreeMap<&'static str, TokenSubject>);

impl Reviewer for KnownTokens {
    fn review_token<'a>(&'a self, token: &'a str) -> ReviewFuture<'a> {
        Box::pin(async move {
            match token {
                "down" => Err(ReviewError::Unavailable("it is down".to_owned())),
                token => {
                    let unknown = || ReviewError::Rejected("nobody knows the token".to_owned());
                    self.0.get(token).cloned().ok_or_else(unknown)
                }
            }
        })
    }
}

fn pod_subject(pod: &str, account: &str) -> TokenSubject {
    let account = ServiceAccount::new("shop", account).unwrap();
    TokenSubject { workload: workload_name(pod), account, uid: None }
}

async fn open_shop(join_timeout: Duration) -> Shop {
    let tokens = [
        ("of-client", pod_subject("client-1", "client")),
        ("of-stock", pod_subject("stock-1", "client")),
        ("of-late", pod_subject("late-1", "client")),
    ];
    Shop::open_with(|config| {
        config.reviewer = Some(Arc::new(KnownTokens(tokens.into())));
        config.times.join_timeout = join_timeout;
    })
    .await
}

async fn join_as(shop: &Shop, token: &str, name: &str) -> Result<Identity, String> {
    let mut bundle = shop.control.mint_bundle(&workload_name("client-1")).unwrap();
    bundle.token = token.to_owned();
    let joined = join_with(&bundle, shop.control.listen_address(), &workload_name(name)).await;
    joined.map_err(|error| error.to_string())
}

#[test]
fn the_token_of_a_pod_is_valid_only_for_its_workload() {
    run(async {
        let shop = open_shop(Duration::ZERO).await;
        for _ in 0..2 {
            let joined = join_as(&shop, "of-client", "client-1").await.unwrap();
            let id = joined.credential.id().to_string();
            assert_eq!(id, "spiffe://cluster.local/ns/shop/sa/client");
            assert_eq!(joined.credential.workload(), Some(&workload_name("client-1")));
        }
        for (token, name, expected) in [
            ("of-client", "stock-1", "issued to pod shop/client-1, not shop/stock-1"),
            ("of-stock", "stock-1", "account shop/client, but workload shop/stock-1 runs as"),
            ("of-late", "late-1", "pod shop/late-1 is not a known workload"),
            ("nonsense", "client-1", "nobody knows the token"),
            ("down", "client-1", "cannot check join tokens at the moment"),
        ] {
            let rejection = join_as(&shop, token, name).await.unwrap_err();
            assert!(rejection.contains(expected), "{token} {name}: {rejection}");
        }
        // Tokens of this mesh remain valid as well.
        shop.join("client-1").await;
    });
}

#[test]
fn a_pod_that_joins_before_it_is_known_waits_for_its_workload() {
    run(async {
        let shop = open_shop(Duration::from_secs(3600)).await;
        let mesh_with_late_pod = MESH.replacen("name: client-1", "name: late-1", 1);
        let pending = join_as(&shop, "of-late", "late-1");
        let change = async {
            // A pending join does not block others.
            join_as(&shop, "of-client", "client-1").await.unwrap();
            shop.write_objects(&mesh_with_late_pod);
        };
        let (joined, ()) = tokio::join!(pending, change);
        assert_eq!(joined.unwrap().credential.workload(), Some(&workload_name("late-1")));
    });
}

#[test]
fn a_revoked_account_cannot_join_with_the_token_of_a_pod() {
    run(async {
        let shop = open_shop(Duration::ZERO).await;
        let account = "revoked: [{kind: ServiceAccount, name: client, namespace: shop}]";
        let config_with_revocation = DEFAULT_DENY.replace("defaultPolicy: deny", account);
        shop.write_objects(&format!("{MESH}{config_with_revocation}"));
        let mut join_result = join_as(&shop, "of-client", "client-1").await;
        while join_result.is_ok() {
            join_result = join_as(&shop, "of-client", "client-1").await;
        }
        let join_result = join_result.unwrap_err();
        assert!(join_result.contains("shop/client is revoked"), "{join_result}");
    });
}

#[test]
fn without_a_reviewer_only_tokens_of_this_mesh_are_valid() {
    run(async {
        let shop = Shop::open().await;
        let rejection = join_as(&shop, "of-client", "client-1").await.unwrap_err();
        assert!(rejection.contains("the join token is unknown"), "{rejection}");
    });
}

/// A reviewer as slow as a busy API server. A token has three parts: a pod of the account `client`, the UID of
/// the pod, and `good` unless the token is forged.
#[derive(Debug, Default)]
struct SlowReviewer {
    reviews: AtomicUsize,
}

impl SlowReviewer {
    fn parse_token(token: &str) -> Option<(TokenSubject, bool)> {
        let mut parts = token.split('|');
        let (pod, uid, secret) = (parts.next()?, parts.next()?, parts.next()?);
        let subject = TokenSubject { uid: uid.parse().ok(), ..pod_subject(pod, "client") };
        Some((subject, secret == "good"))
    }
}

impl Reviewer for SlowReviewer {
    fn claimed_subject(
        &self,
        token: &str,
        _: SystemTime,
    ) -> Result<Option<TokenSubject>, ReviewError> {
        let parsed = Self::parse_token(token).map(|(subject, _)| Some(subject));
        parsed.ok_or_else(|| ReviewError::Rejected("not a token".to_owned()))
    }

    fn review_token<'a>(&'a self, token: &'a str) -> ReviewFuture<'a> {
        self.reviews.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            match Self::parse_token(token) {
                Some((subject, true)) => Ok(subject),
                _ => Err(ReviewError::Rejected("it is forged".to_owned())),
            }
        })
    }
}

#[test]
fn forged_tokens_from_one_source_do_not_block_others_and_cost_few_reviews() {
    run(async {
        let slow_reviewer = Arc::new(SlowReviewer::default());
        let reviewer = Arc::clone(&slow_reviewer);
        let shop = Shop::open_with(|config| {
            config.reviewer = Some(reviewer);
            config.times.join_timeout = Duration::ZERO;
        })
        .await;
        let bundle = |token: String| JoinBundle {
            token,
            ..shop.control.mint_bundle(&workload_name("client-1")).unwrap()
        };
        let (address, name) = (shop.control.listen_address(), workload_name("client-1"));
        let source = Ipv4Addr::new(127, 0, 0, 9);
        let send_forged = async {
            let mut attempts = tokio::task::JoinSet::new();
            for number in 0..FORGED_COUNT {
                let (bundle, name) = (bundle(format!("client-1||{number}")), name.clone());
                attempts.spawn_local(async move {
                    join_from(source, &bundle, address, &name).await.is_err()
                });
            }
            let mut rejected = 0;
            while let Some(is_rejected) = attempts.join_next().await {
                rejected += usize::from(is_rejected.unwrap());
            }
            assert_eq!(rejected, FORGED_COUNT);
        };
        let valid_join = async {
            // While forged tokens wait.
            while slow_reviewer.reviews.load(Ordering::Relaxed) == 0 {
                tokio::task::yield_now().await;
            }
            join_as(&shop, "client-1||good", "client-1").await.unwrap();
        };
        let start = std::time::Instant::now();
        tokio::join!(send_forged, valid_join);
        // The concurrent ones, one per second, and the valid one.
        let max_reviews = 2 * 16 + 2 * usize::try_from(start.elapsed().as_secs()).unwrap() + 2;
        let reviews = slow_reviewer.reviews.load(Ordering::Relaxed);
        assert!(reviews <= max_reviews, "{reviews} reviews of {FORGED_COUNT} forged tokens");
        // A token that was just rejected is not reviewed again, nor is the token of another pod.
        let reviews_before = slow_reviewer.reviews.load(Ordering::Relaxed);
        let other_source = Ipv4Addr::new(127, 0, 0, 7);
        for (token, name) in
            [("client-1||other", "stock-1"), ("nobody-1||x", "nobody-1"), ("", "client-1")]
        {
            let bundle = bundle(token.to_owned());
            let result = join_from(other_source, &bundle, address, &workload_name(name)).await;
            result.unwrap_err();
        }
        assert_eq!(slow_reviewer.reviews.load(Ordering::Relaxed), reviews_before);
        for _ in 0..3 {
            let bundle = bundle("client-1||again".to_owned());
            let rejected =
                join_from(other_source, &bundle, address, &name).await.unwrap_err().to_string();
            assert!(rejected.contains("it is forged"), "{rejected}");
        }
        assert_eq!(slow_reviewer.reviews.load(Ordering::Relaxed), reviews_before + 1);
    });
}

const FORGED_COUNT: usize = 300;

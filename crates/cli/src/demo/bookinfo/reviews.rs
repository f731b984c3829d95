//! The reviews service: reviews of a book, with stars in versions 2 and 3.

use std::collections::BTreeMap;

use clap::ValueEnum;
use hyper::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};

use super::catalogue::Book;
use super::response::{DemoResponse, json_response, not_found, unavailable_response};
use super::upstream::{UpstreamClient, UpstreamError};

/// The versions of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ReviewsVersion {
    /// No stars; calls no other service.
    V1,
    /// Black stars from ratings.
    V2,
    /// Red stars from ratings.
    V3,
}

impl ReviewsVersion {
    /// Returns the color of the stars; `None` for the version without stars.
    pub(super) const fn star_color(self) -> Option<StarColor> {
        match self {
            Self::V1 => None,
            Self::V2 => Some(StarColor::Black),
            Self::V3 => Some(StarColor::Red),
        }
    }
}

/// The color of stars.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StarColor {
    Black,
    Red,
}

/// Serves `/reviews/ID` without stars.
pub(super) fn serve_unrated(version: ReviewsVersion, path: &str) -> DemoResponse {
    match Book::from_path(path, "/reviews/") {
        Some(book) => json_response(StatusCode::OK, &build_reviews(version, book, |_| None)),
        None => not_found(path),
    }
}

/// Serves `/reviews/ID` with the stars from ratings.
pub(super) async fn serve_rated(
    version: ReviewsVersion,
    color: StarColor,
    upstream: &UpstreamClient,
    path: &str,
    headers: &HeaderMap,
) -> DemoResponse {
    let Some(book) = Book::from_path(path, "/reviews/") else {
        return not_found(path);
    };
    match fetch_stars(upstream, book, headers).await {
        Ok(stars) => {
            let rating = |reviewer: &str| {
                let stars = *stars.ratings.get(reviewer)?;
                Some(Rating { stars, color })
            };
            json_response(StatusCode::OK, &build_reviews(version, book, rating))
        }
        Err(error) => unavailable_response(&error),
    }
}

async fn fetch_stars(
    upstream: &UpstreamClient,
    book: &Book,
    headers: &HeaderMap,
) -> Result<RatingsResponse, UpstreamError> {
    let path = format!("/ratings/{}", book.id);
    upstream.get_json("ratings", &path, headers).await
}

fn build_reviews(
    version: ReviewsVersion,
    book: &Book,
    rating: impl Fn(&str) -> Option<Rating>,
) -> ReviewsResponse {
    let to_review = |opinion: &super::catalogue::Opinion| Review {
        reviewer: opinion.reviewer,
        text: opinion.text,
        rating: rating(opinion.reviewer),
    };
    ReviewsResponse { id: book.id, version, reviews: book.opinions.iter().map(to_review).collect() }
}

#[derive(Serialize)]
struct ReviewsResponse {
    id: u32,
    version: ReviewsVersion,
    reviews: Vec<Review>,
}

#[derive(Serialize)]
struct Review {
    reviewer: &'static str,
    text: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rating: Option<Rating>,
}

#[derive(Serialize)]
struct Rating {
    stars: u8,
    color: StarColor,
}

/// The fields of a ratings response that reviews uses: the stars by reviewer.
#[derive(Deserialize)]
struct RatingsResponse {
    ratings: BTreeMap<String, u8>,
}

//! Responses: header fields that any parser can read and that are true, bodies of each format, and what handlers,
//! callers and other limits can learn about a limit.

#[cfg(feature = "axum")]
mod axum_extractor;
#[cfg(feature = "axum")]
mod by_hand;
mod format_vectors;
mod generators;
mod header_parser;
mod headers_property;
mod honours_retry_after;
mod options;
mod paced;
mod reference_limits;
mod reference_service;
mod settle;
mod settled;
mod shadow;
#[path = "../support/mod.rs"]
mod support;
#[cfg(feature = "axum")]
mod switches;

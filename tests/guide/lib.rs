//! The code of the guide, as doc tests. They are here and not in the published crates, because they need more
//! dependencies, and because what proves a block is not in its chapter: `build.rs` puts it around the block.

/// Declares a module for each chapter, whose docs are the chapter as `build.rs` has written it.
macro_rules! chapters {
    ($($chapter:ident $(: $($feature:literal)*)?;)*) => {$(
        #[cfg(all(doctest, $($(feature = $feature),*)?))]
        #[doc = include_str!(concat!(env!("OUT_DIR"), "/", stringify!($chapter), ".md"))]
        pub mod $chapter {}
    )*};
}

// Each chapter, with the features that its code needs.
chapters! {
    concurrency: "axum";
    costs: "axum" "tonic";
    engine;
    floods;
    keys: "axum";
    limits;
    many_machines: "axum";
    migration: "axum";
    ordering: "axum";
    production: "tracing";
    proxy;
    queueing;
    recipes: "axum" "serde" "tonic";
    responses: "axum";
    rollout;
    servers: "axum" "tonic";
    troubleshooting: "axum";
}

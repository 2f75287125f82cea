//! The code of the guide, as doc tests. They are here and not in tower-throttle, because they need more dependencies
//! than its examples.

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../src/guide/concurrency.md")]
pub struct Concurrency;

#[cfg(all(doctest, feature = "axum", feature = "tonic"))]
#[doc = include_str!("../src/guide/costs.md")]
pub struct Costs;

#[cfg(doctest)]
#[doc = include_str!("../src/guide/engine.md")]
pub struct Engine;

#[cfg(doctest)]
#[doc = include_str!("../src/guide/floods.md")]
pub struct Floods;

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../src/guide/keys.md")]
pub struct Keys;

#[cfg(doctest)]
#[doc = include_str!("../src/guide/limits.md")]
pub struct Limits;

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../src/guide/migration.md")]
pub struct Migration;

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../src/guide/ordering.md")]
pub struct Ordering;

#[cfg(all(doctest, feature = "tracing"))]
#[doc = include_str!("../src/guide/production.md")]
pub struct Production;

#[cfg(doctest)]
#[doc = include_str!("../src/guide/promises.md")]
pub struct Promises;

#[cfg(doctest)]
#[doc = include_str!("../src/guide/proxy.md")]
pub struct Proxy;

#[cfg(doctest)]
#[doc = include_str!("../src/guide/queueing.md")]
pub struct Queueing;

#[cfg(all(doctest, feature = "axum", feature = "serde", feature = "tonic"))]
#[doc = include_str!("../src/guide/recipes.md")]
pub struct Recipes;

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../src/guide/responses.md")]
pub struct Responses;

#[cfg(doctest)]
#[doc = include_str!("../src/guide/rollout.md")]
pub struct Rollout;

#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../src/guide/troubleshooting.md")]
pub struct Troubleshooting;

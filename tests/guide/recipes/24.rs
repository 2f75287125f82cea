use std::collections::BTreeSet;
use std::net::SocketAddr;

use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request};
use serde_json::Value;
use tower::ServiceExt;

/// Returns the names of the members of an object.
fn names(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), serde_json::Error> {
    // the block
    let document: Value = serde_json::from_str(&Api::openapi().to_json()?)?;
    let operation = &document["paths"]["/items"]["get"]["responses"];
    assert_eq!(operation["429"]["$ref"], "#/components/responses/TooManyRequests");
    assert_eq!(names(operation), BTreeSet::from(["200", "429"]));
    let response = &document["components"]["responses"]["TooManyRequests"];
    let content = &response["content"]["application/problem+json"]["schema"];
    assert_eq!(content["$ref"], "#/components/schemas/QuotaExceeded");
    let schema = &document["components"]["schemas"]["QuotaExceeded"];
    let request = || {
        let mut request = Request::get("/items").body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711))));
        app.clone().oneshot(request)
    };
    for _ in 0..5 {
        assert_eq!(request().await.unwrap().status(), 200);
    }
    let rejected = request().await.unwrap();
    assert_eq!(rejected.status(), 429);
    assert_eq!(rejected.headers()["content-type"], "application/problem+json");
    for name in names(&response["headers"]) {
        assert!(rejected.headers().contains_key(name), "{name}");
    }
    let body = to_bytes(rejected.into_body(), 1_000).await.unwrap();
    let body: Value = serde_json::from_slice(&body)?;
    assert_eq!(names(&body), names(&schema["properties"]));
    assert_eq!(schema["required"].as_array().unwrap().len(), names(&body).len());
    Ok(())
}

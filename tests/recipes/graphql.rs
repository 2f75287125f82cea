//! Tests of the recipe "GraphQL before the resolvers".

include!(concat!(env!("OUT_DIR"), "/graphql.rs"));

mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use async_graphql::extensions::{NextResolve, ResolveInfo};
    use async_graphql::{SchemaBuilder, ServerResult, Value};
    use axum::body::{Body, to_bytes};
    use axum::http::{Request, StatusCode};
    use serde_json::json;
    use tower::ServiceExt;

    use super::*;

    /// An extension that counts the fields that are resolved.
    #[derive(Clone, Default)]
    struct Resolved(Arc<AtomicUsize>);

    impl ExtensionFactory for Resolved {
        fn create(&self) -> Arc<dyn Extension> {
            Arc::new(self.clone())
        }
    }

    #[async_trait]
    impl Extension for Resolved {
        async fn resolve(
            &self,
            context: &ExtensionContext<'_>,
            info: ResolveInfo<'_>,
            next: NextResolve<'_>,
        ) -> ServerResult<Option<Value>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            next.run(context, info).await
        }
    }

    /// The app with another schema, which has what `with` adds.
    fn app_with(
        with: impl FnOnce(
            SchemaBuilder<Query, EmptyMutation, EmptySubscription>,
        ) -> SchemaBuilder<Query, EmptyMutation, EmptySubscription>,
    ) -> Router {
        let bucket = TokenBucket::new(Quota::per_minute(1_000));
        let points = RateLimiter::new(bucket);
        let schema = Schema::build(Query, EmptyMutation, EmptySubscription).extension(Limit(points.clone()));
        Router::new()
            .route("/graphql", post(graphql))
            .with_state(App { schema: with(schema).finish(), points })
    }

    /// Returns a query that costs `first * (1 + titles)`.
    fn books(first: usize, titles: usize) -> String {
        let titles: String = (0..titles).map(|number| format!("title{number}: title ")).collect();
        format!("{{ books(first: {first}) {{ {titles}}} }}")
    }

    async fn send(app: &Router, query: &str) -> Response {
        let body = Body::from(json!({ "query": query }).to_string());
        let mut request =
            Request::post("/graphql").header("content-type", "application/json").body(body).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711))));
        app.clone().oneshot(request).await.unwrap()
    }

    async fn json_of(response: Response) -> serde_json::Value {
        serde_json::from_slice(&to_bytes(response.into_body(), usize::MAX).await.unwrap()).unwrap()
    }

    /// Sends a query that must pass, and returns its data.
    async fn data(app: &Router, query: &str) -> serde_json::Value {
        let response = send(app, query).await;
        assert_eq!(response.status(), StatusCode::OK, "{query}");
        let mut body = json_of(response).await;
        assert_eq!(body.get("errors"), None, "{query}");
        body["data"].take()
    }

    /// Sends a query that must be denied, and returns its `Retry-After`.
    async fn retry_after(app: &Router, query: &str) -> Option<String> {
        let response = send(app, query).await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "{query}");
        let wait = response.headers().get("retry-after").map(|wait| wait.to_str().unwrap().to_owned());
        assert_eq!(json_of(response).await["violated-policies"], json!(["points"]), "{query}");
        wait
    }

    #[tokio::test(start_paused = true)]
    async fn the_query_above_the_limit_is_denied_with_the_exact_wait() {
        let app = app();
        for _ in 0..4 {
            assert_eq!(data(&app, &books(100, 1)).await["books"].as_array().map(Vec::len), Some(100));
        }
        // 201 points when 200 are left
        assert_eq!(retry_after(&app, &books(67, 2)).await.as_deref(), Some("1"));
        data(&app, &books(100, 1)).await;
        // 500 points when none is left
        assert_eq!(retry_after(&app, &books(100, 4)).await.as_deref(), Some("30"));
        tokio::time::advance(Duration::from_millis(29_999)).await;
        assert_eq!(retry_after(&app, &books(100, 4)).await.as_deref(), Some("1"));
        tokio::time::advance(Duration::from_millis(1)).await;
        data(&app, &books(100, 4)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn no_resolver_of_a_denied_query_runs() {
        let resolved = Resolved::default();
        let app = app_with(|schema| schema.extension(resolved.clone()));
        let response = send(&app, &books(100, 9)).await;
        assert_eq!(response.status(), StatusCode::OK);
        // the list, its books, and their titles
        let of_all = resolved.0.swap(0, Ordering::Relaxed);
        assert_eq!(of_all, 1 + 100 + 900);
        for query in [books(100, 9), books(1, 1), books(100, 11)] {
            assert_eq!(send(&app, &query).await.status(), StatusCode::TOO_MANY_REQUESTS, "{query}");
        }
        assert_eq!(resolved.0.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_invalid_query_costs_nothing() {
        let app = app();
        for query in ["{ magazines }", "{ books(first: 100) }", "{ books {"] {
            let response = send(&app, query).await;
            assert_eq!(response.status(), StatusCode::OK, "{query}");
            assert_ne!(json_of(response).await.get("errors"), None, "{query}");
        }
        data(&app, &books(100, 9)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_query_above_the_burst_has_no_retry_after() {
        let app = app();
        assert_eq!(retry_after(&app, &books(100, 11)).await, None);
        data(&app, &books(100, 9)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_of_the_schema_refuses_a_query_above_the_burst_first() {
        let app = app_with(|schema| schema.limit_complexity(1_000));
        let refused = send(&app, &books(100, 11)).await;
        assert_eq!(refused.status(), StatusCode::OK);
        assert_eq!(json_of(refused).await["errors"][0]["message"], "Query is too complex.");
        data(&app, &books(100, 9)).await;
    }
}

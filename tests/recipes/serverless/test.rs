//! Runs the program of the recipe "Serverless, behind an API gateway" as Lambda does: it asks the runtime API, which is
//! this test, for events, and sends the responses there.

#[path = "../../support/redis_connection.rs"]
mod redis_connection;
#[path = "../../support/redis_server/mod.rs"]
mod redis_server;

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use redis_server::RedisServer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

/// The time limit for a response.
const PATIENCE: Duration = Duration::from_secs(60);

/// An instance of the function. Its process ends with this value.
struct Instance {
    process: Child,
    events: mpsc::UnboundedSender<Value>,
    responses: mpsc::UnboundedReceiver<Value>,
}

/// What the runtime API has of an instance.
#[derive(Clone)]
struct RuntimeApi {
    events: Arc<Mutex<mpsc::UnboundedReceiver<Value>>>,
    responses: mpsc::UnboundedSender<Value>,
}

impl Instance {
    async fn start(redis: &RedisServer) -> Self {
        let (events, to_send) = mpsc::unbounded_channel();
        let (received, responses) = mpsc::unbounded_channel();
        let api = RuntimeApi { events: Arc::new(Mutex::new(to_send)), responses: received };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new()
            .route("/2018-06-01/runtime/invocation/next", get(next))
            .route("/2018-06-01/runtime/invocation/{id}/response", post(response))
            // an error of the program, which no event here may cause
            .route("/2018-06-01/runtime/invocation/{id}/error", post(response))
            .with_state(api);
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let process = Command::new(env!("CARGO_BIN_EXE_serverless"))
            .env_clear()
            .env("AWS_LAMBDA_RUNTIME_API", address.to_string())
            .env("AWS_LAMBDA_FUNCTION_NAME", "shop")
            .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "128")
            .env("AWS_LAMBDA_FUNCTION_VERSION", "1")
            .env("AWS_LAMBDA_HTTP_IGNORE_STAGE_IN_PATH", "true")
            .env("REDIS_URL", redis.url())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self { process, events, responses }
    }

    /// Sends an event, and returns the response.
    async fn call(&mut self, event: Value) -> Value {
        self.events.send(event).unwrap();
        let response = async {
            tokio::select! {
                response = self.responses.recv() => response.unwrap(),
                status = self.process.wait() => panic!("the program has ended: {status:?}"),
            }
        };
        timeout(PATIENCE, response).await.expect("the program responds")
    }
}

async fn next(State(api): State<RuntimeApi>) -> impl IntoResponse {
    let Some(event) = api.events.lock().await.recv().await else {
        return StatusCode::GONE.into_response();
    };
    let fields = [
        ("lambda-runtime-aws-request-id", "8476a536-e9f4-11e8-9739-2dfe598c3fcd"),
        ("lambda-runtime-deadline-ms", "4102444800000"),
        ("lambda-runtime-invoked-function-arn", "arn:aws:lambda:eu-west-1:123456789012:function:shop"),
    ];
    (fields, Json(event)).into_response()
}

// not `Json`: lambda_http names no type of its JSON
async fn response(State(api): State<RuntimeApi>, response: Bytes) -> StatusCode {
    let _ = api.responses.send(serde_json::from_slice(&response).unwrap());
    StatusCode::ACCEPTED
}

/// An event of an "HTTP API".
fn http_api(source: Option<&str>) -> Value {
    json!({
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/",
        "rawQueryString": "",
        "headers": headers(),
        "requestContext": {
            "stage": "$default",
            "http": { "method": "GET", "path": "/", "protocol": "HTTP/1.1", "sourceIp": source },
        },
        "isBase64Encoded": false,
    })
}

/// An event of a "REST API", which always has a stage.
fn rest_api(source: Option<&str>) -> Value {
    json!({
        "resource": "/",
        "path": "/",
        "httpMethod": "GET",
        "headers": headers(),
        "requestContext": { "stage": "prod", "httpMethod": "GET", "identity": { "sourceIp": source } },
        "isBase64Encoded": false,
    })
}

/// The header fields of an event. The first address is what the caller has written, another one each time.
fn headers() -> Value {
    static NUMBER: AtomicU8 = AtomicU8::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    json!({ "host": "shop.example", "x-forwarded-for": format!("198.51.100.{number}, 203.0.113.9") })
}

#[tokio::test]
async fn the_fourth_event_of_an_address_is_answered_with_429() {
    let redis = RedisServer::start();
    let mut instance = Instance::start(&redis).await;
    for _ in 0..3 {
        let response = instance.call(http_api(Some("192.0.2.1"))).await;
        assert_eq!((&response["statusCode"], &response["body"]), (&json!(200), &json!("hello")));
    }
    let rejected = instance.call(http_api(Some("192.0.2.1"))).await;
    assert_eq!(rejected["statusCode"], 429, "{rejected}");
    let fields = &rejected["headers"];
    let wait: u64 = fields["retry-after"].as_str().unwrap().parse().unwrap();
    assert!((1..=20).contains(&wait), "{rejected}");
    assert_eq!(fields["ratelimit-policy"], r#""api";q=3;w=60"#);
    assert_eq!(fields["ratelimit"], format!(r#""api";r=0;t={wait}"#));
    let other = instance.call(http_api(Some("192.0.2.2"))).await;
    assert_eq!(other["statusCode"], 200, "{other}");
}

#[tokio::test]
async fn instances_and_kinds_of_gateways_share_the_limit() {
    let redis = RedisServer::start();
    let mut first = Instance::start(&redis).await;
    let mut second = Instance::start(&redis).await;
    let source = Some("192.0.2.1");
    let responses = [
        first.call(http_api(source)).await,
        second.call(http_api(source)).await,
        second.call(rest_api(source)).await,
    ];
    for response in &responses {
        assert_eq!(response["statusCode"], 200, "{response}");
    }
    let rejected = first.call(rest_api(source)).await;
    assert_eq!(rejected["statusCode"], 429, "{rejected}");
    for field in ["retry-after", "ratelimit", "ratelimit-policy"] {
        assert_eq!(rejected["multiValueHeaders"][field].as_array().map(Vec::len), Some(1), "{rejected}");
    }
    let other = first.call(rest_api(Some("192.0.2.2"))).await;
    assert_eq!(other["statusCode"], 200, "{other}");
}

#[tokio::test]
async fn an_event_without_an_address_is_answered_with_500() {
    let redis = RedisServer::start();
    let mut instance = Instance::start(&redis).await;
    for event in [http_api(None), rest_api(None)] {
        let response = instance.call(event).await;
        assert_eq!(response["statusCode"], 500, "{response}");
    }
}

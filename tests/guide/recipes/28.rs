use axum::body::Body;
use axum::extract::Request;
use http_body_util::BodyExt;
use tower::ServiceExt;

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result<(), http::header::InvalidHeaderName> {
    // the block
    let open = || {
        let request = Request::get("/prices").header("x-user", "ann").body(Body::empty()).unwrap();
        app.clone().oneshot(request)
    };
    let text = async |response: &mut Response| {
        let frame = response.body_mut().frame().await?.unwrap();
        Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
    };
    let (mut first, second) = (open().await.unwrap(), open().await.unwrap());
    let mut third = open().await.unwrap();
    assert_eq!([first.status(), second.status(), third.status()], [StatusCode::OK; 3]);
    let retry = text(&mut third).await.unwrap();
    let retry: u64 = retry.strip_prefix("retry: ").unwrap().trim_end().parse().unwrap();
    assert!((5_000..=10_000).contains(&retry), "{retry}");
    let seconds: u64 = third.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert_eq!(seconds, retry.div_ceil(1_000));
    assert!(text(&mut third).await.is_none());
    // prices between two events are skipped
    let begin = tokio::time::Instant::now();
    price.send(101).unwrap();
    assert_eq!(text(&mut first).await.unwrap(), "data: 101\n\n");
    price.send(102).unwrap();
    price.send(103).unwrap();
    assert_eq!(text(&mut first).await.unwrap(), "data: 103\n\n");
    assert_eq!(begin.elapsed().as_millis() / 10, 50);
    // after a silence, two prices are as far apart as ever
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    price.send(104).unwrap();
    assert_eq!(text(&mut first).await.unwrap(), "data: 104\n\n");
    let begin = tokio::time::Instant::now();
    price.send(105).unwrap();
    assert_eq!(text(&mut first).await.unwrap(), "data: 105\n\n");
    assert_eq!(begin.elapsed().as_millis() / 10, 50);
    // a stream whose client is gone
    drop(second);
    price.send(106).unwrap();
    let mut again = open().await.unwrap();
    assert!(text(&mut again).await.unwrap().starts_with("data: "));
    Ok(())
}

//! Many clients at once, some of which hang up, and the tokens that are charged for them.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use tokio::task::JoinSet;
use tower_throttle::Quota;

use super::*;
use crate::model::model;

/// A smaller burst than that of the gateway, so that all users reach it within seconds.
const BURST: u64 = 5_000;
const QUOTA: Quota = Quota::per_minute(100_000).burst(BURST);

/// Words of an event, and the pause before each event.
const PACE: (u64, Duration) = (40, Duration::from_millis(20));

/// A call that was admitted.
struct Stream {
    number: String,
    user: usize,
    estimate: u64,
    hung_up: bool,
    /// The tokens of the answer if it has come to its end.
    asked: u64,
    sent: Instant,
    /// The time at which the client has got the head of the response, which is after the admission.
    admitted: Instant,
    ended: Instant,
}

#[derive(Default)]
struct Seen {
    streams: Vec<Stream>,
    denied_tokens: usize,
    denied_streams: usize,
}

/// Sends prompts until the deadline. `hangs_up` clients read a part of each answer only.
async fn one_client(id: usize, user: usize, hangs_up: bool, gateway: SocketAddr, deadline: Instant) -> Seen {
    let (client, mut seen, key) = (client(), Seen::default(), format!("key-{user}"));
    for round in 0.. {
        if Instant::now() >= deadline {
            break;
        }
        let (number, asked) = (format!("{id}-{round}"), fastrand::u64(100..3_000));
        let prompt = format!("a story of {asked} words");
        let mut headers = vec![("x-api-key", &*key), ("x-call", &*number)];
        // Half of the calls tell their maximum. Most of the others cost more than the usual answer.
        let tells_maximum = fastrand::bool();
        if tells_maximum {
            headers.push(("x-max-tokens", "1000"));
        }
        let estimate = prompt.len().div_ceil(4) as u64 + if tells_maximum { 1_000 } else { USUAL_ANSWER };
        let sent = Instant::now();
        let mut response = ask(&client, gateway, &headers, prompt).await;
        let admitted = Instant::now();
        if response.status() == StatusCode::TOO_MANY_REQUESTS {
            assert!(retry_after(&response) >= 1);
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let is_tokens = String::from_utf8_lossy(&body).contains("[\"tokens\"");
            *if is_tokens { &mut seen.denied_tokens } else { &mut seen.denied_streams } += 1;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(50..150))).await;
            continue;
        }
        assert_eq!(response.status(), StatusCode::OK);
        let mut pieces = if hangs_up { fastrand::u64(0..asked / PACE.0) } else { u64::MAX };
        while pieces > 0
            && let Some(frame) = response.frame().await
        {
            frame.unwrap();
            pieces -= 1;
        }
        drop(response);
        let asked = if tells_maximum { asked.min(1_000) } else { asked };
        let ended = Instant::now();
        seen.streams.push(Stream { number, user, estimate, hung_up: hangs_up, asked, sent, admitted, ended });
    }
    seen
}

/// Lets clients call for a while, `per_user` for each user, and every third hangs up. Verifies what they were charged.
async fn load(clients: usize, per_user: usize, duration: Duration) {
    let tokens = RateLimiter::new(TokenBucket::new(QUOTA));
    let meters = Meters::default();
    let model = Server::start(model(PACE.0, PACE.1)).await;
    let gateway = Server::start(meters.around(gateway(model.address, tokens.clone()))).await;
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for id in 0..clients {
        let user = id / per_user;
        tasks.spawn(one_client(id, user, id % 3 == 0, gateway.address, begin + duration));
    }
    let seen = tasks.join_all().await;
    let took = begin.elapsed();
    // All calls are settled when the gateway has no connections any more.
    gateway.stop().await;
    let (denied_tokens, denied_streams) =
        seen.iter().fold((0, 0), |sum, seen| (sum.0 + seen.denied_tokens, sum.1 + seen.denied_streams));
    let streams: Vec<Stream> = seen.into_iter().flat_map(|seen| seen.streams).collect();

    // The sums of the meters are the sums that were charged.
    let units = |stream: &Stream| meters.units(&stream.number);
    let metered: u64 = streams.iter().map(units).sum();
    let estimated: u64 = streams.iter().map(|stream| stream.estimate).sum();
    let stats = tokens.stats().units;
    assert_eq!(estimated + stats.charged - stats.refunded, metered, "{stats:?}");
    assert_eq!(stats.uncharged, 0);
    for stream in &streams {
        let whole = "a story of 100 words".len().div_ceil(4) as u64 + stream.asked;
        match stream.hung_up {
            // The prompt may be one byte longer.
            false => assert!(units(stream).abs_diff(whole) <= 1, "{}", stream.number),
            true => assert!((5..=whole + 1).contains(&units(stream)), "{}", stream.number),
        }
    }

    // The promise, for each span that begins with one call and ends with the admission of another.
    let mut worst = (0.0, String::new());
    for user in 0..clients.div_ceil(per_user) {
        let of_user: Vec<&Stream> = streams.iter().filter(|stream| stream.user == user).collect();
        for (first, last) in of_user.iter().flat_map(|first| of_user.iter().map(move |last| (first, last))) {
            // A client knows when it has asked and when it was answered, and its call was admitted in between.
            if first.sent > last.sent {
                continue;
            }
            let within = of_user.iter().filter(|stream| {
                stream.sent >= first.sent && (stream.admitted <= last.sent || stream.number == last.number)
            });
            let in_progress =
                of_user.iter().filter(|stream| stream.ended >= last.sent && stream.sent <= last.admitted);
            let used: u64 = within.map(|stream| units(stream)).sum();
            let error: u64 = in_progress.map(|stream| units(stream).saturating_sub(stream.estimate)).sum();
            let span = last.admitted - first.sent;
            let refilled = span.as_nanos() * u128::from(QUOTA.limit()) / 60_000_000_000;
            let bound = BURST + u64::try_from(refilled).unwrap() + 1 + error;
            assert!(used <= bound, "user {user} has used {used} tokens within {span:?}, and not {bound}");
            let share = used as f64 / bound as f64;
            if share > worst.0 {
                let text = format!(
                    "user {user}: {used} of {bound} tokens within {span:.1?}, {error} of them in progress"
                );
                worst = (share, text);
            }
        }
    }
    let hung_up = streams.iter().filter(|stream| stream.hung_up).count();
    println!(
        "{clients} clients, {took:.1?}: {} streams ({hung_up} hung up), {metered} tokens; \
         estimates {estimated}, charged later {}, refunded {}; denied {denied_tokens} for tokens, \
         {denied_streams} for streams; the highest share of the bound is {:.3}, by {}",
        streams.len(),
        stats.charged,
        stats.refunded,
        worst.0,
        worst.1,
    );
}

#[tokio::test]
async fn users_stay_within_the_promise() {
    load(20, 5, Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes ten seconds"]
async fn users_stay_within_the_promise_under_load() {
    load(200, 5, Duration::from_secs(8)).await;
}

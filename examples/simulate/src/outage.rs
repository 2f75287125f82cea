//! The picture of an outage in the guide: what ten machines admit while Redis is down, by each choice that there is.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::{Router, routing::get};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tower::ServiceExt;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::key::Global;
use tower_throttle::middleware::OnStoreError;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};
use tower_throttle_redis::RedisInProcess;

use crate::scenario::{Fault, STOP, Scenario, Spread};
use crate::sheet::{Sheet, Side, with_pictures};
use crate::strategy::ROUND_TRIP;

const MACHINES: usize = 10;
const LIMIT: u64 = 100;

/// What happens to the calls that Redis does not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Reject,
    Allow,
    Fallback,
}

const CHOICES: [(Choice, &str, &str); 3] = [
    (Choice::Reject, "reject", "the default: the response is 503"),
    (Choice::Allow, "admit", "OnStoreError::Allow: no limit"),
    (Choice::Fallback, "decide locally", "fallback: each machine\u{2019}s share"),
];

/// The folder of the repository, the picture, and the links of the guide for rustdoc, which contain the picture.
const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const PICTURE: &str = "examples/simulate/pictures/outage.svg";
const LINKS: &str = "redis/src/guide/rustdoc_links.md";

/// Writes the picture to where the guide has it.
pub(crate) fn write() -> Result<(), Box<dyn Error>> {
    for (file, text) in files()? {
        std::fs::write(Path::new(REPOSITORY).join(file), text)?;
        println!("{file}");
    }
    Ok(())
}

/// Returns the files that contain the picture: their paths in the repository, and their texts.
fn files() -> Result<[(&'static str, String); 2], Box<dyn Error>> {
    let picture = draw();
    let links = std::fs::read_to_string(Path::new(REPOSITORY).join(LINKS))?;
    Ok([(LINKS, with_pictures(&links, &[("picture of an outage", &picture)])), (PICTURE, picture)])
}

fn scenario() -> Scenario {
    Scenario {
        quota: Quota::per_second(LIMIT).burst(20),
        machines: MACHINES,
        time: Duration::from_secs(20),
        load: 150,
        spread: Spread::Even,
        fault: Fault::CenterStops,
        seed: 1,
    }
}

/// Returns the number of calls that all machines admit, in each second.
pub(crate) fn admitted(choice: Choice) -> Vec<i32> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("the system has a timer");
    runtime.block_on(run(choice, &scenario()))
}

async fn run(choice: Choice, scenario: &Scenario) -> Vec<i32> {
    let redis = RedisInProcess::new(ROUND_TRIP);
    let apps: Vec<_> =
        (0..scenario.machines).map(|_| app(choice, scenario.quota, &redis.machine())).collect();
    let start = Instant::now();
    let mut calls = JoinSet::new();
    for call in scenario.calls() {
        let app = apps[call.machine].clone();
        calls.spawn(async move {
            sleep_until(start + call.at).await;
            let response =
                app.oneshot(Request::new(Body::empty())).await.expect("a limit fails by a response");
            (start.elapsed(), response.status().is_success())
        });
    }
    if let Some(at) = scenario.center_stops_at() {
        sleep_until(start + at).await;
        redis.set_running(false);
        sleep(STOP).await;
        redis.set_running(true);
    }
    let mut admitted = vec![0; scenario.time.as_secs() as usize];
    for (at, _) in calls.join_all().await.into_iter().filter(|(_, is_admitted)| *is_admitted) {
        if let Some(count) = admitted.get_mut(at.as_secs() as usize) {
            *count += 1;
        }
    }
    admitted
}

/// Returns the app of a machine.
fn app(choice: Choice, quota: Quota, machine: &RedisInProcess) -> Router {
    let mut limiter = machine.connect().limiter("all", TokenBucket::new(quota));
    if choice == Choice::Fallback {
        let machines = MACHINES as u64;
        let share = Quota::per_second(quota.limit() / machines).burst(quota.capacity() / machines);
        limiter = limiter.fallback(RateLimiter::new(TokenBucket::new(share)));
    }
    let limiter = limiter.build().expect("the settings are right");
    let mut layer = RateLimitLayer::with_limiter(Global, limiter);
    if choice == Choice::Allow {
        layer = layer.on_store_error(OnStoreError::Allow);
    }
    Router::new().route("/", get(|| async {})).layer(layer)
}

/// The left edge of the bars, and the distance between two of them.
const LEFT: i32 = 40;
const SECOND: i32 = 23;

fn draw() -> String {
    const TOP: i32 = 66;
    const ROW: i32 = 142;
    let scenario = scenario();
    let stop = scenario.center_stops_at().map_or(0, |at| at.as_secs() as i32);
    let (from, down) = (LEFT + SECOND * stop, SECOND * STOP.as_secs() as i32);
    let right = LEFT + SECOND * scenario.time.as_secs() as i32;
    let mut sheet = Sheet::new("Redis is down for five seconds: three choices");
    sheet.text((8, 46), Side::Left, "Calls admitted in each second. 150 arrive, the limit is 100 (dashed).");
    let mut means = Vec::new();
    for (n, (choice, name, what)) in CHOICES.into_iter().enumerate() {
        let top = TOP + ROW * n as i32;
        let bottom = top + 120;
        sheet.sentence((LEFT, top + 14), name, &format!("({what})"), ("ink", ""));
        sheet.fill((from, top + 24), (down, bottom - top - 24), "grid");
        let admitted = admitted(choice);
        let bars = |least: i32, most: i32| -> Vec<(i32, i32)> {
            let seconds = (0..).zip(&admitted).filter(|(_, count)| **count > least);
            seconds
                .map(|(n, count)| (LEFT + SECOND * n + SECOND / 2, height(bottom, (*count).min(most))))
                .collect()
        };
        let limit = LIMIT as i32;
        sheet.bars(&bars(0, limit), bottom, SECOND - 4, "blue");
        sheet.bars(&bars(limit, i32::MAX), height(bottom, limit), SECOND - 4, "orange");
        sheet.line(&[(LEFT, bottom), (right, bottom)], "ink", 1);
        sheet.dashed((LEFT, height(bottom, limit)), (right, height(bottom, limit)));
        for number in [0, 50, 100, 150] {
            sheet.text((LEFT - 6, height(bottom, number) + 5), Side::Right, &number.to_string());
        }
        sheet.text((from + down / 2, top + 36), Side::Middle, "Redis is down");
        let down = &admitted[stop as usize + 1..(stop as usize + STOP.as_secs() as usize)];
        let mean = down.iter().sum::<i32>() / down.len() as i32;
        means.push(mean.to_string());
    }
    let bottom = TOP + ROW * CHOICES.len() as i32 - 22;
    for second in (0..=scenario.time.as_secs() as i32).step_by(5) {
        sheet.text((LEFT + SECOND * second, bottom + 18), Side::Middle, &format!("{second} s"));
    }
    let label = format!(
        "Ten machines share a limit of 100 calls per second, and 150 arrive. While Redis is down, they admit {} per \
         second by rejecting, admitting and deciding locally.",
        means.join(", ")
    );
    sheet.finish(bottom + 28, &label)
}

fn height(bottom: i32, count: i32) -> i32 {
    bottom - count / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_shows_what_the_limiters_do() {
        for (file, text) in files().unwrap() {
            let kept = std::fs::read_to_string(Path::new(REPOSITORY).join(file)).unwrap_or_default();
            // The files are compared line by line, because a checkout may have other line endings.
            assert!(kept.lines().eq(text.lines()), "{file} is outdated: cargo run -p simulate picture");
        }
    }

    #[test]
    fn the_guide_says_what_the_picture_shows() {
        let chapter = include_str!("../../../redis/src/guide/many_machines.md");
        let chapter = chapter.split_whitespace().collect::<Vec<_>>().join(" ");
        let picture = draw();
        let label = picture.split("aria-label='").nth(1).unwrap().split('\'').next().unwrap();
        assert!(chapter.contains(&format!("![{label}]")), "{label}");
    }
}

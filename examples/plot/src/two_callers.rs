//! The picture of two callers of one app: one that asks once a second, and one that asks five times a second.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response, StatusCode, header};
use axum::{Router, routing::get};
use tower::ServiceExt;
use tower_throttle::algorithm::TokenBucket;
use tower_throttle::clock::ManualClock;
use tower_throttle::key::PeerIp;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};

use crate::sheet::{Mark, Sheet, Side, WIDTH};

const QUOTA: Quota = Quota::per_minute(100).burst(20);
const SECONDS: u64 = 60;

/// The answer to one request, as its caller reads it.
#[derive(Debug)]
struct Answer {
    /// The time of the request, in milliseconds.
    at: u64,
    is_rejected: bool,
    /// The tokens that are left, by the field `ratelimit`.
    left: i32,
    retry_after: Option<u64>,
}

/// Two addresses, and what each of them is answered.
#[derive(Debug)]
pub(crate) struct TwoCallers {
    polite: Vec<Answer>,
    greedy: Vec<Answer>,
}

impl TwoCallers {
    /// Sends the requests of a minute to an app.
    pub(crate) fn run() -> Result<Self, Box<dyn Error>> {
        let clock = ManualClock::new();
        let limiter = RateLimiter::builder(TokenBucket::new(QUOTA)).clock(clock.clone()).build();
        let layer = RateLimitLayer::with_limiter(PeerIp::new(), limiter);
        let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let mut callers = Self { polite: Vec::new(), greedy: Vec::new() };
        for at in (0..1_000 * SECONDS).step_by(200) {
            clock.set(Duration::from_millis(at));
            let ask = |address: [u8; 4]| runtime.block_on(ask(&app, at, address));
            if at % 1_000 == 0 {
                callers.polite.push(ask([192, 0, 2, 1])?);
            }
            callers.greedy.push(ask([192, 0, 2, 7])?);
        }
        Ok(callers)
    }

    /// Returns the sentence that says what the picture shows.
    fn label(&self) -> String {
        format!(
            "Of two callers under one limit, the one that asks once a second gets 200 each time. Of the {} answers to \
             the one that asks five times a second, {} are 200 and {} are 429.",
            self.greedy.len(),
            admitted(&self.greedy),
            self.greedy.len() - admitted(&self.greedy)
        )
    }

    pub(crate) fn draw(&self) -> String {
        let mut sheet = Sheet::new("Two callers, one limit");
        sheet.text((8, 46), Side::Left, "100 requests per minute for each address, at most 20 at once");

        let (passed, all) = (admitted(&self.polite), self.polite.len());
        sheet.sentence((8, 78), "Asks once a second:", &format!("{passed} of {all} get 200"), ("blue", ""));
        requests(&mut sheet, &self.polite, 93);

        let (passed, all) = (admitted(&self.greedy), self.greedy.len());
        let rejected = format!("{} get 429", all - passed);
        let text = format!("{passed} of {all} get 200,");
        sheet.sentence((8, 128), "Asks five times a second:", &text, ("orange", &rejected));
        requests(&mut sheet, &self.greedy, 143);

        sheet.bold((8, 212), Side::Left, "ink", "Requests left, as each response says");
        let (top, bottom) = (222, 302);
        for number in [0, 10, 20] {
            let y = bottom - 4 * number;
            sheet.line(&[(LEFT, y), (WIDTH - 8, y)], "grid", 1);
            sheet.text((LEFT - 6, y + 5), Side::Right, &number.to_string());
        }
        left(&mut sheet, &self.polite, bottom, "blue");
        left(&mut sheet, &self.greedy, bottom, "orange");
        sheet.text((WIDTH - 12, top + 22), Side::Right, "once a second");
        let wait = self.greedy.iter().find_map(|answer| answer.retry_after).unwrap_or_default();
        let greedy = format!("five times a second: 429 with retry-after: {wait}");
        sheet.text((WIDTH - 12, bottom - 14), Side::Right, &greedy);
        for second in (0..=60).step_by(20) {
            let side = if second == 60 { Side::Right } else { Side::Middle };
            let x = if second == 60 { WIDTH - 8 } else { column(1_000 * second) };
            sheet.text((x, bottom + 20), side, &format!("{second} s"));
        }
        sheet.finish(bottom + 32, &self.label())
    }
}

async fn ask(app: &Router, at: u64, address: [u8; 4]) -> Result<Answer, Box<dyn Error>> {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address, 50_000))));
    let response = app.clone().oneshot(request).await?;
    let is_rejected = match response.status() {
        StatusCode::OK => false,
        StatusCode::TOO_MANY_REQUESTS => true,
        status => return Err(format!("an answer with status {status}").into()),
    };
    let left = field(&response, "ratelimit")
        .and_then(|field| field.split(";r=").nth(1)?.split(';').next()?.parse().ok());
    let retry_after = field(&response, header::RETRY_AFTER.as_str()).and_then(|field| field.parse().ok());
    Ok(Answer {
        at,
        is_rejected,
        left: left.ok_or("an answer without a number of requests left")?,
        retry_after,
    })
}

fn field<'r>(response: &'r Response<Body>, name: &str) -> Option<&'r str> {
    response.headers().get(name)?.to_str().ok()
}

fn admitted(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| !answer.is_rejected).count()
}

/// Where the columns begin, one for each second.
const LEFT: i32 = 32;
const COLUMN: i32 = 8;

fn column(at: u64) -> i32 {
    LEFT + i32::try_from(at).unwrap_or(i32::MAX) * COLUMN / 1_000
}

/// Draws a column of marks for each second, from its first request at the top.
fn requests(sheet: &mut Sheet, answers: &[Answer], top: i32) {
    let point = |answer: &&Answer| {
        let row = i32::try_from(answer.at % 1_000 / 200).unwrap_or(i32::MAX);
        (column(answer.at / 1_000 * 1_000) + COLUMN / 2, top + 10 * row)
    };
    let of = |is_rejected: bool| -> Vec<_> {
        answers
            .iter()
            .filter(|answer| answer.is_rejected == is_rejected)
            .map(|answer| point(&answer))
            .collect()
    };
    sheet.marks(Mark::Dot, &of(false), 3, "blue");
    sheet.marks(Mark::Cross, &of(true), 2, "orange");
}

/// Draws the number of requests that a caller has left, after each request.
fn left(sheet: &mut Sheet, answers: &[Answer], bottom: i32, color: &str) {
    let mut points: Vec<(i32, i32)> = Vec::new();
    for answer in answers {
        let new = (column(answer.at), bottom - 4 * answer.left);
        // A straight line needs no points between its ends.
        if let [.., a, b] = points[..]
            && [a.1, b.1] == [new.1; 2]
        {
            points.pop();
        }
        points.push(new);
    }
    sheet.line(&points, color, 2);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_picture_says_is_what_the_app_answers() {
        let callers = TwoCallers::run().unwrap();
        assert_eq!((admitted(&callers.polite), callers.polite.len()), (60, 60));
        assert_eq!((admitted(&callers.greedy), callers.greedy.len()), (119, 300));
        let waits: Vec<_> = callers.greedy.iter().filter_map(|answer| answer.retry_after).collect();
        assert_eq!(waits, vec![1; 181]);
    }
}

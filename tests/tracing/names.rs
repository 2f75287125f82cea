//! The names of events and their fields are promised: those of the guide are those that are logged. The crate
//! `tower-throttle-redis` tests its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower::{Layer as _, ServiceExt, service_fn};
use tower_throttle::algorithm::{Concurrency, FixedWindow, LeakyBucket, TokenBucket};
use tower_throttle::key::{Bearer, ClientIp, Global, Header, Networks, PeerIp, TrustedProxies};
use tower_throttle::middleware::Shadow;
use tower_throttle::{Quota, RateLimitLayer, RateLimiter};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::support::OwnLimiter;
use crate::{Http, get, hello};

const REDIS: [&str; 6] = [
    "messages_refused",
    "not_replaced",
    "redis_failed",
    "redis_prefix",
    "redis_recovered",
    "settlement_failed",
];

/// The level and the fields of each event.
type Table = BTreeMap<String, (String, BTreeSet<String>)>;

/// Returns the table of the guide.
fn promised() -> Table {
    let guide = include_str!("../../src/guide/production.md");
    let (_, rows) = guide.split_once("| `event` | level | fields |").unwrap();
    let rows = rows.lines().skip(2).take_while(|line| line.starts_with('|'));
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let [name] = &names(cells[1])[..] else { panic!("{row}") };
        (name.clone(), (cells[2].to_owned(), names(cells[3]).into_iter().collect()))
    })
    .collect()
}

/// A recorder of the level and the fields of each event.
#[derive(Clone, Default)]
struct Recorded(Arc<Mutex<Table>>);

#[derive(Default)]
struct Fields {
    names: BTreeSet<String>,
    event: String,
    text: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            "event" => self.event = format!("{value:?}").replace('"', ""),
            "message" => self.text = format!("{value:?}"),
            name => _ = self.names.insert(name.to_owned()),
        }
    }
}

impl<S: tracing::Subscriber> Layer<S> for Recorded {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        if metadata.module_path().is_some_and(|path| path.starts_with("tower_throttle")) {
            assert_eq!(metadata.target(), "tower_throttle", "{metadata:?}");
            let level = metadata.level().to_string().to_lowercase();
            let mut table = self.0.lock().unwrap();
            let row = table.entry(fields.event).or_insert((level.clone(), BTreeSet::new()));
            assert_eq!(row.0, level, "{metadata:?}");
            row.1.extend(fields.names);
            // A mistake has a code, which `.ci/codes` compares with the guide.
            let is_mistake = ["warn", "error"].contains(&level.as_str());
            let start = if is_mistake { "tower-throttle[T" } else { "tower-throttle: " };
            assert!(fields.text.starts_with(start), "{}", fields.text);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_events_are_those_of_the_guide() {
    let recorded = Recorded::default();
    let _guard = tracing_subscriber::registry().with(recorded.clone()).set_default();
    let bucket = || TokenBucket::new(Quota::per_hour(1));
    macro_rules! ask {
        ($layer:expr, $request:expr) => {
            _ = $layer.layer(service_fn(hello)).oneshot($request).await.unwrap()
        };
    }
    let from = |peer: [u8; 4]| {
        let mut request = get();
        request.extensions_mut().insert(IpAddr::from(peer));
        request.headers_mut().insert("x-forwarded-for", "192.0.2.1".parse().unwrap());
        request
    };

    let by_peer = RateLimitLayer::new(PeerIp::new(), bucket());
    ask!(by_peer, get());
    for _ in 0..2 {
        ask!(by_peer, from([10, 0, 0, 1]));
    }
    let hops = RateLimitLayer::new(ClientIp::x_forwarded_for(TrustedProxies::hops(2).unwrap()), bucket());
    ask!(hops, from([10, 0, 0, 1]));
    let mut twice = get();
    for _ in 0..2 {
        twice.headers_mut().append("x-api-key", "a".parse().unwrap());
    }
    ask!(RateLimitLayer::new(Header::new("x-api-key").unwrap(), bucket()), twice);
    ask!(RateLimitLayer::new(Global, bucket()).cost(|_: &Http| 2), get());

    let down = OwnLimiter::new(bucket());
    let over_store = RateLimitLayer::with_limiter(Global, down.clone());
    for is_down in [true, false] {
        down.set_down(is_down);
        ask!(over_store, get());
    }
    let closed = RateLimitLayer::new(Global, bucket());
    closed.limiter().close();
    ask!(closed, get());

    let full = RateLimiter::builder(bucket()).max_keys(1).name("full").build();
    (0..2).for_each(|key| _ = full.check(&key));
    let named = RateLimiter::builder(bucket()).name("no priority").build();
    ask!(RateLimitLayer::with_limiter(Global, named).priority(|_: &Http| true), get());
    let _ = RateLimiter::builder(FixedWindow::new(Quota::per_hour(1).burst(2))).name("window").build();
    let _ = RateLimiter::builder(Concurrency::per_key(1).total(2).queue(1)).name("total").build();
    let slow = LeakyBucket::new(Quota::per_minute(2));
    let _ = RateLimitLayer::with_limiter(Global, RateLimiter::builder(slow).name("slow").build());
    let direct = RateLimiter::builder(LeakyBucket::new(Quota::per_second(1)).queue(1)).name("direct").build();
    let calls: Vec<_> = (0..3).map(|_| tokio::spawn(direct.acquire("user"))).collect();
    for call in calls {
        let _ = call.await.unwrap();
    }
    ask!(RateLimitLayer::new(Bearer::new().required(), bucket()), get());
    #[cfg(feature = "metrics")]
    {
        let twins = [0, 1].map(|_| RateLimiter::builder(bucket()).name("names of limiters").build());
        twins.iter().for_each(RateLimiter::record_metrics);
        RateLimiter::new(bucket()).record_metrics();
        let [first, second] = [0, 1].map(|_| RateLimitLayer::new(Global, bucket()).name("names of events"));
        first.record_metrics();
        second.record_metrics();
    }

    let queued =
        RateLimitLayer::new(Global, LeakyBucket::new(Quota::per_second(1)).max_wait(Duration::from_secs(5)));
    let shadow = RateLimitLayer::new(Global, bucket()).shadow(&Shadow::on());
    let denied = Networks::new(["10.0.0.0/8"]).unwrap();
    ask!(
        RateLimitLayer::new(PeerIp::new().deny(denied), bucket()).shadow(&Shadow::on()),
        from([10, 0, 0, 1])
    );
    for _ in 0..2 {
        ask!(queued, get());
        ask!(shadow, get());
    }

    let mut promised = promised();
    for event in REDIS {
        assert!(promised.remove(event).is_some(), "{event} is in the guide");
    }
    if cfg!(not(feature = "metrics")) {
        promised.remove("same_name");
        promised.remove("no_name");
    }
    assert_eq!(*recorded.0.lock().unwrap(), promised);
}

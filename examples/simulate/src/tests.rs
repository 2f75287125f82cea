use std::time::Duration;

use tower_throttle::Quota;
use tower_throttle_redis::RedisStore;

#[path = "../../../tests/support/redis_connection.rs"]
mod redis_connection;
#[path = "../../../tests/support/redis_server/mod.rs"]
mod redis_server;

use super::outcomes;
use super::run::run;
use super::scenario::{Fault, Scenario, Spread};
use super::strategy::{Kind, Machines};
use redis_server::RedisServer;

fn small() -> Scenario {
    Scenario {
        quota: Quota::per_second(100),
        machines: 20,
        time: Duration::from_secs(12),
        load: 150,
        spread: Spread::Even,
        fault: Fault::None,
        seed: 7,
    }
}

/// The text above the picture says which of the scenarios it shows.
#[test]
fn the_caption_of_the_picture_is_its_scenario() {
    let (pictured, guide) = (super::pictured(), include_str!("../../../redis/src/guide/mod.rs"));
    let words = format!(
        "{} machines share a limit of {} calls per second, at an even load of {} %",
        pictured.machines,
        pictured.quota.limit(),
        pictured.load
    );
    assert!(guide.contains(&words), "{words}");
    assert!(matches!((pictured.fault, pictured.spread), (Fault::CenterStops, Spread::Even)));
    assert_eq!(super::scenario::STOP, Duration::from_secs(5));
    assert!(guide.contains("Redis stops for five seconds"));
}

#[test]
fn the_same_seed_has_the_same_outcome() {
    for fault in [Fault::None, Fault::MachinesFail, Fault::CenterStops] {
        let scenario = Scenario { spread: Spread::Skewed, fault, ..small() };
        assert_eq!(outcomes(&scenario), outcomes(&scenario), "{fault:?}");
    }
}

#[test]
fn no_strategy_with_one_state_admits_more_than_the_quota() {
    for spread in [Spread::Even, Spread::Skewed, Spread::Bursty] {
        for (name, outcome) in outcomes(&Scenario { spread, load: 300, ..small() }) {
            assert_eq!(outcome.over, 0, "{name}, {spread:?}");
            assert!(outcome.admitted.len() as u64 <= outcome.exact + 1, "{name}, {spread:?}");
        }
    }
}

#[test]
fn while_the_center_is_stopped_only_shares_admit() {
    let scenario = Scenario { fault: Fault::CenterStops, ..small() };
    let stop = scenario.center_stops_at().unwrap() + Duration::from_millis(500);
    for (name, outcome) in outcomes(&scenario) {
        let admitted =
            outcome.admitted.iter().filter(|at| (stop..stop + Duration::from_secs(4)).contains(at));
        match name {
            "share per machine" => assert!(admitted.count() > 200),
            _ => assert!(admitted.count() < 200 && outcome.undecided > 0, "{name}"),
        }
    }
}

/// Runs the same calls in real time, on a real server.
#[test]
fn a_real_server_admits_as_many() {
    let server = RedisServer::start();
    let scenario = Scenario { machines: 8, time: Duration::from_secs(5), load: 200, ..small() };
    let real = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let mut stores = Vec::new();
        for _ in 0..scenario.machines {
            let store = RedisStore::builder(&server.url()).deadline(Duration::from_secs(5));
            stores.push(store.connect().await.unwrap());
        }
        run(&scenario, Machines::on(Kind::Leases, scenario.quota, stores)).await
    });
    let simulated = outcomes(&scenario).into_iter().find(|(name, _)| name.contains("leases")).unwrap().1;
    assert_eq!((real.over, simulated.over, real.undecided), (0, 0, 0));
    let (real, simulated) = (real.admitted.len(), simulated.admitted.len());
    assert!(real.abs_diff(simulated) * 20 <= simulated, "{real} on a server, {simulated} simulated");
}

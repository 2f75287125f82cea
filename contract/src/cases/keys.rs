//! Keys: which calls share a budget, and which do not.
use tower_throttle::Quota;
use tower_throttle::algorithm::{FixedWindow, TokenBucket};
use tower_throttle::key::StoreKey;

use crate::case::Env;
use crate::tested::Subject;

list! {
    keys_do_not_share_units
    similar_keys_do_not_share_units
    long_keys_do_not_share_units
    clones_share_units
    a_layers_key_is_that_of_the_limiter
    a_missing_key_is_not_any_key
    many_keys_are_kept_apart
}

const HOUR: Quota = Quota::per_hour(2);

async fn keys_do_not_share_units<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    assert_eq!(limiter.exhaust("a").await.0, 2);
    assert_eq!(limiter.exhaust("b").await.0, 2);
    assert!(!limiter.check("a").await.is_allowed());
}

async fn similar_keys_do_not_share_units<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    let keys = [
        "",
        " ",
        "a",
        "A",
        "a ",
        " a",
        "aa",
        "a,b",
        "a:b",
        "a%2Cb",
        "a%252Cb",
        "{a}",
        "{a",
        "a}",
        "{}",
        "{a}b",
        "(a)",
        "()",
        "~",
        "#1",
        "1",
        "none~",
        "some~a",
        "\n",
        "\r\n",
        "\t",
        "*",
        "a*",
        "?",
        "[a]",
        "\\",
        "\"a\"",
        "'a'",
        "\u{e9}",
        "e\u{301}",
        "\u{1f980}",
        "%",
        "%C3%A9",
        "a\nb",
        "a b",
        "-",
        "--",
    ];
    for key in keys {
        assert_eq!(limiter.take(key).await, 1, "{key:?} shares units with another key");
    }
    for key in keys {
        assert_eq!(limiter.take(key).await, 0, "{key:?} has changed");
    }
}

async fn long_keys_do_not_share_units<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    for length in [99, 100, 101, 255, 256, 1_000, 10_000] {
        for end in ["a", "b"] {
            let key = "k".repeat(length) + end;
            assert_eq!(limiter.exhaust(&key).await.0, 2, "{length} bytes and {end:?}");
        }
    }
}

async fn clones_share_units<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(HOUR));
    let clone = limiter.clone();
    assert_eq!(limiter.take("a").await, 1);
    assert_eq!(clone.take("a").await, 0);
    assert!(!limiter.check("a").await.is_allowed());
}

async fn a_layers_key_is_that_of_the_limiter<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    assert_eq!(limiter.take_of(&StoreKey::Key("a".to_owned())).await, 1);
    assert_eq!(limiter.take("a").await, 0);
}

async fn a_missing_key_is_not_any_key<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(FixedWindow::new(HOUR));
    assert_eq!(limiter.take_of(&StoreKey::Missing).await, 1);
    for key in ["", "missing", "~missing", "()", "none~", "Missing", "%7Emissing"] {
        assert_eq!(limiter.take(key).await, 1, "{key:?}");
    }
    assert_eq!(limiter.take_of(&StoreKey::Missing).await, 0);
}

async fn many_keys_are_kept_apart<M: Subject>(env: Env<M>) {
    let limiter = env.limiter(TokenBucket::new(HOUR));
    for round in (0..2).rev() {
        for key in 0..300 {
            assert_eq!(limiter.take(&key.to_string()).await, round, "{key}");
        }
    }
}

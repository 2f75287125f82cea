use std::net::IpAddr;

use super::*;
use http::HeaderValue;

fn text<K: SharedKey + ?Sized>(key: &K) -> String {
    KeyText::new("login")
        .prefix("")
        .of(key)
        .strip_prefix('{')
        .unwrap()
        .strip_suffix("}:login")
        .unwrap()
        .to_owned()
}

fn secret(secret: &str) -> KeySecret {
    KeySecret::new(secret).unwrap()
}

#[test]
fn texts_can_be_read() {
    assert_eq!(text("user-42"), "user-42");
    assert_eq!(text(&String::from("a,b{c}\0\n\u{e9}")), "a%2Cb%7Bc%7D%00%0A%C3%A9");
    assert_eq!(text(&b"\xff"[..]), "%FF");
    assert_eq!(text(&HeaderValue::from_bytes(b"a\xfe").unwrap()), "a%FE");
    assert_eq!((text(""), text(&())), ("%".to_owned(), "()".to_owned()));
    assert_eq!((text(&42_u64), text(&-1_i8), text(&true), text(&'a')), tuple(["#42", "#-1", "#true", "a"]));
    assert_eq!(text(&IpAddr::from([203, 0, 113, 7])), "ip~203.0.113.7");
    assert_eq!(text(&IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0])), "ip~2001:db8::");
    assert_eq!(text(&("a", "bc")), "a,bc");
    assert_eq!(text(&("ab", "c")), "ab,c");
    assert_eq!(text(&(("a", 1_u8), (), ("b",))), "(a,#1),(),b");
    assert_eq!((text(&Some("a")), text(&None::<&str>)), ("some~a".to_owned(), "none~".to_owned()));
    assert_eq!(text(&Some((1_u8, 2_u8))), "some~(#1,#2)");
    assert_eq!(text(&Some(None::<()>)), "some~none~");
    assert_eq!(text(&std::sync::Arc::new(std::borrow::Cow::Borrowed("a"))), "a");
}

fn tuple([a, b, c, d]: [&str; 4]) -> (String, String, String, String) {
    (a.to_owned(), b.to_owned(), c.to_owned(), d.to_owned())
}

#[test]
fn long_keys_are_hashed_if_there_is_a_secret() {
    let (short, long) = ("a".repeat(100), "a".repeat(101));
    let plain = KeyText::new("login");
    assert_eq!(plain.of(&long), format!("throttle:{{{long}}}:login"));
    let hashed = plain.secret(secret("0123456789abcdef"));
    assert_eq!(hashed.of(&short), format!("throttle:{{{short}}}:login"));
    assert_eq!(hashed.of(&"a".repeat(1 << 20)).len(), hashed.of(&long).len());
    assert_ne!(hashed.of(&long), hashed.of(&"a".repeat(102)));
    // The length is that of the escaped text: 34 escaped bytes have a length of 102.
    assert!(hashed.of(&",".repeat(34)).starts_with("throttle:{~"));
    assert_ne!(hashed.of(&long), hashed.clone().secret(secret("0123456789abcdeF")).of(&long));
    // Users have such texts in their Redis servers, so later versions of this crate must write the same texts.
    assert_eq!(hashed.of(&long), "throttle:{~6114868b5727d472590435b21e57c571}:login");
    assert_eq!(text(&secret("0123456789abcdef").hash(b"t0ken")), "hash~17ed1d40431a78cfc5a4f3cc4200ceed");
}

#[test]
fn a_secret_is_not_short_and_not_shown() {
    let error = KeySecret::new("0123456789abcde").unwrap_err();
    assert_eq!(error, short_secret(KeySecret::MIN_LEN - 1));
    assert!(error.to_string().contains(&format!("at least {} bytes", KeySecret::MIN_LEN)), "{error}");
    let secret = secret("0123456789abcdef");
    let shown = format!("{secret:?} {:?} {:?}", secret.hash(b"t0ken"), KeyText::new("a").secret(secret));
    assert_eq!(
        shown,
        "KeySecret(..) KeyedHash(..) \
         KeyText { prefix: \"throttle:\", slot: None, name: \"a\", secret: Some(KeySecret(..)) }"
    );
}

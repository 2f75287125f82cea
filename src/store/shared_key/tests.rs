use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::error::ConfigError;
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

/// A key of any shape.
#[derive(Clone, Debug, PartialEq)]
enum Any {
    Bytes(Vec<u8>),
    Number(i128),
    Flag(bool),
    Ip(IpAddr),
    List(Vec<Any>),
    Variant(String, Box<Any>),
}

impl SharedKey for Any {
    fn write_to(&self, text: &mut KeyWriter) {
        match self {
            Self::Bytes(bytes) => bytes.write_to(text),
            Self::Number(number) => number.write_to(text),
            Self::Flag(flag) => flag.write_to(text),
            Self::Ip(ip) => ip.write_to(text),
            Self::List(keys) => match &keys[..] {
                [] => ().write_to(text),
                [a, b] => (a, b).write_to(text),
                [a, b, c] => (a, b, c).write_to(text),
                keys => keys.iter().for_each(|key| _ = text.part(key)),
            },
            Self::Variant(name, content) => _ = text.variant(name, content),
        }
    }
}

/// Reads the text of a key back into a key, using only what the docs of [`KeyWriter`] say. If each text can be read
/// back, different keys have different texts.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn read(text: &str) -> Any {
        let mut reader = Reader(text.as_bytes());
        let key = reader.list();
        assert!(reader.0.is_empty(), "{text}");
        key
    }

    fn list(&mut self) -> Any {
        let mut parts = vec![self.part()];
        while self.skip(b',') {
            parts.push(self.part());
        }
        if parts.len() == 1 { parts.remove(0) } else { Any::List(parts) }
    }

    fn part(&mut self) -> Any {
        if self.skip(b'(') {
            let list = if self.0[0] == b')' { Any::List(Vec::new()) } else { self.list() };
            assert!(self.skip(b')'));
            return list;
        }
        if self.skip(b'#') {
            let length = self.0.iter().position(|byte| b",)".contains(byte)).unwrap_or(self.0.len());
            let number = str::from_utf8(&self.0[..length]).unwrap();
            self.0 = &self.0[length..];
            return number.parse().map_or_else(|_| Any::Flag(number.parse().unwrap()), Any::Number);
        }
        let word = self.word();
        match self.skip(b'~') {
            false => Any::Bytes(word),
            true if word == b"ip" => Any::Ip(String::from_utf8(self.word()).unwrap().parse().unwrap()),
            true => {
                let is_empty = self.0.first().is_none_or(|next| b",)".contains(next));
                let content = if is_empty { Any::List(Vec::new()) } else { self.part() };
                Any::Variant(String::from_utf8(word).unwrap(), content.into())
            }
        }
    }

    fn word(&mut self) -> Vec<u8> {
        let mut word = Vec::new();
        while let [byte, rest @ ..] = self.0 {
            let digits =
                rest.get(..2).and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
            match (byte, digits) {
                (b'%', Some(byte)) => {
                    word.push(byte);
                    self.0 = &rest[2..];
                }
                (b'%', None) => {
                    assert!(word.is_empty());
                    self.0 = rest;
                    break;
                }
                (b',' | b')' | b'~', _) => break,
                (byte, _) => {
                    assert!(byte.is_ascii_alphanumeric() || b"-._:/@+=".contains(byte), "{byte}");
                    word.push(*byte);
                    self.0 = rest;
                }
            }
        }
        word
    }

    fn skip(&mut self, byte: u8) -> bool {
        let is_next = self.0.first() == Some(&byte);
        self.0 = &self.0[usize::from(is_next)..];
        is_next
    }
}

fn any_key() -> impl Strategy<Value = Any> {
    // Characters that have a meaning in the texts of keys, in Redis or in patterns of Redis, and strings that look like
    // a part.
    let words = prop_oneof![
        "[a1,(){}~%#:*\\[\\]\\\\\0\n\u{e9} ]{0,4}",
        "#1",
        "#true",
        "%41",
        "ip~::1",
        "none~",
        "()",
        "a,b"
    ];
    let leaf = prop_oneof![
        words.clone().prop_map(|text| Any::Bytes(text.into_bytes())),
        proptest::collection::vec(any::<u8>(), 0..4).prop_map(Any::Bytes),
        (-2..3_i128).prop_map(Any::Number),
        any::<i128>().prop_map(Any::Number),
        any::<bool>().prop_map(Any::Flag),
        any::<u32>().prop_map(|bits| Any::Ip(Ipv4Addr::from_bits(bits).into())),
        any::<u128>().prop_map(|bits| Any::Ip(Ipv6Addr::from_bits(bits).into())),
        Just(Any::List(Vec::new())),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 2..5).prop_map(Any::List),
            (words.clone(), inner)
                .prop_filter("addresses are leaves", |(name, _)| name != "ip")
                .prop_map(|(name, content)| Any::Variant(name, Box::new(content))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_096))]

    #[test]
    fn every_text_can_be_read_back(key in any_key()) {
        prop_assert_eq!(Reader::read(&text(&key)), key);
    }

    #[test]
    fn a_text_is_safe_in_a_hash_tag_and_in_a_pattern(key in any_key()) {
        let text = text(&key);
        prop_assert!(!text.is_empty());
        prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:/@+=%~#,()".contains(&byte)), "{}", text);
    }

    #[test]
    fn prefix_slot_key_and_name_are_kept_apart(
        one in any_names(), other in any_names(), one_key in "[a:{}]{0,2}", other_key in "[a:{}]{0,2}",
    ) {
        let of = |(prefix, slot, name): &(String, Option<String>, String), key: &str| {
            let text = KeyText::new(name).prefix(prefix);
            slot.iter().fold(text, |text, slot| text.one_slot(slot)).of(key)
        };
        let (first, second) = (of(&one, &one_key), of(&other, &other_key));
        prop_assert_eq!(first == second, (&one, &one_key) == (&other, &other_key), "{} {}", first, second);
        prop_assert!(first.matches(['{', '}']).count() == 2 && !first.contains("{}"), "{}", first);
    }
}

fn any_names() -> impl Strategy<Value = (String, Option<String>, String)> {
    ("[a:{}%]{0,2}", proptest::option::of("[a:{}]{0,2}"), "[a:{}%]{0,2}")
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
    assert_eq!(error, ConfigError::short_secret(KeySecret::MIN_LEN - 1));
    assert!(error.to_string().contains(&format!("at least {} bytes", KeySecret::MIN_LEN)), "{error}");
    let secret = secret("0123456789abcdef");
    let shown = format!("{secret:?} {:?} {:?}", secret.hash(b"t0ken"), KeyText::new("a").secret(secret));
    assert_eq!(
        shown,
        "KeySecret(..) KeyedHash(..) \
         KeyText { prefix: \"throttle:\", slot: None, name: \"a\", secret: Some(KeySecret(..)) }"
    );
}

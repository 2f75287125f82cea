//! The texts of keys on other machines: a reader that knows only the docs reads each of them back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use tower_throttle::limiter::{KeyText, KeyWriter, SharedKey};

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
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/@+=%~#,()".contains(&byte);
        prop_assert!(text.bytes().all(is_safe), "{}", text);
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

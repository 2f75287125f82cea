//! The texts of keys whose types are from std or `http`.

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

use http::{HeaderValue, Method};

use super::{KeyWriter, SharedKey};

macro_rules! pointer {
    ($($pointer:ty),+) => {$(
        impl<K: SharedKey + ?Sized> SharedKey for $pointer {
            fn write_to(&self, text: &mut KeyWriter) {
                (**self).write_to(text);
            }
        }
    )+};
}

pointer!(&K, &mut K, Box<K>, Rc<K>, Arc<K>);

impl<K: SharedKey + ToOwned + ?Sized> SharedKey for Cow<'_, K> {
    fn write_to(&self, text: &mut KeyWriter) {
        (**self).write_to(text);
    }
}

macro_rules! marked {
    ($mark:literal: $($number:ty),+) => {$(
        impl SharedKey for $number {
            fn write_to(&self, text: &mut KeyWriter) {
                text.marked($mark, self);
            }
        }
    )+};
}

marked!("#": u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, bool);
marked!("ip~": IpAddr, Ipv4Addr, Ipv6Addr);

impl SharedKey for str {
    fn write_to(&self, text: &mut KeyWriter) {
        text.text(self);
    }
}

impl SharedKey for String {
    fn write_to(&self, text: &mut KeyWriter) {
        text.text(self);
    }
}

impl SharedKey for char {
    fn write_to(&self, text: &mut KeyWriter) {
        text.text(self.encode_utf8(&mut [0; 4]));
    }
}

impl SharedKey for [u8] {
    fn write_to(&self, text: &mut KeyWriter) {
        text.bytes(self);
    }
}

impl SharedKey for Vec<u8> {
    fn write_to(&self, text: &mut KeyWriter) {
        text.bytes(self);
    }
}

impl<const N: usize> SharedKey for [u8; N] {
    fn write_to(&self, text: &mut KeyWriter) {
        text.bytes(self);
    }
}

impl SharedKey for HeaderValue {
    fn write_to(&self, text: &mut KeyWriter) {
        text.bytes(self.as_bytes());
    }
}

impl SharedKey for Method {
    fn write_to(&self, text: &mut KeyWriter) {
        text.text(self.as_str());
    }
}

impl<K: SharedKey> SharedKey for Option<K> {
    fn write_to(&self, text: &mut KeyWriter) {
        match self {
            Some(key) => text.variant("some", key),
            None => text.variant("none", &()),
        };
    }
}

/// `Infallible` has no values, so its method is never called.
impl SharedKey for Infallible {
    fn write_to(&self, _: &mut KeyWriter) {
        match *self {}
    }
}

/// The key of [`Global`](crate::key::Global).
impl SharedKey for () {
    fn write_to(&self, _: &mut KeyWriter) {}
}

macro_rules! tuple {
    ($($part:ident)+) => {
        impl<$($part: SharedKey),+> SharedKey for ($($part,)+) {
            #[allow(non_snake_case, reason = "type parameters name the parts")]
            fn write_to(&self, text: &mut KeyWriter) {
                let ($($part,)+) = self;
                $(text.part($part);)+
            }
        }
    };
}

tuple!(A);
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
tuple!(A B C D E);
tuple!(A B C D E F);
tuple!(A B C D E F G);
tuple!(A B C D E F G H);

//! The slots of a cluster: which slot a key is in, and which node has a slot.

use ::redis::Value;

use super::error::{RedisError, RedisErrorKind};

/// The number of slots of each cluster.
pub(super) const SLOTS: usize = 16_384;

/// The address of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

/// A range of slots, and the master that has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) master: Address,
}

/// The node that has a key, according to an error reply of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    /// `true` if the reply is `ASK`: the slot is still being migrated to that node.
    pub(super) is_asking: bool,
    pub(super) slot: u16,
    /// The address of that node. An empty host stands for the host of the node that replied.
    pub(super) address: Address,
}

/// Returns the slot of a key: the slot of the text in the first pair of braces, or of the whole key if there is no such
/// text.
pub(super) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key)) % SLOTS as u16
}

/// Returns the checksum that the cluster specification defines, CRC-16/XMODEM.
fn crc16(text: &str) -> u16 {
    text.bytes().fold(0, |sum, byte| (sum << 8) ^ TABLE[usize::from((sum >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let (mut sum, mut bit) = ((index as u16) << 8, 0);
        while bit < 8 {
            sum = if sum & 0x8000 > 0 { (sum << 1) ^ 0x1021 } else { sum << 1 };
            bit += 1;
        }
        table[index] = sum;
        index += 1;
    }
    table
};

impl Redirect {
    /// Parses an error such as `MOVED 3999 127.0.0.1:6381`.
    pub(super) fn parse(error: &RedisError) -> Option<Self> {
        if error.kind() != RedisErrorKind::Moved {
            return None;
        }
        let mut words = error.detail().split(' ');
        let (code, slot, address) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
        let (host, port) = address.rsplit_once(':')?;
        let address = Address { host: host.to_owned(), port: port.parse().ok()? };
        (usize::from(slot) < SLOTS).then_some(Self { is_asking: code == "ASK", slot, address })
    }
}

/// Parses the reply to `CLUSTER SLOTS`. `own`, the host of the server that replied, replaces an empty host in the
/// reply.
pub(super) fn parse_slots(reply: &Value, own: &str) -> Result<Vec<Range>, RedisError> {
    let error = || {
        let reply: String = format!("{reply:?}").chars().take(200).collect();
        RedisError::new(RedisErrorKind::Server, format!("reply to CLUSTER SLOTS: {reply}"))
    };
    let Value::Array(ranges) = reply else { return Err(error()) };
    let mut found = Vec::new();
    for range in ranges {
        let range = Range::parse(range, own).ok_or_else(error)?;
        // A node that knows a master's slots, but not the master's address, replies with the host `?`.
        if range.master.host != "?" {
            found.push(range);
        }
    }
    Ok(found)
}

impl Range {
    fn parse(value: &Value, own: &str) -> Option<Self> {
        let Value::Array(parts) = value else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else { return None };
        let [host, Value::Int(port), ..] = &master[..] else { return None };
        let host = match host {
            Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
            Value::SimpleString(host) => host.clone(),
            Value::Nil => String::new(),
            _ => return None,
        };
        let slot = |slot: &i64| u16::try_from(*slot).ok().filter(|slot| usize::from(*slot) < SLOTS);
        let host = if host.is_empty() { own.to_owned() } else { host };
        let master = Address { host, port: (*port).try_into().ok()? };
        let (first, last) = (slot(first)?, slot(last)?);
        (first <= last).then_some(Self { first, last, master })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_slots_of_the_specification() {
        assert_eq!(crc16("123456789"), 0x31c3);
        for (key, expected) in
            [("foo", 12_182), ("bar", 5_061), ("{foo}.x", 12_182), ("a{foo}b{bar}", 12_182), ("", 0)]
        {
            assert_eq!(slot(key), expected, "{key}");
        }
        assert_eq!(slot("throttle:{foo}:login"), 12_182);
        // If there is no text in the first pair of braces, the whole key determines the slot.
        assert_eq!(slot("foo{}{bar}"), crc16("foo{}{bar}") % 16_384);
        assert_eq!(slot("foo{bar"), crc16("foo{bar") % 16_384);
        assert_eq!(slot("foo{{bar}}"), slot("{bar"));
    }

    #[test]
    fn redirects_are_parsed() {
        let parse = |text: &str| Redirect::parse(&RedisError::from_reply(text));
        let address = |host: &str, port| Address { host: host.to_owned(), port };
        let redirect = |is_asking, slot, host: &str, port| {
            Some(Redirect { is_asking, slot, address: address(host, port) })
        };
        assert_eq!(parse("MOVED 3999 127.0.0.1:6381"), redirect(false, 3_999, "127.0.0.1", 6_381));
        assert_eq!(parse("ASK 0 ::1:1"), redirect(true, 0, "::1", 1));
        assert_eq!(parse("MOVED 16383 :6381"), redirect(false, 16_383, "", 6_381));
        for text in
            ["MOVED", "MOVED 3999", "MOVED x y:1", "MOVED 16384 a:1", "MOVED 1 a:x", "MOVED 1 a", "ERR 1 a:1"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_reply_to_cluster_slots_is_parsed() {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |host, port| Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(vec![])]);
        let range = |first, last, master| {
            Value::Array(vec![Value::Int(first), Value::Int(last), master, node(text("replica"), 7)])
        };
        let reply = Value::Array(vec![
            range(0, 5_460, node(text("10.0.0.1"), 6_379)),
            range(5_461, 10_922, node(Value::Nil, 6_380)),
            range(10_923, 10_923, node(text(""), 6_381)),
            range(10_924, 16_383, node(text("?"), 6_382)),
        ]);
        let found = parse_slots(&reply, "own").unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|range| (range.first, range.last, &*range.master.host, range.master.port))
            .collect();
        assert_eq!(
            found,
            [(0, 5_460, "10.0.0.1", 6_379), (5_461, 10_922, "own", 6_380), (10_923, 10_923, "own", 6_381)]
        );
        for wrong in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(-1, 5, node(text("a"), 1))]),
            Value::Array(vec![range(0, 16_384, node(text("a"), 1))]),
            Value::Array(vec![range(10, 5, node(text("a"), 1))]),
            Value::Array(vec![range(0, 5, node(text("a"), 65_536))]),
            Value::Array(vec![range(0, 5, Value::Array(vec![]))]),
        ] {
            assert_eq!(parse_slots(&wrong, "own").unwrap_err().kind(), RedisErrorKind::Server, "{wrong:?}");
        }
    }
}

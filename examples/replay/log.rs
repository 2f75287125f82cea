//! A whole access log, sorted by time.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::Request as HttpRequest;
use tower_throttle::key::{KeyExtractor, PeerIp};

use crate::line::Line;

/// The requests of a log, and their clients.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// The requests, sorted by time. Requests of the same second are in the order of the log.
    pub(crate) requests: Vec<Request>,
    /// The clients, in the order of their first requests in the log.
    pub(crate) clients: Vec<Client>,
    pub(crate) unreadable: usize,
    /// The number of the first line that could not be read. Lines are counted from 1.
    pub(crate) first_unreadable: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Request {
    /// The time, in seconds since the Unix epoch.
    pub(crate) time: u64,
    /// The index of the client in [`Log::clients`].
    pub(crate) client: usize,
}

/// The client whose budget a request uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// An address, grouped as [`PeerIp`] groups it.
    Ip(IpAddr),
    /// A host name, as written in the log.
    Name(String),
}

impl Log {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut log = Self::default();
        let by_peer = PeerIp::new();
        let mut known: HashMap<Client, usize> = HashMap::new();
        let lines = bytes.strip_suffix(b"\n").unwrap_or(bytes).split(|byte| *byte == b'\n');
        for (number, line) in (1..).zip(lines).filter(|_| !bytes.is_empty()) {
            let Some(line) = Line::parse(line.trim_ascii_end()) else {
                log.unreadable += 1;
                log.first_unreadable.get_or_insert(number);
                continue;
            };
            let client = Client::of(line.client, &by_peer);
            let index = *known.entry(client).or_insert_with_key(|client| {
                log.clients.push(client.clone());
                log.clients.len() - 1
            });
            log.requests.push(Request { time: line.time, client: index });
        }
        log.requests.sort_by_key(|request| request.time);
        log
    }
}

impl Client {
    fn of(text: &str, by_peer: &PeerIp) -> Self {
        let Ok(address) = text.parse::<IpAddr>() else { return Self::Name(text.to_owned()) };
        // The key that a server would have used.
        let mut request = HttpRequest::new(());
        request.extensions_mut().insert(SocketAddr::new(address, 0));
        match by_peer.extract(&request) {
            Ok(Some(key)) => Self::Ip(key),
            _ => Self::Ip(address),
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Ip(IpAddr::V6(network)) => write!(f, "{network}/64"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(client: &str, second: u32) -> String {
        format!("{client} - - [17/May/2015:10:05:{second:02} +0000] \"GET /\" 200 5\r\n")
    }

    #[test]
    fn requests_are_sorted_by_time_and_stay_in_order_within_a_second() {
        let text = line("a", 7) + &line("b", 5) + &line("a", 5) + &line("c", 5);
        let log = Log::read(text.as_bytes());
        let order: Vec<_> =
            log.requests.iter().map(|request| log.clients[request.client].to_string()).collect();
        assert_eq!(order, ["b", "a", "c", "a"]);
    }

    #[test]
    fn clients_are_grouped_as_their_peers_would_be() {
        let text: String = ["2001:db8::1", "2001:db8::2", "::ffff:192.0.2.7", "192.0.2.7", "host"]
            .map(|client| line(client, 0))
            .concat();
        let log = Log::read(text.as_bytes());
        let names: Vec<_> = log.clients.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["2001:db8::/64", "192.0.2.7", "host"]);
    }

    #[test]
    fn unreadable_lines_are_counted() {
        let text = line("a", 0) + "nonsense\n\n" + &line("a", 1);
        let log = Log::read(text.as_bytes());
        assert_eq!((log.requests.len(), log.unreadable, log.first_unreadable), (2, 2, Some(2)));
        let empty = Log::read(b"");
        assert_eq!((empty.requests.len(), empty.unreadable), (0, 0));
    }
}

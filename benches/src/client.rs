//! A minimal load generator: it writes bytes, and looks for the end of each response.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Connections that are kept open, each with one request in flight at a time.
pub struct Client {
    connections: Vec<TcpStream>,
    buffer: [u8; 4096],
}

impl Client {
    pub fn connect(address: SocketAddr, connections: usize) -> Self {
        let connect = |_| {
            let stream = TcpStream::connect(address).expect("the server listens");
            stream.set_nodelay(true).expect("a TCP option");
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a TCP option");
            stream
        };
        Self { connections: (0..connections).map(connect).collect(), buffer: [0; 4096] }
    }

    /// Sends `requests` requests, and returns the time until the last response. `requests` must be a multiple of the
    /// number of connections.
    ///
    /// # Panics
    ///
    /// Panics if a connection fails or a response takes more than 10 seconds, or if a response has another status than
    /// `status`. With `None`, any status is accepted.
    pub fn run(&mut self, requests: usize, status: Option<u16>) -> Duration {
        let Self { connections, buffer } = self;
        let started = Instant::now();
        for connection in connections.iter_mut() {
            connection.write_all(REQUEST).expect("the server reads");
        }
        let rounds = requests / connections.len();
        for round in 1..=rounds {
            for connection in connections.iter_mut() {
                let got = read_response(connection, buffer);
                assert!(status.is_none_or(|status| status == got), "the server answered {got}");
                if round < rounds {
                    connection.write_all(REQUEST).expect("the server reads");
                }
            }
        }
        started.elapsed()
    }
}

/// Reads one whole response and returns its status.
fn read_response(connection: &mut TcpStream, buffer: &mut [u8]) -> u16 {
    let mut filled = 0;
    loop {
        filled += match connection.read(&mut buffer[filled..]).expect("the server responds in time") {
            0 => panic!("the server closed a connection"),
            length => length,
        };
        if let Some(status) = complete_status(&buffer[..filled]) {
            return status;
        }
    }
}

/// Returns the status if the head and the whole body have been received. Otherwise returns `None`.
fn complete_status(bytes: &[u8]) -> Option<u16> {
    const FIELD: &[u8] = b"content-length: ";
    let (mut line, mut rest) = split_line(bytes)?;
    let status = std::str::from_utf8(line.get(9..12)?).ok()?.parse().ok()?;
    let mut length = 0;
    loop {
        (line, rest) = split_line(rest)?;
        if line.is_empty() {
            return (rest.len() >= length).then_some(status);
        }
        if let Some(value) = line.strip_prefix(FIELD) {
            length = std::str::from_utf8(value).ok()?.parse().ok()?;
        }
    }
}

fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == b'\r')?;
    Some((&bytes[..at], bytes.get(at + 2..)?))
}

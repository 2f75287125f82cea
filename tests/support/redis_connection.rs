//! A connection for tests that inspect a Redis server. It sends one command at a time, and returns the reply as it was
//! received.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// The time limit for a reply.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection that waits for each reply.
#[derive(Debug)]
pub(crate) struct Connection(BufReader<TcpStream>);

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Integer(i64),
    Text(Vec<u8>),
    Error(String),
    List(Vec<Reply>),
}

impl Connection {
    pub(super) fn to(port: u16, arguments: &[String]) -> io::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut connection = Self(BufReader::new(stream));
        let password = arguments.windows(2).find(|pair| pair[0] == "--requirepass");
        if let Some([_, password]) = password {
            connection.try_call(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Sends one command, and returns its reply.
    pub(crate) fn call(&mut self, command: &[&str]) -> Reply {
        self.try_call(command).unwrap()
    }

    pub(crate) fn try_call<W: AsRef<[u8]>>(&mut self, command: &[W]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", command.len()).into_bytes();
        for word in command.iter().map(AsRef::as_ref) {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request)?;
        self.reply()
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let line = line.trim_end();
        let Some((kind, rest)) = line.split_at_checked(1) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let length = || rest.parse::<i64>().map_err(io::Error::other);
        Ok(match kind {
            "+" => Reply::Text(rest.into()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(length()?),
            "$" | "*" if length()? < 0 => Reply::Nil,
            "$" => {
                let mut text = vec![0; usize::try_from(length()? + 2).unwrap()];
                self.0.read_exact(&mut text)?;
                text.truncate(text.len() - 2);
                Reply::Text(text)
            }
            "*" => Reply::List((0..length()?).map(|_| self.reply()).collect::<io::Result<_>>()?),
            _ => return Err(io::Error::other(format!("{line:?} is no reply"))),
        })
    }
}

impl Reply {
    /// Returns the text of the reply. Panics if the reply is of another kind.
    #[track_caller]
    pub(crate) fn text(self) -> String {
        match self {
            Self::Text(text) => String::from_utf8(text).unwrap(),
            other => panic!("{other:?} is no text"),
        }
    }

    /// Panics if the reply is not `OK`.
    #[track_caller]
    pub(crate) fn ok(self) {
        assert_eq!(self.text(), "OK");
    }
}

//! A proxy between a store and a server. It delays, cuts or loses what passes through it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The fault of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Each read from the server is delayed by this time.
    DelayReplies(Duration),
    /// Requests are held until the fault is over.
    HoldRequests,
    /// Requests reach the server, and replies are lost. The connection stays open.
    SwallowReplies,
    /// Each connection is closed after this many bytes of the next reply.
    CutAfter(usize),
    /// Of as many messages on a channel, the first is lost. With 1, all messages are lost.
    LoseMessages(u64),
}

/// A proxy, which ends when this value is dropped. The runtime must have more than one thread, or be driven by the
/// test.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    fault: Mutex<Fault>,
    changed: Notify,
    messages: AtomicU64,
    lost: AtomicU64,
    /// The number of scripts whose requests are held on the connection that was read last.
    held: AtomicU64,
    /// The number of times that the proxy has forgotten its connections.
    forgotten: AtomicU64,
}

/// The beginning of a message on a channel.
const MESSAGE: &[u8] = b"*3\r\n$7\r\nmessage\r\n";

impl Proxy {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            fault: Mutex::new(Fault::None),
            changed: Notify::new(),
            messages: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            held: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
        });
        let task = tokio::spawn(accept(listener, server, Arc::clone(&shared)));
        Self { address, shared, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the number of messages that were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Returns the number of scripts whose requests are held on the connection that was read last.
    pub(crate) fn held(&self) -> u64 {
        self.shared.held.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, fault: Fault) {
        *self.shared.fault.lock().unwrap() = fault;
        self.shared.changed.notify_waiters();
    }

    /// Loses everything that is sent from now on over the present connections, in both directions, and closes none of
    /// them. New connections work.
    pub(crate) fn forget(&self) {
        self.shared.forgotten.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The tasks of the connections end with the task of the listener, which owns them.
        self.task.abort();
    }
}

impl Shared {
    fn fault(&self) -> Fault {
        *self.fault.lock().unwrap()
    }

    /// Removes lost messages from `bytes`. Returns the number of bytes that can be passed on now. These are all bytes
    /// but the beginning of an incomplete message.
    fn lose_messages(&self, bytes: &mut Vec<u8>, every: u64) -> usize {
        let mut at = 0;
        while let Some(start) = find(&bytes[at..], MESSAGE) {
            let start = at + start;
            let Some(end) = end_of_message(&bytes[start..]) else { return start };
            at = start + end;
            if self.messages.fetch_add(1, Ordering::Relaxed).is_multiple_of(every) {
                self.lost.fetch_add(1, Ordering::Relaxed);
                bytes.drain(start..at);
                at = start;
            }
        }
        bytes.len()
    }

    /// Waits until requests are no longer held.
    async fn go_on(&self) {
        loop {
            let changed = self.changed.notified();
            if self.fault() != Fault::HoldRequests {
                return;
            }
            changed.await;
        }
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, shared: Arc<Shared>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        let shared = Arc::clone(&shared);
        let began = shared.forgotten.load(Ordering::Relaxed);
        connections.spawn(async move {
            let is_forgotten = || shared.forgotten.load(Ordering::Relaxed) != began;
            let Ok(server) = TcpStream::connect(server).await else { return };
            let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                (client.into_split(), server.into_split());
            let requests = async {
                // A vector without capacity would be read into in small pieces.
                let mut bytes = Vec::with_capacity(4_096);
                loop {
                    tokio::select! {
                        read = from_client.read_buf(&mut bytes) => match read {
                            Ok(1..) => {}
                            _ => return,
                        },
                        () = shared.go_on(), if !bytes.is_empty() => {}
                    }
                    if shared.fault() == Fault::HoldRequests {
                        let scripts = bytes.windows(7).filter(|word| word == b"EVALSHA").count();
                        shared.held.store(scripts as u64, Ordering::Relaxed);
                        continue;
                    }
                    if !is_forgotten() && to_server.write_all(&bytes).await.is_err() {
                        return;
                    }
                    bytes.clear();
                }
            };
            let replies = async {
                // A vector without capacity would be read into in small pieces.
                let mut bytes = Vec::with_capacity(4_096);
                while let Ok(1..) = from_server.read_buf(&mut bytes).await {
                    let length = bytes.len();
                    let mut passed = length;
                    if is_forgotten() {
                        bytes.clear();
                        continue;
                    }
                    match shared.fault() {
                        Fault::SwallowReplies => {
                            bytes.clear();
                            continue;
                        }
                        Fault::LoseMessages(every) => {
                            passed = shared.lose_messages(&mut bytes, every);
                            if to_client.write_all(&bytes[..passed]).await.is_err() {
                                return;
                            }
                            bytes.drain(..passed);
                            continue;
                        }
                        Fault::CutAfter(bytes) => passed = bytes.min(length),
                        Fault::DelayReplies(time) => sleep(time).await,
                        Fault::None | Fault::HoldRequests => {}
                    }
                    if to_client.write_all(&bytes[..passed]).await.is_err() || passed < length {
                        return;
                    }
                    bytes.clear();
                }
            };
            // When one direction ends, both are dropped, which closes both connections.
            tokio::select! {
                () = requests => {}
                () = replies => {}
            }
        });
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// Returns the length of a message. After the beginning of the message come two strings: the channel and the text.
fn end_of_message(bytes: &[u8]) -> Option<usize> {
    let mut at = MESSAGE.len();
    for _ in 0..2 {
        let line = find(bytes.get(at..)?, b"\r\n")?;
        let length: usize = std::str::from_utf8(&bytes[at + 1..at + line]).ok()?.parse().ok()?;
        at += line + 2 + length + 2;
    }
    (at <= bytes.len()).then_some(at)
}

//! Keys from IP addresses: the address of the peer, and the address of the client behind proxies.

mod address;
mod client;
mod forwarded;
mod header_list;
mod networks;
mod options;
mod peer;
mod peer_source;
mod proxied;
mod swappable;
mod trusted;

pub use client::ClientIp;
pub use networks::Networks;
pub use peer::PeerIp;
pub use trusted::TrustedProxies;

//! Keys from IP addresses: the peer's, and the client's behind proxies.

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

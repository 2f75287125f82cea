//! Keys from IP addresses: the address of the peer, and the address of the client behind proxies.

mod client;
mod header_list;
mod nat64;
mod networks;
mod options;
mod peer;
mod peer_source;
mod proxy_warning;

pub use client::ClientIp;
pub use networks::{Networks, TrustedProxies};
pub use peer::PeerIp;

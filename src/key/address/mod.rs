//! Addresses: of the peer, and of the client behind proxies.

mod client;
mod element;
mod forwarded;
mod group;
mod list;
mod networks;
mod peer;
mod peers;
mod proxied;
mod shared;
mod trusted;

pub use client::ClientIp;
pub use networks::Networks;
pub use peer::PeerIp;
pub use trusted::TrustedProxies;

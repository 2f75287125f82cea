//! Limits an app behind a proxy by the client's address, not by the proxy's address.
//!
//! This program contains a small proxy. Any proxy that appends to `X-Forwarded-For` would do. Start the app and the
//! proxy:
//!
//! ```text
//! cargo run --example behind_proxy
//! ```
//!
//! The app responds with the address that its limiter uses. The app trusts 127.0.0.1, from which the proxy calls. So
//! call from another address. On Linux, all addresses in 127.0.0.0/8 are those of this machine. On other systems, add
//! the address first: `sudo ifconfig lo0 alias 127.0.0.2`.
//!
//! ```text
//! curl --interface 127.0.0.2 http://127.0.0.1:3006/
//! curl --interface 127.0.0.2 -H 'X-Forwarded-For: 192.0.2.7' http://127.0.0.1:3006/
//! curl --interface 127.0.0.2 -H 'X-Forwarded-For: 192.0.2.7' http://127.0.0.1:3005/
//! ```
//!
//! You will see 127.0.0.2 each time. The first call is made through the proxy. The second call is made through the
//! proxy with a forged header. The last entry of the header is then 127.0.0.2, which the proxy has appended. The
//! limiter reads the list from the right, and this entry is the first that is not a trusted address. The third call is
//! made directly to the app. Its peer is not trusted, so no header is read.
//!
//! A new forged address for each call does not bypass the limit either. You will see 200 five times, then 429:
//!
//! ```text
//! for i in 1 2 3 4 5 6 7; do curl -s -o /dev/null -w '%{http_code}\n' --interface 127.0.0.3 -H "X-Forwarded-For: 192.0.2.$i" http://127.0.0.1:3006/; done
//! ```
//!
//! A trusted peer can claim any address. Without `--interface` you call from 127.0.0.1, as the proxy does. So the app
//! trusts the forged header, and you will see 192.0.2.7.
//!
//! ```text
//! curl -H 'X-Forwarded-For: 192.0.2.7' http://127.0.0.1:3005/
//! ```
//!
//! To set other addresses of the app and of the proxy, and another quota, run `cargo run --example behind_proxy --
//! 127.0.0.1:8080 127.0.0.1:8081 "100/min burst 20"`. Ctrl-C ends the app and the proxy.

mod app;
mod proxy;

use std::net::SocketAddr;
use std::process::ExitCode;

use tokio::net::TcpListener;
use tower_throttle::Quota;
use tower_throttle::key::{ClientIp, TrustedProxies};

const APP: &str = "127.0.0.1:3005";
const PROXY: &str = "127.0.0.1:3006";
const QUOTA: Quota = Quota::per_minute(12).burst(5);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("behind_proxy: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let (app, app_address) = listen("the app", arguments.next().as_deref().unwrap_or(APP)).await?;
    if !app_address.ip().is_loopback() {
        return Err(format!(
            "the app trusts a proxy at 127.0.0.1 or ::1, so give it an address that is called from there, not \
             {app_address}"
        ));
    }
    let (proxy, proxy_address) = listen("the proxy", arguments.next().as_deref().unwrap_or(PROXY)).await?;
    let quota: Quota = match arguments.next() {
        Some(text) => text.parse().map_err(|error| format!("{error}"))?,
        None => QUOTA,
    };

    // Only the proxy's addresses are trusted. With 127.0.0.0/8, every client on this machine would be trusted.
    let trusted = TrustedProxies::cidrs(["127.0.0.1", "::1"]).map_err(|error| error.to_string())?;
    let router = app::app(ClientIp::x_forwarded_for(trusted), quota);

    println!(
        "{quota} for each client, on http://{app_address}/ behind http://{proxy_address}/ (Ctrl-C ends it)."
    );
    println!("Through the proxy, with a forged header, and directly to the app. You will see 127.0.0.2:");
    let forged = "-H 'X-Forwarded-For: 192.0.2.7'";
    println!("  curl --interface 127.0.0.2 http://{proxy_address}/");
    println!("  curl --interface 127.0.0.2 {forged} http://{proxy_address}/");
    println!("  curl --interface 127.0.0.2 {forged} http://{app_address}/");
    println!("From the proxy's own address, which is trusted. You will see 192.0.2.7:");
    println!("  curl {forged} http://{app_address}/");

    // To recognize proxies, the limiter reads the peer's address from the connect info.
    let app = axum::serve(app, router.into_make_service_with_connect_info::<SocketAddr>());
    tokio::select! {
        ended = app => ended.map_err(|error| format!("the app: {error}")),
        ended = proxy::serve(proxy, app_address) => ended.map_err(|error| format!("the proxy: {error}")),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

async fn listen(name: &str, address: &str) -> Result<(TcpListener, SocketAddr), String> {
    let listener = TcpListener::bind(address).await.map_err(|error| {
        format!(
            "{name} cannot listen on {address}: {error}. Other addresses: \
             cargo run --example behind_proxy -- 127.0.0.1:8080 127.0.0.1:8081"
        )
    })?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    Ok((listener, address))
}

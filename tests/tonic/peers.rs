//! A peer is limited by its address, over TLS as well.

use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig};
use tower_throttle::Quota;
use tower_throttle::clock::ManualClock;

use crate::support::{Server, listen};
use crate::{Caller, Echo, builder, is_used_up, per_ip, serve};

#[tokio::test]
async fn a_peer_is_known_by_its_address() {
    let layer = per_ip(Quota::per_hour(1), &ManualClock::new());
    let server = serve!(builder().layer(layer.clone()).add_service(Echo::default()));
    let mut caller = Caller::connect(&server).await;
    assert!(caller.echo("ab").await.is_ok());
    assert_eq!(caller.echo("ab").await.unwrap_err().code(), Code::ResourceExhausted);
    assert!(is_used_up(&layer, [127, 0, 0, 1]) && !is_used_up(&layer, [127, 0, 0, 2]));
}

const CERTIFICATE: &str = include_str!("../certificates/localhost.pem");
const KEY: &str = include_str!("../certificates/localhost.key");

#[tokio::test]
async fn over_tls_a_peer_is_known_as_well() {
    let layer = per_ip(Quota::per_hour(1), &ManualClock::new());
    let tls = ServerTlsConfig::new().identity(Identity::from_pem(CERTIFICATE, KEY));
    let server = serve!(builder().tls_config(tls).unwrap().layer(layer.clone()).add_service(Echo::default()));
    let tls =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(CERTIFICATE)).domain_name("localhost");
    let endpoint = Endpoint::from_shared(format!("https://{}", server.address)).unwrap();
    let endpoint = endpoint.tls_config(tls).unwrap();
    let mut caller = Caller::at(endpoint.clone()).await;
    assert_eq!(caller.echo("ab").await.unwrap().into_inner().text, "abab");
    // This is another connection from the same address.
    let mut caller = Caller::at(endpoint).await;
    assert_eq!(caller.echo("ab").await.unwrap_err().code(), Code::ResourceExhausted);
    assert!(is_used_up(&layer, [127, 0, 0, 1]) && !is_used_up(&layer, [127, 0, 0, 2]));
}

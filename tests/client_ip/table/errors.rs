//! Invalid settings are errors, and errors of requests contain nothing that a caller wrote.

use tower_throttle::key::{ClientIp, TrustedProxies};

use super::{cidrs, of, peer};
use crate::adapter;
use crate::model::{Heard, Peer, Source, Trust};

#[test]
fn invalid_setups() {
    assert!(TrustedProxies::hops(0).is_err());
    assert!(TrustedProxies::hops(1).is_ok());
    assert!(TrustedProxies::hops(usize::MAX).is_ok());
    for name in [
        "x-forwarded-for",
        "X-Forwarded-For",
        "forwarded",
        "FORWARDED",
        "cloudfront-viewer-address",
        "CloudFront-Viewer-Address",
        "",
        "x real ip",
        "x-real-ip:",
        "x-réal-ip",
        "x\n",
    ] {
        assert!(ClientIp::header(name).is_err(), "{name:?}");
    }
    for name in
        ["cf-connecting-ip", "X-Real-IP", "True-Client-IP", "fly-client-ip", "x-envoy-external-address"]
    {
        assert!(ClientIp::header(name).is_ok(), "{name:?}");
    }
}

/// Tests that errors, which are logged, contain nothing that a caller wrote.
#[test]
fn errors_repeat_nothing_of_a_request() {
    let secrets = [
        "hunter2",
        "203.0.113.99",
        "198.51.100.77",
        "2001:db8:bad::1",
        "zqzq",
        "54321",
        "\u{ff}",
        "\u{fffd}",
    ];
    let lines: [&[u8]; 10] = [
        b"hunter2",
        b"203.0.113.99, hunter2",
        b"203.0.113.99:54321:54321",
        b"[2001:db8:bad::1]zqzq",
        b"for=hunter2;host=zqzq",
        b"for=203.0.113.99;for=198.51.100.77",
        b"for=\"hunter2",
        b"203.0.113.99%zqzq",
        b"198.51.100.77\xff",
        b"\xffzqzq, \xff",
    ];
    let trusts = || [cidrs(&["10.0.0.0/8"]), cidrs(&["unix"]), Trust::Hops(1), Trust::Hops(9)];
    let mut sources = vec![Source::Header("x-real-ip"), Source::CloudFront];
    sources.extend(trusts().map(Source::XForwardedFor));
    sources.extend(trusts().map(Source::Forwarded));
    let mut errors = 0;
    for source in sources {
        let setup = of(source);
        for peer in [Peer::Absent, Peer::Unix, peer("10.0.0.1")] {
            for line in lines {
                for times in [1, 2] {
                    let lines = vec![(setup.source.name(), line.to_vec()); times];
                    let request = adapter::request(&Heard { peer, lines }).unwrap();
                    let client = adapter::peer_said(adapter::client_ip(&setup).unwrap());
                    let Err(error) = client.resolve(&request) else { continue };
                    errors += 1;
                    let said = format!("{error} {error:?} {error:#?}").to_lowercase();
                    assert!(!secrets.iter().any(|secret| said.contains(secret)), "{said}");
                    assert!(!error.is_forbidden(), "{said}");
                }
            }
        }
    }
    assert!(errors > 300, "{errors}");
}

//! The URLs and addresses of servers, and what errors say about them. No error has a part of a URL that may be secret.

use ::redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::error::{RedisError, RedisErrorKind, convert};

/// Parses the URL of a server.
pub(super) fn parse(url: &str) -> Result<ConnectionInfo, RedisError> {
    let config = |detail: &str| Err(RedisError::new(RedisErrorKind::Config, detail));
    let (scheme, rest) = url.trim_start().split_once(':').unwrap_or_default();
    let (scheme, rest) = (scheme.to_ascii_lowercase(), rest.trim_start_matches('/'));
    let is_tcp = match scheme.as_str() {
        "redis" | "valkey" | "rediss" | "valkeys" => true,
        "redis+unix" | "valkey+unix" | "unix" => false,
        _ => return config(SCHEMES),
    };
    if cfg!(not(feature = "tls")) && matches!(scheme.as_str(), "rediss" | "valkeys") {
        return config("`rediss://` needs the feature `tls` of tower-throttle-redis");
    }
    // If the password has one of these characters, it ends the part of the URL that has the host.
    if is_tcp && rest.split_once(['/', '?', '#']).is_some_and(|(_, after)| after.contains('@')) {
        return config(NOT_ENCODED);
    }
    url.into_connection_info().map_err(|error| {
        let error = convert(&error);
        match error.detail() {
            "Redis URL did not parse" => RedisError::new(RedisErrorKind::Config, NOT_PARSED),
            "Invalid database number" => RedisError::new(RedisErrorKind::Config, NO_DATABASE),
            _ => error,
        }
    })
}

const SCHEMES: &str = "the URL must begin with `redis://`, with `rediss://` for TLS, or with `redis+unix://`";
const NOT_ENCODED: &str = "special characters of the user and the password must be percent-encoded in the URL: \
                           write `%2F` for `/`, `%3F` for `?`, `%23` for `#`, and `%40` for `@`";
const NO_DATABASE: &str = "the path of the URL must be the number of a database, as in `redis://localhost/0`";
const NOT_PARSED: &str = "the URL must have the form `redis://user:password@host:6379/0`, and special characters of \
                          the user and the password must be percent-encoded: `%2F` for `/`, `%3F` for `?`, `%23` for \
                          `#`, and `%40` for `@`";

/// Returns the address, and after it how this crate has learned of it.
pub(super) fn name(address: &ConnectionAddr, origin: &str) -> String {
    format!("{address}{origin}")
}

/// The origin of an address that a node of a cluster has named.
pub(super) const FROM_CLUSTER: &str = ", which the cluster announces, see `cluster-announce-ip`";
/// The origin of an address that a sentinel has named.
pub(super) const FROM_SENTINEL: &str = ", which the sentinels announce, see `replica-announce-ip`";

/// Returns the error of an attempt to connect to the server `name` at this address.
pub(super) fn unconnected(error: RedisError, address: &ConnectionAddr, name: &str) -> RedisError {
    let advice = match error.kind() {
        RedisErrorKind::Unreachable => {
            advice(error.detail(), matches!(address, ConnectionAddr::TcpTls { .. }))
        }
        _ => None,
    };
    error.at(name).with_advice(advice)
}

/// Returns what to change after an attempt to connect has failed for this reason.
fn advice(reason: &str, is_encrypted: bool) -> Option<&'static str> {
    let has = |part: &str| reason.contains(part);
    Some(match () {
        () if has("max number of clients") => {
            "Redis has too many clients: raise `maxclients`, or connect less often"
        }
        () if has("refused the connection") => "Redis does not accept the connection: change what it says",
        () if has("lookup address") => "the host of Redis is not known: check its name in the URL",
        () if has("certificate") => {
            "the certificate of Redis is not accepted: use the host that it is for, and trust the authority that has \
             signed it, in the system or by `RedisStoreBuilder::from_client`"
        }
        () if has("InvalidContentType") => {
            "Redis does not encrypt at this port: use `redis://`, or its port for TLS"
        }
        () if is_encrypted && has("connect_timeout") => {
            "Redis cannot be reached: check the address, and use `redis://` if it does not encrypt at this port"
        }
        () if !is_encrypted && (has("reset by peer") || has("roken pipe") || has("end of file")) => {
            "Redis has closed the connection: use `rediss://` if it encrypts at this port"
        }
        () => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of these URLs has the password `S3cr`, or a longer one that begins so.
    #[test]
    fn a_url_that_is_wrong_says_what_to_change_and_no_part_of_the_password() {
        for (url, says) in [
            ("localhost:6379", "must begin with `redis://`"),
            ("http://:S3cr@localhost", "must begin with `redis://`"),
            ("redis://:S3cr/et@localhost", "`%2F` for `/`"),
            ("redis://app:12#S3cr@localhost", "`%23` for `#`"),
            ("redis://app:12/S3cr@localhost", "`%2F` for `/`"),
            ("redis://app:12?S3cr@localhost", "`%3F` for `?`"),
            ("redis://:S3cr@local host", "must have the form"),
            ("redis://:S3cr@localhost/cache", "database"),
            ("redis://:S3cr@0.0.0.0", "wildcard"),
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), RedisErrorKind::Config, "{url}: {error}");
            let text = format!("{error} {error:?}");
            assert!(text.contains(says) && !text.contains("S3cr"), "{url}: {text}");
        }
        for url in [
            "redis://app:S3cr%2Fet@localhost/3?protocol=resp3",
            " REDIS://:S3cr@et@localhost",
            "redis+unix:///tmp/a@b?pass=S3cr",
            "unix:/tmp/a",
        ] {
            assert!(parse(url).is_ok(), "{url}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn an_encrypted_url_without_the_feature_names_the_feature() {
        let error = parse("rediss://:S3cr@localhost").unwrap_err();
        assert_eq!(error.kind(), RedisErrorKind::Config);
        assert!(error.to_string().contains("feature `tls`"), "{error}");
    }
}

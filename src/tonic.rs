//! The trait that tonic requires of services.

use tonic::server::NamedService;

use crate::middleware::RateLimit;

/// Keeps the name of a limited gRPC service, so that `Server::add_service` accepts it.
impl<Svc: NamedService, P, R> NamedService for RateLimit<Svc, P, R> {
    const NAME: &'static str = Svc::NAME;
}

//! The trait that tonic requires of services.

use tonic::server::NamedService;

use crate::middleware::RateLimit;

/// Gives a limited gRPC service the name of its inner service, so that `Server::add_service` accepts the limited
/// service.
impl<Svc: NamedService, P, R> NamedService for RateLimit<Svc, P, R> {
    const NAME: &'static str = Svc::NAME;
}

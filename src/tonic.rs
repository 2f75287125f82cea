//! What tonic asks of services that it is given.

use tonic::server::NamedService;

use crate::middleware::RateLimit;

/// A limited gRPC service keeps its name, so `Server::add_service` takes it.
impl<Svc: NamedService, P, R> NamedService for RateLimit<Svc, P, R> {
    const NAME: &'static str = Svc::NAME;
}

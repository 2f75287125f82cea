use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use tonic::Status;
use tonic::body::Body;

/// What tonic generates for a service.
#[derive(Clone)]
struct GreeterServer<T>(T);

#[derive(Clone)]
struct Greeter;

impl<T> tonic::server::NamedService for GreeterServer<T> {
    const NAME: &'static str = "hello.Greeter";
}

impl<T> tower::Service<http::Request<Body>> for GreeterServer<T> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<Body>) -> Self::Future {
        ready(Ok(Status::unimplemented("no such method").into_http()))
    }
}

// the block

fn main() {
    drop(serve(GreeterServer(Greeter), ([127, 0, 0, 1], 0).into()));
}

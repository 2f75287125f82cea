//! Servers that run in the test's process, and the tasks that serve them.

use std::future::Future;
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A task that ends with its owner.
#[derive(Debug)]
pub(crate) struct Task(pub(super) JoinHandle<()>);

impl Task {
    pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A server on a port of its own. It stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    _task: Task,
}

impl Server {
    /// Serves an app with the peer's address, as the documentation says.
    pub(crate) async fn start(app: axum::Router) -> Self {
        let (listener, address) = listen().await;
        let serve = axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>());
        Self { address, _task: Task::spawn(async move { serve.await.unwrap() }) }
    }

    /// Serves an app without the peer's address, which the documentation says not to do.
    pub(crate) async fn start_without_peers(app: axum::Router) -> Self {
        let (listener, address) = listen().await;
        Self { address, _task: Task::spawn(async move { axum::serve(listener, app).await.unwrap() }) }
    }

    pub(crate) fn running(address: SocketAddr, server: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { address, _task: Task::spawn(server) }
    }
}

pub(crate) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

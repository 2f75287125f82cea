//! The stacks under test: the innermost service, the recorders around the layer, and the builder of a stack.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Semaphore;
use tower::buffer::Buffer;
use tower::limit::ConcurrencyLimit;
use tower::load_shed::LoadShed;
use tower::timeout::Timeout;
use tower::util::BoxCloneService;
use tower::{BoxError, Layer, Service};
use tower_throttle::algorithm::LeakyBucket;
use tower_throttle::key::Global;
use tower_throttle::{ErrorResponder, RateLimitLayer, RateLimiter};

use super::{Answer, Job, Jobs, Shared, Work};
use crate::support::PolledByHand;

/// The innermost service of a stack, which answers on command.
#[derive(Debug)]
struct Backend {
    world: Shared,
    ready: bool,
}

impl Clone for Backend {
    fn clone(&self) -> Self {
        Self { world: self.world.clone(), ready: false }
    }
}

impl Service<Job> for Backend {
    type Response = Job;
    type Error = BoxError;
    type Future = Working;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let mut world = self.world.lock();
        // A service that is ready stays ready until it is called.
        if world.open || self.ready {
            self.ready = true;
            return Poll::Ready(Ok(()));
        }
        world.callers.push(cx.waker().clone());
        Poll::Pending
    }

    fn call(&mut self, job: Job) -> Working {
        assert!(std::mem::take(&mut self.ready), "{job} is called without being ready");
        let mut world = self.world.lock();
        world.working.insert(job, Work::default());
        assert!(world.working.len() <= world.most, "{job} is one too many at once");
        Working { world: self.world.clone(), job }
    }
}

#[derive(Debug)]
struct Working {
    world: Shared,
    job: Job,
}

impl Future for Working {
    type Output = Result<Job, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut world = self.world.lock();
        let hurries = world.hurries;
        let work = world.working.get_mut(&self.job).expect("it works until it is dropped");
        if work.done || hurries {
            return Poll::Ready(Ok(self.job));
        }
        work.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.world.lock().working.remove(&self.job);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Front,
    Back,
}

/// A recorder, which is placed in front of the layer and behind it.
#[derive(Debug)]
struct Probe<S> {
    service: S,
    side: Side,
    world: Shared,
    ready: bool,
}

impl<S: Clone> Clone for Probe<S> {
    fn clone(&self) -> Self {
        Self { service: self.service.clone(), side: self.side, world: self.world.clone(), ready: false }
    }
}

impl<S> Service<Job> for Probe<S>
where
    S: Service<Job, Response = Job, Error: Into<BoxError>, Future: Send + 'static>,
{
    type Response = Job;
    type Error = BoxError;
    type Future = Answer<'static>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let polled = self.service.poll_ready(cx).map_err(Into::into);
        self.ready = matches!(polled, Poll::Ready(Ok(())));
        polled
    }

    fn call(&mut self, job: Job) -> Answer<'static> {
        let side = self.side;
        assert!(std::mem::take(&mut self.ready), "{job} goes on at the {side:?} without being ready");
        match side {
            Side::Front => self.world.lock().comes(job),
            Side::Back => self.world.lock().leaves(job),
        }
        let ends = (side == Side::Front).then(|| Ends { world: self.world.clone(), job });
        let response = self.service.call(job);
        Box::pin(async move {
            let _ends = ends;
            response.await.map_err(Into::into)
        })
    }
}

#[derive(Debug)]
struct Ends {
    world: Shared,
    job: Job,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.world.lock().ends(self.job);
    }
}

/// Builds a stack from the innermost service outward.
pub(super) struct Builder {
    pub(super) world: Shared,
    pub(super) limiter: RateLimiter<LeakyBucket>,
    pub(super) most: usize,
    pub(super) bound: usize,
    pub(super) patience: Duration,
    pub(super) parts: Parts,
}

/// The parts of a stack that are observed in other ways.
#[derive(Default)]
pub(super) struct Parts {
    /// The concurrency limits, each with its number of permits.
    pub(super) permits: Vec<(Arc<Semaphore>, usize)>,
    /// The tasks of the buffers.
    pub(super) workers: Vec<PolledByHand<Pin<Box<dyn Future<Output = ()>>>>>,
    pub(super) sheds: bool,
    /// The time limits of a call, with and without the time in the queue.
    pub(super) in_all: Option<Duration>,
    pub(super) behind: Option<Duration>,
}

impl Builder {
    pub(super) fn backend(&self) -> impl Jobs + use<> {
        Backend { world: self.world.clone(), ready: false }
    }

    pub(super) fn limited<S: Jobs>(&self, service: S) -> impl Jobs + use<S> {
        let probe = |side| (side, self.world.clone());
        let (side, world) = probe(Side::Back);
        let behind = Probe { service, side, world, ready: false };
        let layer = RateLimitLayer::with_limiter(Global, self.limiter.clone()).responder(ErrorResponder);
        let (side, world) = probe(Side::Front);
        Probe { service: layer.layer(behind), side, world, ready: false }
    }

    pub(super) fn concurrent<S: Jobs>(&mut self, service: S) -> impl Jobs + use<S> {
        let permits = Arc::new(Semaphore::new(self.most));
        self.parts.permits.push((permits.clone(), self.most));
        self.world.lock().most = self.most;
        ConcurrencyLimit::with_semaphore(service, permits)
    }

    pub(super) fn buffered<S: Jobs>(&mut self, service: S) -> impl Jobs + use<S> {
        let (buffer, worker) = Buffer::pair(service, self.bound);
        self.parts.workers.push(PolledByHand::new(Box::pin(worker)));
        buffer
    }

    /// Adds a layer in front of the rate limit.
    pub(super) fn in_time<S: Jobs>(&mut self, service: S) -> impl Jobs + use<S> {
        self.parts.in_all = Some(self.patience);
        Timeout::new(service, self.patience)
    }

    /// Adds a layer behind the rate limit.
    pub(super) fn soon<S: Jobs>(&mut self, service: S) -> impl Jobs + use<S> {
        self.parts.behind = Some(self.patience);
        Timeout::new(service, self.patience)
    }

    pub(super) fn shed<S: Jobs>(&mut self, service: S) -> impl Jobs + use<S> {
        self.parts.sheds = true;
        LoadShed::new(service)
    }
}

pub(super) type Stack = BoxCloneService<Job, Job, BoxError>;
